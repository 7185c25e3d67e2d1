//! The parts of a network that its plans share.

use std::sync::Arc;

use crate::dense::DenseLayers;
use crate::derived::DerivedConstants;
use crate::recurrent::{RegionOptions, Regions};
use crate::source::constants::Constants;
use crate::threads::Threads;

/// See the [module](self).
pub(crate) struct Executors {
    pub threads: Arc<Threads>,
    pub regions: Arc<Regions>,
    pub dense: Arc<DenseLayers>,
    pub constants: Arc<Constants>,
    pub derived: DerivedConstants,
    /// Whether operators run that have not been compared with ONNX's own test cases.
    pub is_unchecked: bool,
}

impl Executors {
    pub fn new(
        threads: Arc<Threads>,
        options: RegionOptions,
        constants: Constants,
        is_unchecked: bool,
    ) -> Executors {
        Executors {
            regions: Regions::new(Arc::clone(&threads), options),
            dense: DenseLayers::new(Arc::clone(&threads)),
            constants: Arc::new(constants),
            derived: DerivedConstants::default(),
            threads,
            is_unchecked,
        }
    }
}
