//! From pre-activations to the new state: what each cell does after its products.
//!
//! Pre-activations lie as the product left them, `[row][panel][slot][lanes]`; states are columns of
//! shared buffers, padded so that whole vectors fit.

mod gru;
mod light_gru;
mod lstm;
mod plain;
mod tree;

use self::tree::Children;
use super::simd::Simd;
use super::{Activation, math};
use crate::rows::{Columns, ReadColumns};
pub use gru::GruFunctions;
pub use light_gru::LightGruFunctions;
pub use lstm::LstmFunctions;
pub use plain::PlainFunctions;

/// The elementwise part of one phase of a step, with its activations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GateKernel {
    /// LSTM states. Slots: input, forget, candidate, output.
    Lstm(LstmFunctions),
    /// GRU states, reset after the product. Slots: reset, update, input part and state part of the
    /// candidate.
    Gru(GruFunctions),
    /// First phase of a GRU that resets before the product. Slots: reset, update, candidate, of
    /// which only the first need be complete. Writes the reset state to `h`.
    GruReset(GruFunctions),
    /// Its second phase. Of the same slots the last two.
    GruCandidate(GruFunctions),
    /// Light GRU states. Slots: update, candidate.
    LightGru(LightGruFunctions),
    /// A state of one slot: the vanilla RNN's, and an LSTM's projected one.
    Plain(PlainFunctions),
    /// States of a TreeLSTM's leaves. Slots: input, output, update.
    TreeLeaf,
    /// States of nodes of two children. The old states are the left child's. Slots: input, output,
    /// update, forget left, forget right.
    TreeBinary,
    /// States of nodes whose children have been summed. The old states are the sums. Slots: input,
    /// output, update.
    TreeNode,
    /// A child added to the sums of its node, which are the states. Slot: forget.
    TreeChild,
}

/// What a [`GateKernel`] reads and writes: one phase of one worker's hidden units.
#[derive(Clone, Copy, Debug)]
pub struct GateJob<'a> {
    /// `[rows][panels][slots][lanes]`: pre-activations.
    pub z: &'a [f32],
    /// Sequences that are still running.
    pub rows: usize,
    /// Units of this worker.
    pub units: usize,
    /// `[panels][3][lanes]`: an LSTM's peepholes to its input, forget and output gates.
    pub peepholes: Option<&'a [f32]>,
    /// Old hidden state, read; not by trees, whose states are overwritten in place.
    pub before: Columns<'a>,
    /// Cell state, read and written by cells that have one.
    pub c: Columns<'a>,
    /// New hidden state, or what the next phase needs, written.
    pub h: Columns<'a>,
    /// The layer's output, written.
    pub y: Option<Columns<'a>>,
    /// Hidden and cell state of a child, read by nodes of two children and by children.
    pub child: Option<[ReadColumns<'a>; 2]>,
}

/// Runs the job.
///
/// # Safety
/// For the units of this job: no thread writes `before`, no other thread accesses `c`, `h` and `y`.
pub(super) unsafe fn run<S: Simd>(s: S, kernel: GateKernel, job: GateJob<'_>) {
    macro_rules! vectorized {
        ($gates:path $(, $functions:expr)?) => {
            s.vectorize(
                #[inline(always)]
                // SAFETY: the caller's promise is passed on.
                || unsafe { $gates(s, $($functions,)? job) },
            )
        };
    }
    match kernel {
        GateKernel::Lstm(f) => vectorized!(lstm::lstm_gates, f),
        GateKernel::Gru(f) => vectorized!(gru::gru_gates, f),
        GateKernel::GruReset(f) => vectorized!(gru::gru_reset, f),
        GateKernel::GruCandidate(f) => vectorized!(gru::gru_candidate, f),
        GateKernel::LightGru(f) => vectorized!(light_gru::light_gru_gates, f),
        GateKernel::Plain(f) => vectorized!(plain::plain_state, f),
        GateKernel::TreeLeaf => vectorized!(tree::tree_node, Children::None),
        GateKernel::TreeBinary => vectorized!(tree::tree_node, Children::Two),
        GateKernel::TreeNode => vectorized!(tree::tree_node, Children::Sum),
        GateKernel::TreeChild => vectorized!(tree::tree_child),
    }
}

