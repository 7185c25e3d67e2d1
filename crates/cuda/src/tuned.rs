//! Plans that were timed, and their file.

use std::collections::BTreeMap;
use std::path::Path;

use gatestream::atomic_file;

use crate::plan::{Exchange, RecurrenceSize};
use crate::{Device, LaunchPlan, WeightType};

/// The fastest plan of each size that was timed on a device.
///
/// The file is text: a heading with the device, then a line for each size.
///
/// ```text
/// gatestream cuda plans 1: sm_90, 132 multiprocessors, 232448 bytes
/// hidden 1024 gates 4 resets after directions 1 batch 16 weights f32: stamped units 1 tile 8
/// ```
///
/// ```
/// use gatestream_cuda::{Device, TunedPlans};
/// let text = "gatestream cuda plans 1: sm_90, 132 multiprocessors, 232448 bytes\n\
///     hidden 512 gates 4 resets after directions 1 batch 1 weights f32: stamped units 1 tile 1\n";
/// let plans = TunedPlans::from_text(text, &Device::H100)?;
/// assert_eq!(plans.to_text(), text);
/// # Ok::<(), gatestream_cuda::TunedPlansError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunedPlans {
    device: Device,
    plans: BTreeMap<RecurrenceSize, LaunchPlan>,
}

/// Why a file of plans was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TunedPlansError {
    /// It cannot be read or written.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: String,
        /// The system's error.
        error: std::io::Error,
    },
    /// It is of another device, or no file of plans.
    #[error("the first line is {found:?}, not {expected:?}: tune on this device")]
    Device {
        /// The first line of files of this device.
        expected: String,
        /// The first line.
        found: String,
    },
    /// A line is no plan that fits the device.
    #[error("line {line} is no plan of this device: {text:?}")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// Its text.
        text: String,
    },
}

impl TunedPlans {
    /// No plans yet.
    pub fn new(device: Device) -> TunedPlans {
        TunedPlans {
            device,
            plans: BTreeMap::new(),
        }
    }

    /// The plan of a size, if it was timed.
    pub fn get(&self, size: RecurrenceSize) -> Option<LaunchPlan> {
        self.plans.get(&size).copied()
    }

    /// Keeps `plan` for `size`.
    pub fn insert(&mut self, size: RecurrenceSize, plan: LaunchPlan) {
        self.plans.insert(size, plan);
    }

    /// Refuses another device.
    #[cfg(feature = "cuda")]
    pub(crate) fn check(&self, device: &Device) -> Result<(), TunedPlansError> {
        expect_heading(&heading(&self.device), device)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`TunedPlansError`].
    pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<TunedPlans, TunedPlansError> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|error| TunedPlansError::File {
            path: path.display().to_string(),
            error,
        })?;
        TunedPlans::from_text(&text, device)
    }

    /// Writes a file in one step.
    ///
    /// # Errors
    /// [`TunedPlansError::File`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), TunedPlansError> {
        let path = path.as_ref();
        let text = self.to_text();
        let written = atomic_file::write(path, |file| file.write_all(text.as_bytes()));
        written.map_err(|error| TunedPlansError::File {
            path: path.display().to_string(),
            error,
        })
    }

    /// The text of the file.
    pub fn to_text(&self) -> String {
        let mut text = heading(&self.device) + "\n";
        for (size, plan) in &self.plans {
            text += &format!("{}: {}\n", size_text(*size), plan_text(plan));
        }
        text
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// [`TunedPlansError::Device`], [`TunedPlansError::Line`].
    pub fn from_text(text: &str, device: &Device) -> Result<TunedPlans, TunedPlansError> {
        let mut lines = text.lines();
        expect_heading(lines.next().unwrap_or_default(), device)?;
        let mut plans = TunedPlans::new(*device);
        for (index, line) in lines.enumerate() {
            let read = || {
                let (size, plan) = line.split_once(": ")?;
                let size = parsed_size(size)?;
                // A plan is one of those that fit, whatever the file says.
                let mut candidates = LaunchPlan::candidates(device, size).into_iter();
                Some((
                    size,
                    candidates.find(|candidate| plan_text(candidate) == plan)?,
                ))
            };
            let (size, plan) = read().ok_or_else(|| TunedPlansError::Line {
                line: index + 2,
                text: line.to_owned(),
            })?;
            plans.insert(size, plan);
        }
        Ok(plans)
    }
}

fn expect_heading(found: &str, device: &Device) -> Result<(), TunedPlansError> {
    let expected = heading(device);
    if found == expected {
        Ok(())
    } else {
        Err(TunedPlansError::Device {
            expected,
            found: found.to_owned(),
        })
    }
}

fn heading(device: &Device) -> String {
    format!(
        "gatestream cuda plans 1: {}, {} multiprocessors, {} bytes",
        device.architecture(),
        device.multiprocessors,
        device.shared_bytes
    )
}

/// Names of types of weights.
const WEIGHTS: [(WeightType, &str); 3] = [
    (WeightType::F32, "f32"),
    (WeightType::Bf16, "bf16"),
    (WeightType::F16, "f16"),
];

fn size_text(size: RecurrenceSize) -> String {
    let resets = if size.resets_before {
        "before"
    } else {
        "after"
    };
    let weights = WEIGHTS.iter().find(|(of, _)| *of == size.weights);
    format!(
        "hidden {} gates {} resets {resets} directions {} batch {} weights {}",
        size.hidden,
        size.gates,
        size.directions,
        size.batch,
        weights.map_or("", |(_, name)| name)
    )
}

fn parsed_size(text: &str) -> Option<RecurrenceSize> {
    let words: Vec<&str> = text.split(' ').collect();
    let [
        "hidden",
        hidden,
        "gates",
        gates,
        "resets",
        resets,
        "directions",
        directions,
        "batch",
        batch,
        "weights",
        weights,
    ] = words[..]
    else {
        return None;
    };
    let number = |text: &str| text.parse().ok().filter(|n| (1..1 << 24).contains(n));
    let size = RecurrenceSize {
        hidden: number(hidden)?,
        gates: number(gates)?,
        resets_before: resets == "before",
        directions: number(directions)?,
        batch: number(batch)?,
        weights: WEIGHTS.iter().find(|(_, name)| *name == weights)?.0,
    };
    // Each size has one text.
    (size_text(size) == text && size.gates <= 4 && size.directions <= 2).then_some(size)
}

fn plan_text(plan: &LaunchPlan) -> String {
    let exchange = match plan.exchange {
        Exchange::Stamped => "stamped",
        Exchange::Cluster => "cluster",
    };
    format!("{exchange} units {} tile {}", plan.units, plan.tile)
}
