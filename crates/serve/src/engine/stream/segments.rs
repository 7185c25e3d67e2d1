//! The state of a stream: one segment after the other, each a request.

use std::collections::VecDeque;
use std::mem::take;
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Instant;

use super::super::admission::Room;
use super::super::answer::AnswerSender;
use super::super::replies::Job;
use super::super::shared::Shared;
use super::super::{Reply, Request, RequestError, Response, SubmitError};
use super::{StepOptions, StreamError};
use crate::cell_graph::{
    Cell, CellId, DynamicGraph, Graph, Growth, NodeId, NodeOutputs, Port, Ports, Source,
};
use crate::scheduler::RequestKey;
use crate::sync::{Mutex, MutexGuard, PoisonError};
use crate::worker::ModelCells;
use gatestream::execute::team::ProcessMark;
use gatestream_scheduler::engine::EngineGrowth;

pub(super) type StepReply = AnswerSender<Vec<f32>>;

pub(crate) struct Inner {
    pub(super) shared: Weak<Shared>,
    pub(super) made_in: ProcessMark,
    pub(super) model: Arc<ModelCells>,
    pub(super) cell: CellId,
    pub(super) now: Mutex<Now>,
}

/// The progress of a stream. Locked by its user, and by a worker at the end of each step (with the
/// values of the segment locked before) and segment; never with the engine's lock held.
pub(super) struct Now {
    /// The segment that runs, if any.
    pub(super) running: Option<Segment>,
    /// Number of segments so far.
    segments: u64,
    /// Replies of the segment's steps that are not computed, oldest first.
    replies: VecDeque<StepReply>,
    /// Steps for the next segments.
    waiting: VecDeque<WaitingStep>,
    /// States after the last computed step; empty: zeros.
    pub(super) states: Vec<f32>,
    /// Set once no more steps will come: receives the states after the last one.
    pub(super) closing: Option<StepReply>,
    /// Boxed because it is larger than the rest.
    pub(super) ended: Option<Box<RequestError>>,
    /// The end of the last segment, or the opening.
    pub(super) idle_since: Instant,
    /// `None` once the stream has ended.
    room: Option<Room>,
}

#[derive(Clone, Copy)]
pub(super) struct Segment {
    number: u64,
    pub(super) key: RequestKey,
}

pub(super) struct WaitingStep {
    pub(super) inputs: Vec<f32>,
    pub(super) options: StepOptions,
    pub(super) reply: StepReply,
}

impl Inner {
    pub(super) fn lock(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cell(&self) -> &dyn Cell {
        let cell = self.model.cells.get(self.cell);
        &**cell.expect("checked when the stream was opened")
    }

    pub(super) fn ports(&self) -> &Ports {
        self.cell().ports()
    }

    pub(super) fn expect(
        &self,
        what: &'static str,
        expected: usize,
        found: usize,
    ) -> Result<(), StreamError> {
        if expected == found {
            Ok(())
        } else {
            Err(StreamError::Values {
                what,
                cell: self.cell().name().to_owned(),
                expected,
                found,
            })
        }
    }

    /// The states after the last computed step, one after the other.
    pub(super) fn states(&self, now: &Now) -> Vec<f32> {
        if now.states.is_empty() {
            vec![0.0; width(self.ports().states())]
        } else {
            now.states.clone()
        }
    }

    /// The waiting steps of the next segment as a request: up to the first one with another
    /// deadline.
    fn next_segment(self: &Arc<Self>, now: &Now) -> (Request, usize) {
        let deadline = now.waiting.front().and_then(|step| step.options.deadline);
        let steps = now.waiting.iter();
        let steps = steps.take_while(|step| step.options.deadline == deadline);
        let mut graph = Graph::new();
        let (inputs, states) = (self.ports().inputs(), self.ports().states());
        let mut before = if now.states.is_empty() {
            vec![Source::Zeros; states.len()]
        } else {
            give(&mut graph, states, &now.states)
        };
        let mut count = 0;
        for step in steps {
            let mut sources = give(&mut graph, inputs, &step.inputs);
            sources.append(&mut before);
            let node = graph.node(self.cell, &sources);
            graph.watch(node);
            before.extend((0..states.len()).map(|port| node.output(port)));
            count += 1;
        }
        let priorities = now.waiting.iter().map(|step| step.options.priority);
        let mut request = Request::new(graph).priority(priorities.max().unwrap_or(0));
        request.requirements.deadline = deadline;
        (request, count)
    }

    /// Begins the next segment. `continues`: its steps were accepted before.
    pub(super) fn begin_segment(
        self: &Arc<Self>,
        now: &mut Now,
        continues: bool,
    ) -> Result<(), StreamError> {
        let (Some(shared), Some(room)) = (self.shared.upgrade(), &now.room) else {
            return Err(RequestError::ShutDown.into());
        };
        let (request, steps) = self.next_segment(now);
        let number = now.segments + 1;
        let stream = Arc::clone(self);
        let mut request = request.grow(StepReplies { stream, number });
        request.requirements.stream = Some(room.position());
        request.requirements.continues = continues;
        // With the stream locked: accepting a request ends none, so no reply is sent here.
        let key = shared.accept(
            &self.model,
            request,
            Reply::Segment(Arc::clone(self), number),
        )?;
        now.segments = number;
        now.running = Some(Segment { number, key });
        let begun = now.waiting.drain(..steps);
        now.replies.extend(begun.map(|step| step.reply));
        Ok(())
    }

    /// The request of a segment has ended. Adds the tasks to wake to `jobs`.
    pub(in crate::engine) fn segment_ended(
        self: &Arc<Self>,
        number: u64,
        answer: Result<Response, RequestError>,
        jobs: &mut Vec<Job>,
    ) {
        let mut now = self.lock();
        now.running = now.running.filter(|segment| segment.number != number);
        now.idle_since = Instant::now();
        now.free_queues();
        if now.ended.is_some() {
            return;
        }
        let unanswered = match answer {
            // A step that is not computed changes no state.
            Err(RequestError::Late) => Unanswered {
                replies: now.take_replies(),
                error: RequestError::Late,
                room: None,
            },
            Err(error) => now.end(error),
            Ok(_) if now.waiting.is_empty() => Unanswered::none(),
            Ok(_) => match self.begin_segment(&mut now, true) {
                Ok(()) => return,
                Err(StreamError::Ended(error)) => now.end(error),
                Err(StreamError::Submit(SubmitError::Graph(error))) => now.end(error.into()),
                // A continuing segment needs no room: the engine has stopped.
                Err(_) => now.end(RequestError::ShutDown),
            },
        };
        let closed = self.closed(&mut now);
        drop(now);
        // Jobs are collected in reverse order.
        jobs.extend(closed.and_then(Closed::tell).map(Job::Wake));
        unanswered.tell(jobs);
    }

    /// Ends a stream that was closed and has no steps left.
    pub(super) fn closed(&self, now: &mut Now) -> Option<Closed> {
        if now.running.is_some() {
            return None;
        }
        let reply = now.closing.take()?;
        let states = self.states(now);
        let room = now.end(RequestError::Cancelled).room;
        Some(Closed {
            reply,
            states,
            room,
        })
    }
}

/// Number of values of these ports together.
pub(super) fn width(ports: &[Port]) -> usize {
    ports.iter().map(Port::width).sum()
}

/// Adds the values of these ports to a graph.
fn give(graph: &mut Graph, ports: &[Port], values: &[f32]) -> Vec<Source> {
    let mut rest = values;
    let sources = ports.iter().map(|port| {
        let (one, after) = rest.split_at(port.width());
        rest = after;
        graph.give(one)
    });
    sources.collect()
}

impl Now {
    pub(super) fn new(room: Room) -> Now {
        Now {
            running: None,
            segments: 0,
            replies: VecDeque::new(),
            waiting: VecDeque::new(),
            states: Vec::new(),
            closing: None,
            ended: None,
            idle_since: Instant::now(),
            room: Some(room),
        }
    }

