//! How long requests are: as in the paper, all the same, or as in a file.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use fastrand::Rng;

/// The longest request that is accepted from anywhere.
pub const MOST: usize = 1 << 16;

/// Lengths of requests, in steps.
#[derive(Clone, Debug)]
pub enum Lengths {
    /// As in the paper's section 7.1 (Gao et al. 2018), which says of 100,000 sentences of WMT-15 Europarl: mean 24,
    /// 99 % below 100, the longest 330.
    ///
    /// A log-normal, rounded up, draws above the longest drawn again, has these three: the longest of 100,000 draws
    /// that are not cut off would be about 330, too. Both lengths of a pair are of this distribution; their
    /// logarithms are as correlated as those of the WMT-22 test sets (0.95).
    Paper {
        /// The longest, 330 unless shorter ones are asked for (the paper's figure 11).
        longest: usize,
    },
    /// All the same.
    Fixed(usize),
    /// Rows of a file, each as likely as the others: source and target, which are the same but for pairs.
    Rows(Arc<[(usize, usize)]>),
}

/// Of the logarithm of lengths: solved for a mean of 24 and a 99th percentile of 99 steps.
const LOG_MEAN: f64 = 2.888;
const LOG_DEVIATION: f64 = 0.734;
/// Of the logarithms of a pair's lengths.
const CORRELATION: f64 = 0.95;
/// The paper's longest sentence.
const LONGEST: usize = 330;

impl Lengths {
    /// The paper's distribution, none longer than this.
    ///
    /// # Errors
    /// Not in 1..=330.
    pub fn paper(longest: usize) -> Result<Lengths, String> {
        match (1..=LONGEST).contains(&longest) {
            true => Ok(Lengths::Paper { longest }),
            false => Err(format!(
                "paper:{longest} is not in 1..={LONGEST}, the paper's longest"
            )),
        }
    }

    /// The next length.
    pub fn draw(&self, random: &mut Rng) -> usize {
        self.draw_pair(random).0
    }

    /// The next source and target.
    pub fn draw_pair(&self, random: &mut Rng) -> (usize, usize) {
        match self {
            Lengths::Fixed(length) => (*length, *length),
            Lengths::Rows(rows) => rows[random.usize(..rows.len())],
            // Pairs are drawn again as a whole: the correlation stays.
            Lengths::Paper { longest } => loop {
                let (a, b) = two_normals(random);
                let b = CORRELATION * a + (1.0 - CORRELATION * CORRELATION).sqrt() * b;
                let [source, target] =
                    [a, b].map(|z| (LOG_MEAN + LOG_DEVIATION * z).exp().ceil() as usize);
                if source <= *longest && target <= *longest {
                    return (source.max(1), target.max(1));
                }
            },
        }
    }

    /// None that is drawn is longer; of pairs, no source.
    pub fn longest(&self) -> usize {
        match self {
            Lengths::Paper { longest } => *longest,
            Lengths::Fixed(length) => *length,
            Lengths::Rows(rows) => rows.iter().map(|row| row.0).max().unwrap_or(0),
        }
    }

    /// Whether all are the same.
    pub fn is_fixed(&self) -> bool {
        match self {
            Lengths::Paper { longest } => *longest == 1,
            Lengths::Fixed(_) => true,
            Lengths::Rows(rows) => rows.iter().all(|row| row == &rows[0]),
        }
    }
}

/// Two independent draws of the standard normal distribution (Box and Muller 1958).
fn two_normals(random: &mut Rng) -> (f64, f64) {
    // Above 0, for the logarithm.
    let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
    let (sin, cos) = (std::f64::consts::TAU * random.f64()).sin_cos();
    (radius * cos, radius * sin)
}

