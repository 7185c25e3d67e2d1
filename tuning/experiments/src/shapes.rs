//! The models that experiments run.

use gatestream::Model;
use gatestream::model::{Gru, Lstm, ModelError};

/// Size of a request to one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Input features.
    pub input: usize,
    /// Hidden units.
    pub hidden: usize,
    /// Sequences.
    pub batch: usize,
    /// Steps of each.
    pub steps: usize,
}

impl Shape {
    /// Input as wide as the hidden state, 100 steps, as in deepcpu's figures 4 and 5.
    pub fn square(batch: usize, hidden: usize) -> Shape {
        Shape {
            input: hidden,
            hidden,
            batch,
            steps: 100,
        }
    }

    /// An LSTM layer with random weights.
    ///
    /// # Errors
    /// A size of zero.
    pub fn lstm(&self) -> Result<Model, ModelError> {
        Lstm::new(self.input, self.hidden).random(1)
    }

    /// A GRU layer with random weights.
    ///
    /// # Errors
    /// A size of zero.
    pub fn gru(&self) -> Result<Model, ModelError> {
        Gru::new(self.input, self.hidden).random(1)
    }
}

const fn shape(input: usize, hidden: usize, batch: usize, steps: usize) -> Shape {
    Shape {
        input,
        hidden,
        batch,
        steps,
    }
}

/// DeepCPU, Table 1.
pub const TABLE1: [Shape; 15] = [
    shape(64, 64, 1, 100),
    shape(256, 64, 1, 100),
    shape(1024, 64, 1, 100),
    shape(64, 256, 1, 100),
    shape(64, 1024, 1, 100),
    shape(1024, 1024, 1, 100),
    shape(256, 256, 1, 1),
    shape(256, 256, 1, 10),
    shape(256, 256, 1, 100),
    shape(64, 64, 10, 100),
    shape(64, 64, 20, 100),
    shape(256, 256, 10, 100),
    shape(256, 256, 20, 100),
    shape(1024, 1024, 10, 100),
    shape(1024, 1024, 20, 100),
];

/// Numbers from -1 to 1, the same each time.
pub fn numbers(count: usize) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(count as u64);
    (0..count).map(|_| 2.0 * random.f32() - 1.0).collect()
}