    /// Number of steps that are not computed.
    pub(super) fn unanswered(&self) -> usize {
        self.replies.len() + self.waiting.len()
    }

    pub(super) fn add(&mut self, step: WaitingStep) {
        self.waiting.push_back(step);
    }

    /// Removes the step that was added last and was not accepted.
    pub(super) fn remove_last(&mut self) {
        self.waiting.pop_back();
    }

    /// Frees the memory of the queues if they are empty: most streams are idle most of the time.
    fn free_queues(&mut self) {
        if self.unanswered() == 0 {
            self.replies = VecDeque::new();
            self.waiting = VecDeque::new();
        }
    }

    fn take_replies(&mut self) -> Vec<StepReply> {
        let (replies, waiting) = (take(&mut self.replies), take(&mut self.waiting));
        let waiting = waiting.into_iter().map(|step| step.reply);
        replies.into_iter().chain(waiting).collect()
    }

    /// Ends the stream.
    #[must_use]
    pub(super) fn end(&mut self, error: RequestError) -> Unanswered {
        self.ended = Some(Box::new(error.clone()));
        let mut replies = self.take_replies();
        replies.extend(self.closing.take());
        Unanswered {
            replies,
            error,
            room: self.room.take(),
        }
    }
}

/// Replies of steps that will not be computed, and the room of the stream if it has ended.
pub(super) struct Unanswered {
    replies: Vec<StepReply>,
    error: RequestError,
    room: Option<Room>,
}

impl Unanswered {
    fn none() -> Unanswered {
        Unanswered {
            replies: Vec::new(),
            error: RequestError::Cancelled,
            room: None,
        }
    }

    /// Sends the replies; a user who receives one finds the room free. Adds the tasks to wake to
    /// `jobs`, the last one first.
    pub(super) fn tell(self, jobs: &mut Vec<Job>) {
        drop(self.room);
        let send = |reply: StepReply| reply.send(Err(self.error.clone()));
        jobs.extend(
            self.replies
                .into_iter()
                .rev()
                .filter_map(send)
                .map(Job::Wake),
        );
    }
}

/// The reply to [`close`](super::Stream::close).
pub(super) struct Closed {
    reply: StepReply,
    states: Vec<f32>,
    room: Option<Room>,
}

impl Closed {
    /// Sends the reply, after the room is free. Returns the waker of a waiting task.
    #[must_use]
    pub(super) fn tell(self) -> Option<Waker> {
        drop(self.room);
        self.reply.send(Ok(self.states))
    }
}

/// Sends the outputs of each step of a segment.
struct StepReplies {
    stream: Arc<Inner>,
    number: u64,
}

impl DynamicGraph for StepReplies {
    fn grow(&mut self, _: NodeId, outputs: NodeOutputs<'_>, more: &mut Growth<'_>) {
        let states = self.stream.ports().states().len();
        let mut now = self.stream.lock();
        // A segment may end while one of its steps is computed.
        if now
            .running
            .is_none_or(|running| running.number != self.number)
        {
            return;
        }
        now.states.clear();
        for port in 0..states {
            now.states.extend_from_slice(outputs.port(port));
        }
        if let Some(reply) = now.replies.pop_front() {
            let outputs = (states..outputs.ports()).flat_map(|port| outputs.port(port));
            let outputs = outputs.copied().collect();
            drop(now);
            if let Some(waker) = reply.send(Ok(outputs)) {
                more.defer(move || waker.wake());
            }
        }
    }
}
