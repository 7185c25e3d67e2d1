//! The arguments of the kernels, as the bytes of their structures.

/// An address on the device; 0 is none.
pub(crate) type Address = u64;

/// `Direction` of `recurrent.cu`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DirectionArguments {
    pub input: Address,
    pub weights: Address,
    pub candidate_bias: Address,
    pub peepholes: Address,
    pub states: Address,
    pub cell: Address,
    pub output: Address,
    pub exchanged: Address,
    pub is_reverse: bool,
}

/// `Sequences` of `recurrent.cu`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RecurrentArguments {
    pub directions: [DirectionArguments; 2],
    pub lengths: Address,
    pub from_rows: Address,
    pub to_rows: Address,
    pub batch: usize,
    pub hidden: usize,
    pub output_stride: usize,
    pub stamp: u32,
}

impl RecurrentArguments {
    pub fn bytes(&self) -> Bytes {
        let mut bytes = Bytes::default();
        for of in &self.directions {
            let addresses = [
                of.input,
                of.weights,
                of.candidate_bias,
                of.peepholes,
                of.states,
                of.cell,
                of.output,
                of.exchanged,
            ];
            bytes.addresses(&addresses);
            bytes.sizes(&[usize::from(of.is_reverse), 0]);
        }
        bytes.addresses(&[self.lengths, self.from_rows, self.to_rows]);
        bytes.sizes(&[
            self.batch,
            self.hidden,
            self.output_stride,
            self.stamp as usize,
        ]);
        bytes
    }
}

/// `Products` of `input.cu`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProductArguments {
    pub input: Address,
    pub weights: Address,
    pub bias: Address,
    pub lengths: Address,
    pub output: Address,
    pub steps: usize,
    pub batch: usize,
    pub features: usize,
    pub columns: usize,
}

impl ProductArguments {
    pub fn bytes(&self) -> Bytes {
        let mut bytes = Bytes::default();
        bytes.addresses(&[
            self.input,
            self.weights,
            self.bias,
            self.lengths,
            self.output,
        ]);
        bytes.sizes(&[self.steps, self.batch, self.features, self.columns]);
        bytes
    }
}

/// `Pairs` of `merge.cu`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MergeArguments {
    pub from: Address,
    pub to: Address,
    pub rows: usize,
    pub width: usize,
}

impl MergeArguments {
    pub fn bytes(&self) -> Bytes {
        let mut bytes = Bytes::default();
        bytes.addresses(&[self.from, self.to]);
        bytes.sizes(&[self.rows, self.width]);
        bytes
    }
}

/// `Gathered` of `gather.cu`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GatherArguments {
    pub from: Address,
    pub rows: Address,
    pub to: Address,
    pub count: usize,
    pub width: usize,
}

impl GatherArguments {
    pub fn bytes(&self) -> Bytes {
        let mut bytes = Bytes::default();
        bytes.addresses(&[self.from, self.rows, self.to]);
        bytes.sizes(&[self.count, self.width]);
        bytes
    }
}

/// `Lookup` of `embed.cu`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LookupArguments {
    pub symbols: Address,
    pub rows: Address,
    pub table: Address,
    pub to: Address,
    pub count: usize,
    pub features: usize,
    pub known: usize,
}

impl LookupArguments {
    pub fn bytes(&self) -> Bytes {
        let mut bytes = Bytes::default();
        bytes.addresses(&[self.symbols, self.rows, self.table, self.to]);
        bytes.sizes(&[self.count, self.features, self.known, 0]);
        bytes
    }
}

/// `Choice` of `argmax.cu`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ChoiceArguments {
    pub outputs: Address,
    pub rows: Address,
    pub symbols: Address,
    pub count: usize,
    pub width: usize,
}

impl ChoiceArguments {
    pub fn bytes(&self) -> Bytes {
        let mut bytes = Bytes::default();
        bytes.addresses(&[self.outputs, self.rows, self.symbols]);
        bytes.sizes(&[self.count, self.width]);
        bytes
    }
}

/// `Signal` of `signal.cu`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SignalArguments {
    pub word: Address,
    pub value: u32,
}

impl SignalArguments {
    pub fn bytes(&self) -> Bytes {
        let mut bytes = Bytes::default();
        bytes.addresses(&[self.word]);
        bytes.sizes(&[self.value as usize, 0]);
        bytes
    }
}

/// A structure of addresses and 32-bit numbers, none of them at an odd place: it has no padding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes {
    bytes: [u8; Bytes::MOST],
    len: usize,
}

impl Default for Bytes {
    fn default() -> Bytes {
        Bytes {
            bytes: [0; Bytes::MOST],
            len: 0,
        }
    }
}

impl Bytes {
    /// Bytes of the largest structure, and a few.
    pub const MOST: usize = 256;

    /// With zeros behind.
    #[cfg(feature = "cuda")]
    pub fn padded(&self) -> &[u8; Bytes::MOST] {
        &self.bytes
    }

    #[cfg(test)]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn addresses(&mut self, addresses: &[Address]) {
        debug_assert!(self.len.is_multiple_of(8));
        for address in addresses {
            self.push(&address.to_le_bytes());
        }
    }

    /// Sizes were checked against the largest of a device before.
    fn sizes(&mut self, sizes: &[usize]) {
        for size in sizes {
            self.push(&(*size as u32).to_le_bytes());
        }
    }

    fn push(&mut self, some: &[u8]) {
        self.bytes[self.len..self.len + some.len()].copy_from_slice(some);
        self.len += some.len();
    }
}
