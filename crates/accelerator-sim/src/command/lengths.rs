//! The option `--lengths`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use gatestream_command::Failure;

use crate::arrivals::{Histogram, Lengths};

/// Lengths in a bin of the histogram of a file.
const BIN_WIDTH: usize = 10;
/// The longest request.
const LONGEST: usize = 1 << 20;

/// A value of `--lengths`; its file is not read yet.
#[derive(Clone, Debug, PartialEq)]
pub enum LengthsOption {
    /// `uniform:LEAST..MOST` or `normal:MEAN,DEVIATION,LEAST..MOST`.
    Drawn(Lengths),
    /// A file with one length per line.
    File(PathBuf),
}

impl FromStr for LengthsOption {
    type Err = String;

    fn from_str(text: &str) -> Result<LengthsOption, String> {
        if let Some(ends) = text.strip_prefix("uniform:") {
            let (least, most) = range(ends)?;
            return Ok(LengthsOption::Drawn(Lengths::Uniform { least, most }));
        }
        let Some(normal) = text.strip_prefix("normal:") else {
            return Ok(LengthsOption::File(text.into()));
        };
        let refused = "expected normal:MEAN,DEVIATION,LEAST..MOST, as in normal:60,20,20..100";
        let mut parts = normal.splitn(3, ',');
        let mut number = || -> Option<f64> { parts.next()?.parse().ok().filter(|n| *n >= 0.0) };
        let (mean, deviation) = (number().ok_or(refused)?, number().ok_or(refused)?);
        let (least, most) = range(parts.next().ok_or(refused)?)?;
        if !(least as f64..=most as f64).contains(&mean) {
            return Err(format!("the mean is outside {least}..{most}"));
        }
        // With few values inside the ends, one would take many draws.
        let widest = 10.0 * (most - least + 1) as f64;
        if deviation > widest {
            return Err(format!(
                "the deviation is above {widest}, ten times {least}..{most}"
            ));
        }
        Ok(LengthsOption::Drawn(Lengths::Normal {
            mean,
            deviation,
            least,
            most,
        }))
    }
}

/// `LEAST..MOST`, both included.
fn range(text: &str) -> Result<(usize, usize), String> {
    let ends = text.split_once("..").and_then(|(least, most)| {
        let ends: (usize, usize) = (least.parse().ok()?, most.parse().ok()?);
        (1 <= ends.0 && ends.0 <= ends.1 && ends.1 <= LONGEST).then_some(ends)
    });
    ends.ok_or_else(|| format!("expected LEAST..MOST within 1..{LONGEST}, as in 20..100"))
}

/// As typed, but without folders, which mean nothing on other machines.
impl fmt::Display for LengthsOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LengthsOption::Drawn(lengths) => lengths.fmt(f),
            LengthsOption::File(path) => {
                let name = path.file_name().unwrap_or_default();
                f.write_str(&name.to_string_lossy())
            }
        }
    }
}

impl LengthsOption {
    /// The distribution; reads the file, if there is one.
    ///
    /// # Errors
    /// The file cannot be read, or a line is no length.
    pub fn read(&self) -> Result<Lengths, Failure> {
        match self {
            LengthsOption::Drawn(lengths) => Ok(lengths.clone()),
            LengthsOption::File(path) => {
                let text = std::fs::read_to_string(path);
                let text = text.map_err(|error| Failure::from(error).of(path))?;
                let lengths = lines(&text).map_err(|why| Failure::new(why).of(path))?;
                let histogram = Histogram::new(&lengths, BIN_WIDTH);
                let histogram = histogram.ok_or_else(|| {
                    Failure::new("has no lengths; expected one length per line").of(path)
                })?;
                Ok(Lengths::Histogram(histogram))
            }
        }
    }
}

fn lines(text: &str) -> Result<Vec<usize>, String> {
    let lines = text.lines().enumerate();
    let lines = lines.filter(|(_, line)| !line.trim().is_empty());
    let length = |(index, line): (usize, &str)| {
        let length = line.trim().parse().ok();
        let length = length.filter(|length| (1..=LONGEST).contains(length));
        length.ok_or_else(|| {
            let number = index + 1;
            format!("line {number} is {line:?}; expected a whole number in 1..={LONGEST}")
        })
    };
    lines.map(length).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_back() {
        for text in ["uniform:20..100", "normal:60,20.5,20..100"] {
            assert_eq!(text.parse::<LengthsOption>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn other_values_are_refused() {
        for text in [
            "uniform:",
            "uniform:0..3",
            "uniform:5..3",
            "normal:60",
            "normal:60,-1,20..100",
            "normal:60,nan,20..100",
            "normal:600,1,20..100",
            "normal:60,1e9,20..100",
            "normal:60,inf,20..100",
        ] {
            assert!(text.parse::<LengthsOption>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_file_has_a_length_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lengths.txt");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            LengthsOption::File(path.clone()).read()
        };
        assert_eq!(read("3\n\n 5 \n").unwrap().mean(), 4.0);
        for (text, part) in [("", "no lengths"), ("3\nx\n", "line 2"), ("0\n", "line 1")] {
            let error = read(text).unwrap_err().to_string();
            assert!(
                error.contains(part) && error.contains("lengths.txt"),
                "{error}"
            );
        }
    }
}
