//! The parts of a network that its plans share.

use std::sync::Arc;

use crate::dense::DenseLayers;
use crate::recurrent::{RegionOptions, Regions};
use crate::threads::Threads;

/// See the [module](self).
pub(crate) struct Executors {
    pub threads: Arc<Threads>,
    pub regions: Arc<Regions>,
    pub dense: Arc<DenseLayers>,
}

impl Executors {
    pub fn new(threads: usize, options: RegionOptions) -> Executors {
        let threads = Arc::new(Threads::new(threads));
        Executors {
            regions: Regions::new(Arc::clone(&threads), options),
            dense: DenseLayers::new(Arc::clone(&threads)),
            threads,
        }
    }
}
