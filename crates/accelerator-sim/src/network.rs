//! Networks as sizes.

/// A stack of equal recurrent layers, whose inputs are as wide as its hidden states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// Gates of a cell: 4 of an LSTM, 3 of a GRU.
    pub gates: usize,
    /// Layers.
    pub layers: usize,
    /// Hidden size.
    pub hidden_size: usize,
}

impl Network {
    /// MNMT of Table 1: 8 LSTM layers of 1024 units.
    pub const fn mnmt() -> Network {
        Network {
            gates: 4,
            layers: 8,
            hidden_size: 1024,
        }
    }

    /// DeepSpeech 2 of Table 1: 5 GRU layers of 800 units.
    pub const fn deep_speech_2() -> Network {
        Network {
            gates: 3,
            layers: 5,
            hidden_size: 800,
        }
    }

    /// Features that a gate reads: those of the input and of the hidden state.
    pub const fn features(&self) -> usize {
        2 * self.hidden_size
    }

    /// Multiply-adds of a step of one sequence in a layer.
    pub const fn multiply_adds(&self) -> u64 {
        (self.gates * self.hidden_size * self.features()) as u64
    }

    /// Bytes of the weights of a layer, of 8 bits each: then a gate of MNMT fills E-PUR's weight
    /// buffer of 2 MiB.
    pub const fn weight_bytes(&self) -> u64 {
        self.multiply_adds()
    }
}
