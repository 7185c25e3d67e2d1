//! The stamps of the words that blocks exchange.

use crate::driver::{Driver, DriverError};
use crate::layer::DeviceLayer;

/// The stamp of the next step. No stamp is used twice until the words are cleared; 0 is in no word.
pub(crate) struct Stamps(u32);

impl Default for Stamps {
    fn default() -> Stamps {
        Stamps(1)
    }
}

impl From<u32> for Stamps {
    fn from(next: u32) -> Stamps {
        Stamps(next)
    }
}

impl Stamps {
    /// The stamp of the first of `steps` steps of these layers. Clears their words when all stamps
    /// are used up.
    pub fn take<D: Driver>(
        &mut self,
        steps: usize,
        driver: &D,
        layers: &mut [DeviceLayer<D>],
    ) -> Result<u32, DriverError> {
        let after = u32::try_from(steps)
            .ok()
            .and_then(|steps| self.0.checked_add(steps));
        let (first, after) = match after {
            Some(after) => (self.0, after),
            None => {
                for layer in layers {
                    layer.clear_stamps(driver)?;
                }
                (1, 1 + steps as u32)
            }
        };
        self.0 = after;
        Ok(first)
    }
}
