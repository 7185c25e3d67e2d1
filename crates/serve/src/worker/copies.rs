//! Copies into the rows of a batch, by one thread or by several members of the worker's team.
//! Gathered input rows are only recorded.
//!
//! Large copies are divided among the members of the team. Shares are ranges of rows, so members
//! write different rows. Two members contend only for the lock of a request with rows in both
//! shares, which is held for one row.

use std::ops::DerefMut;
use std::slice::ChunksMut;

use super::buffer_pool::BufferPool;
use super::task_row::TaskRow;
use super::values::{InputRow, Values};
use crate::cell_graph::{Port, Ports};
use crate::sync::{Mutex, PoisonError};
use gatestream::execute::team::SharedTeam;

/// Minimum bytes for each member: a smaller share costs less than waking the member.
const MIN_BYTES_PER_MEMBER: usize = 32 << 10;

/// The number of members that copy. Members that a small cell does not use stay asleep.
#[derive(Clone, Copy)]
pub(super) struct ParallelCopy<'a> {
    team: &'a SharedTeam,
    members: usize,
}

impl<'a> ParallelCopy<'a> {
    /// For `rows` rows of these ports; `None` if one thread suffices.
    pub fn of(team: &'a SharedTeam, ports: &[Port], rows: usize) -> Option<ParallelCopy<'a>> {
        let width: usize = ports.iter().map(Port::width).sum();
        let shares = rows * width * size_of::<f32>() / MIN_BYTES_PER_MEMBER;
        let members = team.threads().min(rows).min(shares);
        (members > 1).then_some(ParallelCopy { team, members })
    }

    /// Rows of a batch in each share except the last. Padding counts, although it is not copied,
    /// because its rows are not known before.
    pub fn share(self, batch: usize) -> usize {
        batch.div_ceil(self.members)
    }

    /// Runs `job` for each share on a separate member of the team.
    ///
    /// # Panics
    /// If the job panics, which is a bug of this crate.
    pub fn run<S: Send>(
        self,
        shares: impl IntoIterator<Item = S>,
        job: impl Fn(&mut S) + Sync,
    ) -> impl Iterator<Item = S> {
        // An uncontended lock gives each member exclusive access to its share.
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

/// The buffers of a batch, or a share of their rows.
pub(super) struct Buffers<'a, B, L, G> {
    pub ports: &'a Ports,
    /// `[rows, width]` each.
    pub inputs: &'a mut [B],
    /// `[rows]` for each input, if the cell gathers inputs: the rows that are not in its buffer.
    pub input_rows: &'a mut [L],
    /// `[rows, width]` each.
    pub states: &'a mut [B],
    /// `[rows]` buffers for each state, if the cell gathers all ports; `states` are empty then.
    pub written: &'a mut [G],
}

/// The buffers of all rows.
pub(super) type AllBuffers<'a> = Buffers<'a, Vec<f32>, Vec<Option<InputRow>>, Vec<Box<[f32]>>>;

impl<B, L, G> Buffers<'_, B, L, G>
where
    B: DerefMut<Target = [f32]>,
    L: DerefMut<Target = [Option<InputRow>]>,
    G: DerefMut<Target = [Box<[f32]>]>,
{
    /// Records or copies the inputs of a node for a row, and copies its states if they `come` from
    /// its request, whose `values` are locked. `false` if a value is missing.
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
        for (port, declared) in self.ports.inputs().iter().enumerate() {
            let source = values.graph().sources(node)[port];
            if let Some(input_rows) = self.input_rows.get_mut(port) {
                input_rows[row] = values.input_row(source, given);
                if input_rows[row].is_some() {
                    continue;
                }
                if declared.is_sequence() {
                    let mut copy: Box<[f32]> = vec![0.0; values.width(source)].into();
                    all_here &= values.take((source, given), &mut copy, false, pool);
                    input_rows[row] = Some(InputRow::Retained(copy));
                    continue;
                }
            }
            let to = row_of(&mut self.inputs[port], declared.width(), row);
            all_here &= values.take((source, given), to, false, pool);
        }
        if come {
            let as_successor = values.predecessor(node).is_some();
            for (port, declared) in self.ports.states().iter().enumerate() {
                let source = values.graph().sources(node)[self.ports.inputs().len() + port];
                let to = match self.written.get_mut(port) {
                    None => row_of(&mut self.states[port], declared.width(), row),
                    Some(rows) => match values.take_retained(source, as_successor) {
                        Some(kept) => {
                            pool.put(std::mem::replace(&mut rows[row], kept));
                            continue;
                        }
                        None => &mut rows[row],
                    },
                };
                all_here &= values.take((source, given), to, as_successor, pool);
            }
        }
        all_here
    }
}

fn row_of(buffer: &mut [f32], width: usize, row: usize) -> &mut [f32] {
    &mut buffer[row * width..][..width]
}

/// Divides buffers into shares of `rows` rows; [`Shares::cut`] returns the next.
pub(super) struct Shares<'a, T>(Vec<ChunksMut<'a, T>>);

impl<'a, T> Shares<'a, T> {
    /// For one buffer per port, with `width` values per row.
    pub fn new<'p>(
        buffers: &'a mut [Vec<T>],
        ports: impl IntoIterator<Item = &'p Port>,
        (rows, width): (usize, fn(&Port) -> usize),
    ) -> Shares<'a, T> {
        let both = buffers.iter_mut().zip(ports);
        // Of a port of width 0, or of sequences, all shares are empty.
        let chunks = both.map(|(buffer, port)| buffer.chunks_mut((rows * width(port)).max(1)));
        Shares(chunks.collect())
    }

    pub fn cut(&mut self) -> Vec<&'a mut [T]> {
        let chunks = self.0.iter_mut();
        chunks.map(|one| one.next().unwrap_or_default()).collect()
    }
}
