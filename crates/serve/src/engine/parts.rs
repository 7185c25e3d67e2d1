//! Parts of a response, sent while the request is computed.
//!
//! ```text
//! grow         its parts: to the queue of the request, with the values of the request locked, so
//!              in the order of the calls
//! end          the answer: to the same queue, as the last item
//! job          takes the items one after the other and calls the user, with nothing locked
//! ```
//!
//! **Two threads that deliver** (an engine without a reply thread): the second leaves its items to
//! the first, which looks at the queue again after each call. So does a call that ends its own
//! request. `Engine::drain` may return before the first is done with them.

use std::collections::VecDeque;
use std::sync::Arc;

use super::replies::Job;
use super::{Reply, Request, RequestError, Response};
use crate::cell_graph::{DynamicGraph, Growth, NodeId, NodeOutputs};
use crate::sync::{Mutex, MutexGuard, PoisonError};
use gatestream::execute::team::catch_panic;
use gatestream_scheduler::engine::EngineGrowth;

/// A user's function for parts.
pub(super) type PartCallback = Box<dyn FnMut(&[f32]) + Send>;

/// The queue of a request.
pub(crate) struct Parts(Mutex<Queue>);

struct Queue {
    items: VecDeque<Item>,
    /// `None` while it is called, and after a panic.
    call: Option<PartCallback>,
    delivering: bool,
}

enum Item {
    Part(Vec<f32>),
    End(Reply, Result<Response, RequestError>),
}

impl Parts {
    fn new(call: PartCallback) -> Arc<Parts> {
        Arc::new(Parts(Mutex::new(Queue {
            items: VecDeque::new(),
            call: Some(call),
            delivering: false,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds parts. Returns whether they need a job that delivers them.
    fn add(&self, parts: Vec<Vec<f32>>) -> bool {
        let mut queue = self.lock();
        let was_empty = queue.items.is_empty();
        queue.items.extend(parts.into_iter().map(Item::Part));
        was_empty && !queue.items.is_empty()
    }

    /// Adds the end; returns the job that delivers it.
    pub(super) fn end(
        self: Arc<Self>,
        reply: Reply,
        answer: Result<Response, RequestError>,
    ) -> Job {
        self.lock().items.push_back(Item::End(reply, answer));
        Job::Deferred(Box::new(move || self.deliver()))
    }

    /// Delivers all items, unless another call does so.
    fn deliver(&self) {
        let mut queue = self.lock();
        if std::mem::replace(&mut queue.delivering, true) {
            return;
        }
        let mut call = queue.call.take();
        while let Some(item) = queue.items.pop_front() {
            drop(queue);
            match item {
                Item::Part(values) => {
                    let called = catch_panic(|| {
                        if let Some(call) = &mut call {
                            call(&values);
                        }
                    });
                    if called.is_err() {
                        drop_caught(call.take());
                    }
                }
                Item::End(reply, answer) => {
                    drop_caught(call.take());
                    let mut jobs = Vec::new();
                    reply.send(answer, &mut jobs);
                    jobs.into_iter().for_each(Job::run_alone);
                }
            }
            queue = self.lock();
        }
        queue.call = call;
        queue.delivering = false;
    }
}

/// The drop of a user's function may panic.
fn drop_caught(call: Option<PartCallback>) {
    let _ = catch_panic(|| drop(call));
}

/// Sends the parts of a growing graph.
struct Sending {
    grow: Box<dyn DynamicGraph>,
    parts: Arc<Parts>,
}

impl DynamicGraph for Sending {
    fn grow(&mut self, node: NodeId, outputs: NodeOutputs<'_>, more: &mut Growth<'_>) {
        more.collect_parts();
        self.grow.grow(node, outputs, more);
        if self.parts.add(more.take_parts()) {
            let parts = Arc::clone(&self.parts);
            more.defer(move || parts.deliver());
        }
    }

    fn reads(&self, port: usize) -> bool {
        self.grow.reads(port)
    }
}

impl Request {
    /// Lets the growing graph send its parts, and the reply come after them.
    pub(super) fn with_parts(mut self, reply: Reply) -> (Request, Reply) {
        let Some(call) = self.on_part.take() else {
            return (self, reply);
        };
        let parts = Parts::new(call);
        let sending = |grow| -> Box<dyn DynamicGraph> {
            Box::new(Sending {
                grow,
                parts: Arc::clone(&parts),
            })
        };
        self.grow = self.grow.map(sending);
        (self, Reply::AfterParts(parts, Box::new(reply)))
    }
}
