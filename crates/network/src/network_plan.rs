//! The plans of all recurrent regions of a network, and their file.
//!
//! ```text
//! gatestream network plan 1
//!
//! region "/encoder/LSTM"
//! gatestream plan 2
//! …                          the plan file of this region, to its checksum
//!
//! region "/decoder/LSTM"
//! …
//! ```
//!
//! Names are in quotation marks, with the escapes of Rust's `str::escape_debug`.

use std::io::Read;
use std::path::Path;

use gatestream::atomic_file;
use gatestream::plan::Plan;

use crate::NetworkError;

const HEADING: &str = "gatestream network plan 1";
/// Enough for hundreds of regions.
const MAX_BYTES: u64 = 64 << 20;

/// The plans of the recurrent regions of a network. [`Network::tune`](crate::Network::tune) makes
/// one, and [`Network::use_plan`](crate::Network::use_plan) takes it.
///
/// ```
/// use gatestream_network::NetworkPlan;
///
/// let plan = NetworkPlan::from_text("gatestream network plan 1\n")?;
/// assert_eq!(plan.regions().count(), 0);
/// # Ok::<(), gatestream_network::NetworkError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkPlan {
    regions: Vec<RegionPlan>,
}

/// The plan of one region, as text: it is read when the model of the region is known.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RegionPlan {
    node: String,
    text: String,
}

fn refused(why: impl Into<String>) -> NetworkError {
    NetworkError::PlanFile { why: why.into() }
}

impl NetworkPlan {
    /// The names of the nodes that have a plan.
    pub fn regions(&self) -> impl Iterator<Item = &str> {
        self.regions.iter().map(|region| region.node.as_str())
    }

    /// The plan file of a node.
    pub(crate) fn region(&self, node: &str) -> Option<&str> {
        let mut of_name = self.regions.iter().filter(|region| region.node == node);
        of_name.next().map(|region| region.text.as_str())
    }

    /// Sets the plan file of a node.
    pub(crate) fn set(&mut self, node: &str, text: String) {
        let node = node.to_owned();
        self.regions.retain(|region| region.node != node);
        self.regions.push(RegionPlan { node, text });
    }

    /// The text of the file.
    pub fn to_text(&self) -> String {
        let mut text = format!("{HEADING}\n");
        for RegionPlan { node, text: plan } in &self.regions {
            text += &format!("\nregion \"{}\"\n{plan}", node.escape_debug());
        }
        text
    }

    /// Reads the text of a file. The plans in it are read when the network runs.
    ///
    /// # Errors
    /// [`NetworkError::PlanFile`].
    pub fn from_text(text: &str) -> Result<NetworkPlan, NetworkError> {
        let mut lines = text.lines();
        match lines.next() {
            Some(HEADING) => {}
            Some(first) if first.starts_with("gatestream plan ") => {
                return Err(refused(
                    "it is the plan of a stack of layers; tune this model for a plan of its own",
                ));
            }
            Some(first) if Plan::is_of_former_name(first.as_bytes()) => {
                return Err(refused(
                    "it is of cellstream, the former name of gatestream; tune again",
                ));
            }
            _ => return Err(refused(format!("line 1 must be {HEADING:?}"))),
        }
        let mut plan = NetworkPlan::default();
        for (index, line) in lines.enumerate() {
            if let Some(name) = line.strip_prefix("region ") {
                let node = unquoted(name).ok_or_else(|| {
                    let line = index + 2;
                    refused(format!("line {line}: expected a name in quotation marks"))
                })?;
                if plan.region(&node).is_some() {
                    return Err(refused(format!("it has two plans for region {node:?}")));
                }
                plan.set(&node, String::new());
            } else if let Some(region) = plan.regions.last_mut() {
                region.text += line;
                region.text += "\n";
            } else if !line.trim().is_empty() && !line.trim_start().starts_with('#') {
                let line = index + 2;
                return Err(refused(format!("line {line}: expected region \"NAME\"")));
            }
        }
        for region in &mut plan.regions {
            region.text.truncate(region.text.trim_end().len());
            region.text += "\n";
        }
        Ok(plan)
    }

    /// Writes the file, whole or not at all.
    ///
    /// # Errors
    /// [`NetworkError::PlanFile`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), NetworkError> {
        let text = self.to_text();
        let written = atomic_file::write(path.as_ref(), |file| file.write_all(text.as_bytes()));
        written.map_err(|why| refused(format!("it cannot be written: {why}")))
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`NetworkError::Read`], [`NetworkError::PlanFile`].
    pub fn load(path: impl AsRef<Path>) -> Result<NetworkPlan, NetworkError> {
        let path = path.as_ref();
        let read = || {
            let mut bytes = Vec::new();
            let file = std::fs::File::open(path)?;
            file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let bytes = read().map_err(|why| NetworkError::Read {
            path: path.to_path_buf(),
            why,
        })?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(refused(format!("it is larger than {MAX_BYTES} bytes")));
        }
        let text = String::from_utf8(bytes);
        NetworkPlan::from_text(&text.map_err(|_| refused("it is no text"))?)
    }
}

/// The inverse of quotation marks around `str::escape_debug`.
fn unquoted(text: &str) -> Option<String> {
    let inner = text.trim_end().strip_prefix('"')?.strip_suffix('"')?;
    let (mut name, mut rest) = (String::new(), inner.chars());
    while let Some(c) = rest.next() {
        if c != '\\' {
            name.push(c);
            continue;
        }
        name.push(match rest.next()? {
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            '0' => '\0',
            'u' => {
                let code = rest.as_str().strip_prefix('{')?;
                let (digits, after) = code.split_once('}')?;
                rest = after.chars();
                char::from_u32(u32::from_str_radix(digits, 16).ok()?)?
            }
            c @ ('\\' | '"' | '\'') => c,
            _ => return None,
        });
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_the_file() {
        let names = ["", "/a/LSTM", "a \"b\" \\ 'c'", "new\nline", "\u{200b}é\0"];
        let mut plan = NetworkPlan::default();
        for name in names {
            plan.set(name, "gatestream plan 2\nchecksum none\n".into());
        }
        let read = NetworkPlan::from_text(&plan.to_text()).unwrap();
        assert_eq!(read.regions().collect::<Vec<_>>(), names);
        for name in names {
            let text = read.region(name).unwrap();
            assert!(text.starts_with("gatestream plan 2\nchecksum none\n"));
        }
        assert_eq!(NetworkPlan::from_text(&read.to_text()).unwrap(), read);
    }

    #[test]
    fn files_of_other_kinds_are_refused() {
        for (text, why) in [
            ("", "line 1"),
            ("gatestream plan 2\n", "a stack of layers"),
            ("cellstream network plan 1\n", "former name"),
            ("gatestream network plan 1\nbatch 1\n", "line 2"),
            ("gatestream network plan 1\n\nregion x\n", "line 3"),
            (
                "gatestream network plan 1\nregion \"x\"\nregion \"x\"\n",
                "two plans",
            ),
        ] {
            let refused = NetworkPlan::from_text(text).unwrap_err().to_string();
            assert!(refused.contains(why), "{refused}");
        }
    }
}
