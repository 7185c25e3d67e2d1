//! The option `--lengths`, and the files of lengths that it names.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::lengths::{LONGEST, Lengths};

/// The longest request that an option or a file may ask for.
const MAX_LENGTH: usize = 1 << 16;

/// A value of `--lengths`; its file is not read yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LengthsOption {
    /// `paper`, or `paper:LONGEST`.
    Paper(usize),
    /// A number.
    Fixed(usize),
    /// A CSV file and names of columns.
    File(PathBuf, Vec<String>),
}

impl FromStr for LengthsOption {
    type Err = String;

    fn from_str(text: &str) -> Result<LengthsOption, String> {
        // A number is never the name of a file.
        if text.parse::<f64>().is_ok_and(f64::is_finite) {
            let length = text.parse().ok().filter(|n| (1..=MAX_LENGTH).contains(n));
            let refused = || format!("a length is in 1..={MAX_LENGTH}");
            return length.map(LengthsOption::Fixed).ok_or_else(refused);
        }
        if text == "paper" {
            return Ok(LengthsOption::Paper(LONGEST));
        }
        if let Some(longest) = text.strip_prefix("paper:") {
            let longest = longest.parse().map_err(|_| {
                format!("paper:{longest} needs the longest length, 1..={LONGEST}, as in paper:50")
            })?;
            Lengths::paper(longest)?;
            return Ok(LengthsOption::Paper(longest));
        }
        // Folders may have colons in their names, the file may not.
        let (path, columns) = match text.rsplit_once(':') {
            Some((path, columns)) if !columns.contains('/') => (path, columns),
            _ => (text, ""),
        };
        let columns = columns.split(',').map(str::trim).filter(|c| !c.is_empty());
        Ok(LengthsOption::File(
            path.into(),
            columns.map(String::from).collect(),
        ))
    }
}

impl LengthsOption {
    /// The whole distribution of the paper.
    pub const PAPER: LengthsOption = LengthsOption::Paper(LONGEST);

    /// Reads the file, if there is one. `pairs`: two columns are needed.
    ///
    /// # Errors
    /// See [`LengthsError`].
    pub fn read(&self, pairs: bool) -> Result<Lengths, LengthsError> {
        match self {
            LengthsOption::Paper(longest) => Ok(Lengths::Paper { longest: *longest }),
            LengthsOption::Fixed(length) => Ok(Lengths::Fixed(*length)),
            LengthsOption::File(path, columns) => {
                let io = |source| LengthsError::Read {
                    path: path.clone(),
                    source,
                };
                let file = std::fs::File::open(path).map_err(io)?;
                Ok(Lengths::Rows(rows(file, path, columns, pairs)?.into()))
            }
        }
    }

    /// The file, if there is one.
    pub fn file(&self) -> Option<&Path> {
        match self {
            LengthsOption::File(path, _) => Some(path),
            _ => None,
        }
    }
}

/// As typed, but without folders, which mean nothing on other machines.
impl fmt::Display for LengthsOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LengthsOption::Paper(LONGEST) => f.write_str("paper"),
            LengthsOption::Paper(longest) => write!(f, "paper:{longest}"),
            LengthsOption::Fixed(length) => write!(f, "{length}"),
            LengthsOption::File(path, columns) => {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let colon = if columns.is_empty() { "" } else { ":" };
                write!(f, "{name}{colon}{}", columns.join(","))
            }
        }
    }
}