/// States below this magnitude become zero; see `gatestream::reference::TINY_STATE`.
const TINY_STATE: f32 = f32::from_bits((127 - 64) << 23);

/// Zero where the state is tiny; NaN stays NaN.
#[inline(always)]
fn flush<S: Simd>(s: S, state: S::F32) -> S::F32 {
    let magnitude = s.from_bits(s.and_i32(s.to_bits(state), s.splat_i32(i32::MAX)));
    s.select(s.lt(magnitude, s.splat(TINY_STATE)), s.splat(0.0), state)
}

/// Clamps to `[-clip, clip]`; NaN stays NaN.
#[inline(always)]
fn clamp<S: Simd>(s: S, clip: Option<f32>, z: S::F32) -> S::F32 {
    let Some(clip) = clip else { return z };
    let (low, high) = (s.splat(-clip), s.splat(clip));
    let z = s.select(s.lt(high, z), high, z);
    s.select(s.lt(z, low), low, z)
}

/// How gate code applies its activations: the standard ones inlined, any others by a match.
trait Functions: Copy {
    fn gate<S: Simd>(self, s: S, z: S::F32) -> S::F32;
    fn candidate<S: Simd>(self, s: S, z: S::F32) -> S::F32;
    #[inline(always)]
    fn output<S: Simd>(self, s: S, z: S::F32) -> S::F32 {
        self.candidate(s, z)
    }
}

/// Sigmoid gates, tanh elsewhere.
#[derive(Clone, Copy)]
struct Standard;

impl Functions for Standard {
    #[inline(always)]
    fn gate<S: Simd>(self, s: S, z: S::F32) -> S::F32 {
        math::sigmoid(s, z)
    }
    #[inline(always)]
    fn candidate<S: Simd>(self, s: S, z: S::F32) -> S::F32 {
        math::tanh(s, z)
    }
}

/// Any activations: gate, candidate, output.
#[derive(Clone, Copy)]
struct Dynamic([Activation; 3]);

impl Functions for Dynamic {
    #[inline(always)]
    fn gate<S: Simd>(self, s: S, z: S::F32) -> S::F32 {
        apply(s, self.0[0], z)
    }
    #[inline(always)]
    fn candidate<S: Simd>(self, s: S, z: S::F32) -> S::F32 {
        apply(s, self.0[1], z)
    }
    #[inline(always)]
    fn output<S: Simd>(self, s: S, z: S::F32) -> S::F32 {
        apply(s, self.0[2], z)
    }
}

/// An activation by value, out of line: eleven bodies at each place of use would be code for
/// nothing.
#[inline(always)]
fn apply<S: Simd>(s: S, activation: Activation, z: S::F32) -> S::F32 {
    #[inline(never)]
    fn outlined<S: Simd>(s: S, activation: Activation, lanes: &mut [f32]) {
        s.vectorize(
            #[inline(always)]
            || s.store(math::activate(s, activation, s.load(lanes)), lanes),
        );
    }
    let mut lanes = [0.0; 16];
    s.store(z, &mut lanes);
    outlined(s, activation, &mut lanes);
    s.load(&lanes)
}

/// Vectors of states that are computed up to the same point before any is finished. The second half
/// of a state hangs on the first by a long chain of dependent operations; a core finds enough to do
/// meanwhile only among as many others.
const VECTORS_AT_ONCE: usize = 8;

/// Rows of `panels` vectors that make up [`VECTORS_AT_ONCE`].
#[inline(always)]
fn rows_together(panels: usize) -> usize {
    (VECTORS_AT_ONCE / panels.max(1)).max(1)
}

/// Writes one vector to the start of `to`, or as much of it as there is room for: the last panel of
/// an odd size.
#[inline(always)]
fn store_part<S: Simd>(s: S, v: S::F32, to: &mut [f32]) {
    if to.len() >= S::LANES {
        s.store(v, to);
    } else {
        let mut lanes = [0.0; 16];
        s.store(v, &mut lanes);
        to.copy_from_slice(&lanes[..to.len()]);
    }
}
