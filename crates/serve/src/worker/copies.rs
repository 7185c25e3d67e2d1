//! Copies into a batch's rows, by one thread or by several members of the worker's team; gathered
//! rows of inputs are only noted down.
//!
//! One core copies 11 GB/s here (EPYC, Zen 4), while the others of its team would wait for it: of
//! batches of many long rows each member copies a share. Shares are ranges of the batch's rows, so
//! members write different rows; two of them meet only at the lock of a request that has rows in
//! both shares, which is held for one row.

use std::ops::DerefMut;
use std::slice::ChunksMut;

use super::buffer_pool::BufferPool;
use super::task_row::TaskRow;
use super::values::{InputRow, Values};
use crate::cell_graph::{Port, Ports};
use crate::sync::{Mutex, PoisonError};
use cellstream::execute::team::SharedTeam;

/// Bytes that each member has to copy at least: 3 µs of work, where to meet takes one.
const MIN_BYTES_PER_MEMBER: usize = 32 << 10;

/// The members of a team that copy: as many as have enough to do, so that of a large team those sleep on that a small cell does
/// not wake either.
#[derive(Clone, Copy)]
pub(super) struct ParallelCopy<'a> {
    team: &'a SharedTeam,
    members: usize,
}

impl<'a> ParallelCopy<'a> {
    /// For so many rows of these ports. `None` where one does it alone.
    pub fn of(team: &'a SharedTeam, ports: &[Port], rows: usize) -> Option<ParallelCopy<'a>> {
        let width: usize = ports.iter().map(Port::width).sum();
        let worth = rows * width * size_of::<f32>() / MIN_BYTES_PER_MEMBER;
        let members = team.threads().min(rows).min(worth);
        (members > 1).then_some(ParallelCopy { team, members })
    }

    /// Rows of a batch that each has, but for the last. Padding is counted though nobody copies it, since where it stands is
    /// not known before: with much of it some members have less to do.
    pub fn share(self, batch: usize) -> usize {
        batch.div_ceil(self.members)
    }

    /// Does `job` for every share, each on a member of the team of its own.
    ///
    /// # Panics
    /// If the job does: what is copied is ours.
    pub fn run<S: Send>(
        self,
        shares: impl IntoIterator<Item = S>,
        job: impl Fn(&mut S) + Sync,
    ) -> impl Iterator<Item = S> {
        // A lock each, which nobody else wants: that is how a member gets its share to itself.
        let shares: Vec<_> = shares.into_iter().map(Mutex::new).collect();
        let done = self.team.run_shares(shares.len(), |members| {
            for member in members.iter() {
                let share = shares[member].lock();
                job(&mut share.unwrap_or_else(PoisonError::into_inner));
            }
        });
        if let Err(why) = done {
            panic!("copying rows: {why}");
        }
        let inner = |share: Mutex<S>| share.into_inner().unwrap_or_else(PoisonError::into_inner);
        shares.into_iter().map(inner)
    }
}

/// Buffers that values are copied into: a batch's, or a share of their rows.
pub(super) struct Buffers<'a, B, L, G> {
    pub ports: &'a Ports,
    /// `[rows, width]` each.
    pub inputs: &'a mut [B],
    /// Of each input of a cell that gathers them `[rows]`: those that are not in its buffer.
    pub input_rows: &'a mut [L],
    /// `[rows, width]` each.
    pub states: &'a mut [B],
    /// Of each state of a cell that gathers all `[rows]`, of a width each; `states` are nothing
    /// then.
    pub written: &'a mut [G],
}

/// Those of all rows.
pub(super) type AllBuffers<'a> = Buffers<'a, Vec<f32>, Vec<Option<InputRow>>, Vec<Box<[f32]>>>;

impl<B, L, G> Buffers<'_, B, L, G>
where
    B: DerefMut<Target = [f32]>,
    L: DerefMut<Target = [Option<InputRow>]>,
    G: DerefMut<Target = [Box<[f32]>]>,
{
    /// Notes or copies the inputs of a node for a row, and copies its states, if they `come` from its request, whose `values` are
    /// locked. `false` if something is not there.
    pub fn load<R>(
        &mut self,
        row: usize,
        of: &TaskRow<R>,
        come: bool,
        values: &mut Values<R>,
        pool: &mut BufferPool,
    ) -> bool {
        let (node, given) = (of.row.node, of.values.given());
        let mut all_here = true;
        let inputs = rows_mut(self.inputs, self.ports.inputs(), row);
        for (port, to) in inputs.enumerate() {
            let source = values.graph().sources(node)[port];
            if let Some(input_rows) = self.input_rows.get_mut(port) {
                input_rows[row] = values.input_row(source, given);
                if input_rows[row].is_some() {
                    continue;
                }
            }
            all_here &= values.take((source, given), to, false, pool);
        }
        if come {
            let as_follower = values.follows(node).is_some();
            for (port, declared) in self.ports.states().iter().enumerate() {
                let source = values.graph().sources(node)[self.ports.inputs().len() + port];
                let to = match self.written.get_mut(port) {
                    None => &mut self.states[port][row * declared.width()..][..declared.width()],
                    Some(rows) => match values.take_retained(source, as_follower) {
                        Some(kept) => {
                            pool.put(std::mem::replace(&mut rows[row], kept));
                            continue;
                        }
                        None => &mut rows[row],
                    },
                };
                all_here &= values.take((source, given), to, as_follower, pool);
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

/// Cuts buffers into shares of `rows` rows each: [`Shares::cut`] gives the first rows that are left.
pub(super) struct Shares<'a, T>(Vec<ChunksMut<'a, T>>);

impl<'a, T> Shares<'a, T> {
    /// Of buffers that have a row's `width` of each port.
    pub fn new<'p>(
        buffers: &'a mut [Vec<T>],
        ports: impl IntoIterator<Item = &'p Port>,
        (rows, width): (usize, fn(&Port) -> usize),
    ) -> Shares<'a, T> {
        let both = buffers.iter_mut().zip(ports);
        // A port may have no width; then there is nothing in any share.
        let chunks = both.map(|(buffer, port)| buffer.chunks_mut((rows * width(port)).max(1)));
        Shares(chunks.collect())
    }

    pub fn cut(&mut self) -> Vec<&'a mut [T]> {
        let chunks = self.0.iter_mut();
        chunks.map(|one| one.next().unwrap_or_default()).collect()
    }
}