/// Why a file of lengths is refused.
#[derive(Debug, thiserror::Error)]
pub enum LengthsError {
    /// It cannot be opened.
    #[error("{}: cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error.
        source: std::io::Error,
    },
    /// It is no CSV.
    #[error("{}: is no CSV file", path.display())]
    Csv {
        /// The file.
        path: PathBuf,
        /// The error, with the line.
        source: csv::Error,
    },
    /// There is no such column.
    #[error("{}: has no column {name:?}; it has {}", path.display(), there.join(", "))]
    NoColumn {
        /// The file.
        path: PathBuf,
        /// The name.
        name: String,
        /// Columns of the file.
        there: Vec<String>,
    },
    /// Too few columns hold lengths, or another number of them was named than is needed.
    #[error(
        "{}: columns of lengths: {needed} needed, {found} found; name them, as in FILE:{}",
        path.display(),
        if *needed == 1 { "words" } else { "source,target" }
    )]
    Columns {
        /// The file.
        path: PathBuf,
        /// Columns that are needed.
        needed: usize,
        /// Columns that were named, or that hold whole numbers in the first row.
        found: usize,
    },
    /// A field is no length.
    #[error(
        "{}: line {line}: column {column:?} is {found:?}; expected a whole number in \
         1..={MAX_LENGTH}",
        path.display()
    )]
    Field {
        /// The file.
        path: PathBuf,
        /// Counted from 1, the first line being the names of columns.
        line: u64,
        /// Name of the column.
        column: String,
        /// The field.
        found: String,
    },
    /// Its first line has lengths, and no names of columns.
    #[error(
        "{}: its first line, {line:?}, is numbers; expected names of columns there, as in \
         words",
        path.display()
    )]
    NoNames {
        /// The file.
        path: PathBuf,
        /// The first line.
        line: String,
    },
    /// No line follows the names of columns.
    #[error(
        "{}: has no rows; expected names of columns in the first line and a row of lengths in \
         each other",
        path.display()
    )]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

fn length(field: &str) -> Option<usize> {
    field
        .trim()
        .parse()
        .ok()
        .filter(|n| (1..=MAX_LENGTH).contains(n))
}

/// Whether a field is a whole number of any size.
fn is_whole(field: &str) -> bool {
    field.trim().parse::<i128>().is_ok()
}

