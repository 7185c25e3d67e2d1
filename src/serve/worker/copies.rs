//! Copies into a batch's rows, by one thread or by the worker's whole team.
//!
//! One core copies 8 to 10 GB/s here, while the others of its team would wait for it: of batches of many long rows each
//! member copies a share. Shares are ranges of the batch's rows, so what members write lies apart; two of them meet only at the lock
//! of a request that has rows in both shares, which is held for one row.

use std::ops::DerefMut;
use std::slice::ChunksMut;

use super::spare::Spare;
use super::values::Values;
use crate::execute::team::SharedTeam;
use crate::serve::cell_graph::{NodeId, Port, Ports};
use crate::serve::sync::{Mutex, PoisonError};

/// Bytes of a batch's inputs from which on the team copies: for less, to meet takes longer than is saved.
const SHARED_FROM: usize = 64 << 10;

/// Whether so many rows are worth a team's meeting.
pub(super) fn wants_team(ports: &Ports, rows: usize, team: &SharedTeam) -> bool {
    let width: usize = ports.inputs().iter().map(Port::width).sum();
    team.threads() > 1 && rows * width * size_of::<f32>() >= SHARED_FROM
}

/// Does `job` for every share, each on a member of the team of its own.
///
/// # Panics
/// If the job does: what is copied is ours.
pub(super) fn on_team<S: Send>(
    team: &SharedTeam,
    shares: impl IntoIterator<Item = S>,
    job: impl Fn(&mut S) + Sync,
) -> impl Iterator<Item = S> {
    // A lock each, which nobody else wants: that is how a member gets its share to itself.
    let shares: Vec<_> = shares.into_iter().map(Mutex::new).collect();
    let done = team.run_on(shares.len(), |member| {
        let share = shares[member.index].lock();
        job(&mut share.unwrap_or_else(PoisonError::into_inner));
    });
    if let Err(why) = done {
        panic!("copying rows: {why}");
    }
    let inner = |share: Mutex<S>| share.into_inner().unwrap_or_else(PoisonError::into_inner);
    shares.into_iter().map(inner)
}

/// Buffers that values are copied into: a batch's, or a share of their rows.
pub(super) struct Buffers<'a, B> {
    pub ports: &'a Ports,
    /// `[rows, width]` each.
    pub inputs: &'a mut [B],
    /// `[rows, width]` each.
    pub states: &'a mut [B],
}

impl<B: DerefMut<Target = [f32]>> Buffers<'_, B> {
    /// Copies the inputs of a node to a row, and its states, if they `come` from its request. `false` if something is not there.
    pub fn load<R>(
        &mut self,
        row: usize,
        node: NodeId,
        come: bool,
        values: &mut Values<R>,
        spare: &mut Spare,
    ) -> bool {
        let mut all_here = true;
        let inputs = rows_mut(self.inputs, self.ports.inputs(), row);
        for (port, to) in inputs.enumerate() {
            let source = values.graph().sources(node)[port];
            all_here &= values.take(source, to, false, spare);
        }
        if come {
            let as_follower = values.follows(node).is_some();
            let states = rows_mut(self.states, self.ports.states(), row);
            for (port, to) in states.enumerate() {
                let source = values.graph().sources(node)[self.ports.inputs().len() + port];
                all_here &= values.take(source, to, as_follower, spare);
            }
        }
        all_here
    }
}

/// One row of each buffer.
fn rows_mut<'a, B: DerefMut<Target = [f32]>>(
    buffers: &'a mut [B],
    ports: &'a [Port],
    row: usize,
) -> impl Iterator<Item = &'a mut [f32]> {
    let both = buffers.iter_mut().zip(ports);
    both.map(move |(buffer, port)| &mut buffer[row * port.width()..][..port.width()])
}

/// Cuts buffers into shares of `rows` rows each; whoever calls [`Shares::next`] gets the first rows that are left.
pub(super) struct Shares<'a>(Vec<ChunksMut<'a, f32>>);

impl<'a> Shares<'a> {
    pub fn new(buffers: &'a mut [Vec<f32>], ports: &[Port], rows: usize) -> Shares<'a> {
        let both = buffers.iter_mut().zip(ports);
        // A port may have no width; then there is nothing in any share.
        let chunks = both.map(|(buffer, port)| buffer.chunks_mut((rows * port.width()).max(1)));
        Shares(chunks.collect())
    }

    pub fn next(&mut self) -> Vec<&'a mut [f32]> {
        let chunks = self.0.iter_mut();
        chunks.map(|one| one.next().unwrap_or_default()).collect()
    }
}