/// `--lengths`, before any file is read.
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
        // Whatever is written as a number is no name of a file.
        if text.parse::<f64>().is_ok_and(f64::is_finite) {
            let length = text.parse().ok().filter(|n| (1..=MOST).contains(n));
            let refused = || format!("a length is in 1..={MOST}");
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
        // A path may have colons in its folders, not in its last name.
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
    /// The paper's, whole.
    pub const PAPER: LengthsOption = LengthsOption::Paper(LONGEST);

    /// Reads the file, if there is one. `pairs`: both lengths are needed.
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

/// As it is typed, a file without its folder: results go to other machines.
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
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is no CSV.
    #[error("{}: is no CSV file", path.display())]
    Csv {
        /// Which file.
        path: PathBuf,
        /// Why, with the line.
        source: csv::Error,
    },
    /// There is no such column.
    #[error("{}: has no column {name:?}; it has {}", path.display(), there.join(", "))]
    NoColumn {
        /// Which file.
        path: PathBuf,
        /// What was asked for.
        name: String,
        /// What its first line names.
        there: Vec<String>,
    },
    /// Too few columns hold lengths, or another number of them was named than is needed.
    #[error(
        "{}: columns of lengths: {needed} needed, {found} found; name them, as in FILE:{}",
        path.display(),
        if *needed == 1 { "words" } else { "source,target" }
    )]
    Columns {
        /// Which file.
        path: PathBuf,
        /// Columns that are needed.
        needed: usize,
        /// Columns that were named, or that hold whole numbers in the first row.
        found: usize,
    },
    /// A field is no length.
    #[error("{}: line {line}: column {column:?} is {found:?}; expected a whole number in 1..={MOST}", path.display())]
    Field {
        /// Which file.
        path: PathBuf,
        /// Counted from 1, the first line being the names of columns.
        line: u64,
        /// Name of the column.
        column: String,
        /// What stands there.
        found: String,
    },
    /// Its first line has lengths, and no names of columns.
    #[error("{}: its first line, {line:?}, is numbers; expected names of columns there, as in words", path.display())]
    NoNames {
        /// Which file.
        path: PathBuf,
        /// The first line.
        line: String,
    },
    /// No line follows the names of columns.
    #[error("{}: has no rows; expected names of columns in the first line and a row of lengths in each other", path.display())]
    Empty {
        /// Which file.
        path: PathBuf,
    },
}

fn length(field: &str) -> Option<usize> {
    field.trim().parse().ok().filter(|n| (1..=MOST).contains(n))
}

/// Whether a field may be meant as a length, of whatever size.
fn is_whole(field: &str) -> bool {
    field.trim().parse::<i128>().is_ok()
}

/// The rows of a CSV file whose first line names the columns. Without `columns`, those are taken that hold a length in
/// the first row; if these are too few, those that hold a whole number, so that what is wrong with it is said.
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
    // Else the first row would be lost without a word.
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
    match rows.is_empty() {
        true => Err(LengthsError::Empty { path: path() }),
        false => Ok(rows),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: usize = 200_000;

    fn drawn(lengths: &Lengths) -> Vec<(usize, usize)> {
        let mut random = Rng::with_seed(24);
        (0..DRAWS).map(|_| lengths.draw_pair(&mut random)).collect()
    }

    #[test]
    fn the_papers_mean_99th_percentile_and_longest_come_out() {
        let pairs = drawn(&Lengths::paper(330).unwrap());
        let (sources, targets): (Vec<usize>, Vec<usize>) = pairs.into_iter().unzip();
        for lengths in [sources, targets] {
            let mean = lengths.iter().sum::<usize>() as f64 / DRAWS as f64;
            // The standard deviation is 20: five of the mean's are 0.22.
            assert!((mean - 24.0).abs() < 0.22, "{mean}");
            let below = lengths.iter().filter(|&&l| l < 100).count() as f64 / DRAWS as f64;
            assert!((below - 0.99).abs() < 0.0012, "{below}");
            let (least, most) = (lengths.iter().min().unwrap(), lengths.iter().max().unwrap());
            assert!(*least >= 1 && *most <= 330 && *most > 250, "{least} {most}");
        }
    }

    #[test]
    fn lengths_of_a_pair_are_correlated_as_translations_are() {
        let logs: Vec<(f64, f64)> = (drawn(&Lengths::paper(330).unwrap()).iter())
            .map(|&(a, b)| ((a as f64).ln(), (b as f64).ln()))
            .collect();
        let mean =
            |of: &dyn Fn(&(f64, f64)) -> f64| logs.iter().map(of).sum::<f64>() / DRAWS as f64;
        let (a, b) = (mean(&|p| p.0), mean(&|p| p.1));
        let covariance = mean(&|p| (p.0 - a) * (p.1 - b));
        let variances = mean(&|p| (p.0 - a).powi(2)) * mean(&|p| (p.1 - b).powi(2));
        let correlation = covariance / variances.sqrt();
        // Rounding up, and cutting off the longest, takes a little.
        assert!((correlation - 0.95).abs() < 0.01, "{correlation}");
    }

    #[test]
    fn shorter_ones_can_be_asked_for() {
        let pairs = drawn(&Lengths::paper(50).unwrap());
        assert_eq!(pairs.iter().map(|p| p.0.max(p.1)).max(), Some(50));
        assert!(Lengths::paper(0).is_err() && Lengths::paper(331).is_err());
    }

    #[test]
    fn options_are_told_apart() {
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
    fn bad_files_are_refused_with_their_line() {
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