/// The rows of a CSV file with a header. Without `columns`, uses those with
/// a length in the first row. If these are too few, uses those with a whole number, so that the
/// error names the value.
fn rows(
    file: impl std::io::Read,
    path: &Path,
    columns: &[String],
    pairs: bool,
) -> Result<Vec<(usize, usize)>, LengthsError> {
    let path = || path.to_path_buf();
    let csv_error = |source| LengthsError::Csv {
        path: path(),
        source,
    };
    let mut reader = csv::ReaderBuilder::new().from_reader(file);
    let names: Vec<String> = (reader.headers().map_err(csv_error)?.iter())
        .map(|name| name.trim().to_string())
        .collect();
    // Otherwise the first row would be taken as names and lost.
    if !names.is_empty() && names.iter().all(|name| is_whole(name)) {
        let (path, line) = (path(), names.join(","));
        return Err(LengthsError::NoNames { path, line });
    }
    let find = |name: &String| {
        let found = names.iter().position(|there| there == name);
        found.ok_or_else(|| LengthsError::NoColumn {
            path: path(),
            name: name.clone(),
            there: names.clone(),
        })
    };
    let mut taken = columns.iter().map(find).collect::<Result<Vec<_>, _>>()?;
    let needed = if pairs { 2 } else { 1 };
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(csv_error)?;
        if columns.is_empty() && rows.is_empty() {
            let held = |holds: fn(&str) -> bool| {
                let columns =
                    (0..names.len()).filter(|&column| record.get(column).is_some_and(holds));
                columns.take(needed).collect::<Vec<_>>()
            };
            taken = held(|field| length(field).is_some());
            if taken.len() < needed {
                taken = held(is_whole);
            }
        }
        if taken.len() != needed {
            return Err(LengthsError::Columns {
                path: path(),
                needed,
                found: taken.len(),
            });
        }
        let read = |column: usize| {
            let field = record.get(column).unwrap_or_default();
            length(field).ok_or_else(|| LengthsError::Field {
                path: path(),
                line: record.position().map_or(0, csv::Position::line),
                column: names.get(column).cloned().unwrap_or_default(),
                found: field.into(),
            })
        };
        rows.push((read(taken[0])?, read(taken[needed - 1])?));
    }
    if rows.is_empty() {
        return Err(LengthsError::Empty { path: path() });
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_parsed() {
        let parse = |text: &str| text.parse::<LengthsOption>();
        assert_eq!(parse("24"), Ok(LengthsOption::Fixed(24)));
        for number in ["0", "-1", "65537", "99999999999999999999", "2.5"] {
            let refused = parse(number).unwrap_err();
            assert_eq!(refused, "a length is in 1..=65536", "{number}");
        }
        assert_eq!(parse("paper"), Ok(LengthsOption::Paper(330)));
        assert_eq!(parse("paper:50"), Ok(LengthsOption::Paper(50)));
        let file = |path: &str, columns: &[&str]| {
            let columns = columns.iter().map(|c| c.to_string()).collect();
            Ok(LengthsOption::File(path.into(), columns))
        };
        assert_eq!(parse("a/b.csv"), file("a/b.csv", &[]));
        assert_eq!(parse("a:b/c.csv"), file("a:b/c.csv", &[]));
        assert_eq!(parse("a.csv:x, y"), file("a.csv", &["x", "y"]));
        for text in ["24", "paper", "paper:50", "a.csv", "a.csv:x,y"] {
            assert_eq!(parse(text).unwrap().to_string(), text);
            assert_eq!(parse(&format!("folder/{text}")).unwrap().to_string(), text);
        }
        for bad in ["0", "70000", "paper:0", "paper:331", "paper:x"] {
            let error = parse(bad).unwrap_err();
            assert!(error.contains("1..="), "{bad}: {error}");
        }
    }

    const FILE: &str = "direction,source_words,reference_words\nde-en,7,8\nen-de,3,4\n";

    fn read(text: &str, columns: &[&str], pairs: bool) -> Result<Vec<(usize, usize)>, String> {
        let columns: Vec<String> = columns.iter().map(|c| c.to_string()).collect();
        let read = rows(text.as_bytes(), Path::new("l.csv"), &columns, pairs);
        read.map_err(|error| error.to_string())
    }

    #[test]
    fn columns_of_lengths_are_found_or_named() {
        assert_eq!(read(FILE, &[], true), Ok(vec![(7, 8), (3, 4)]));
        assert_eq!(read(FILE, &[], false), Ok(vec![(7, 7), (3, 3)]));
        // A score and a number from zero are no lengths.
        assert_eq!(
            read("score,id,words\n0.5,0,7\n", &[], false),
            Ok(vec![(7, 7)])
        );
        let named = read(FILE, &["reference_words"], false);
        assert_eq!(named, Ok(vec![(8, 8), (4, 4)]));
        let swapped = read(FILE, &["reference_words", "source_words"], true);
        assert_eq!(swapped, Ok(vec![(8, 7), (4, 3)]));
    }

    #[test]
    fn errors_name_the_line() {
        let refused = |text: &str, columns: &[&str], pairs, words: &str| {
            let error = read(text, columns, pairs).unwrap_err();
            assert!(
                error.starts_with("l.csv: ") && error.contains(words),
                "{error}"
            );
        };
        refused(
            "a,b\n1,2\n3,x\n",
            &[],
            true,
            "line 3: column \"b\" is \"x\"; expected a whole",
        );
        refused("a\n5\n0\n", &[], false, "line 3: column \"a\" is \"0\"");
        refused("a\n-1\n", &["a"], false, "line 2: column \"a\" is \"-1\"");
        refused("a\n1\n", &["b"], false, "no column \"b\"; it has a");
        refused("a\n1\n", &[], true, "2 needed, 1 found");
        refused("a,b\n1,2\n", &["a", "b"], false, "1 needed, 2 found");
        refused(
            "a\n70000\n",
            &[],
            false,
            "line 2: column \"a\" is \"70000\"",
        );
        refused("id,b\n1,0\n", &[], true, "line 2: column \"b\" is \"0\"");
        refused("7\n8\n", &[], false, "its first line, \"7\", is numbers");
        refused("7, 8\n8,9\n", &[], true, "\"7,8\", is numbers");
        refused("a,b\n", &[], true, "no rows");
        refused("", &[], true, "no rows");
        refused("a,b\n1,2\n3\n", &[], true, "is no CSV file");
    }
}
