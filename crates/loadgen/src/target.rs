//! The interface between the generator and a server under load.

use std::time::Duration;

use crate::record::{CellRuns, Outcome};
use crate::workload::RequestSpec;

/// A server under load. Dropping it shuts it down or closes the connection.
///
/// The driver calls all methods from one thread. A target responds on its own threads or on the
/// caller's: it calls [`Completion::report`] once for each request.
///
/// A target for another protocol implements this trait; nothing else of the crate changes.
///
/// # Examples
/// A target that answers each request at once:
///
/// ```
/// use std::time::Duration;
///
/// use gatestream_loadgen::drive::{Run, WallClock, drive};
/// use gatestream_loadgen::record::Outcome;
/// use gatestream_loadgen::target::{About, Completion, Target};
/// use gatestream_loadgen::workload::{Arrivals, Lengths, RequestShape, RequestSpec, Workload};
///
/// struct Echo;
///
/// impl Target for Echo {
///     type Prepared = usize;
///
///     fn about(&self) -> About {
///         About::new("echo")
///     }
///
///     fn prepare(&self, request: &RequestSpec) -> usize {
///         match request.shape {
///             RequestShape::Chain { steps } => steps,
///             _ => panic!("the workload has chains only"),
///         }
///     }
///
///     fn submit(&self, steps: usize, _: Option<Duration>, completion: Completion) {
///         assert_eq!(steps, 24);
///         completion.report(Outcome::Answered(None));
///     }
/// }
///
/// let arrivals = Arrivals::Poisson { rate: 1000.0 };
/// let workload = Workload::Chains(Lengths::Fixed(24));
/// let run = Run {
///     requests: 20,
///     ..Run::new(&arrivals, &workload)
/// };
/// let recording = drive(&Echo, &WallClock::new(), &run);
/// assert_eq!((recording.due, recording.unanswered()), (20, 0));
/// println!("p99: {} ms", recording.latency.quantile(0.99));
/// ```
pub trait Target {
    /// A request in the form in which it is submitted.
    type Prepared;

    /// Name and limits of the target.
    fn about(&self) -> About;

    /// Makes a request with its values. Called before the request is due, because a client does
    /// this work before it sends.
    fn prepare(&self, request: &RequestSpec) -> Self::Prepared;

    /// Submits a request. Returns without waiting for the answer. `time_left`: from now to the
    /// deadline of the request, if it has one.
    fn submit(&self, request: Self::Prepared, time_left: Option<Duration>, completion: Completion);

    /// Counters of the batches executed so far, if the target reports them.
    fn cells(&self) -> CellRuns {
        CellRuns::new()
    }
}

/// The description of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// Name in reports.
    pub name: String,
    /// The shortest time from the first request to the start of measurement. A run whose warm-up
    /// is shorter is lengthened.
    pub warm_up: Duration,
    /// Number of requests that may be answered together. A backlog of one such group is no sign
    /// of overload.
    pub capacity: usize,
}

impl About {
    /// A target that needs no warm-up and answers requests one at a time.
    pub fn new(name: impl Into<String>) -> About {
        About {
            name: name.into(),
            warm_up: Duration::ZERO,
            capacity: 1,
        }
    }
}

/// Reports the end of one request. The driver notes the time of the call.
///
/// A completion that is dropped without a report leaves its request in flight; the driver counts
/// it as [`ErrorKind::Unfinished`](crate::record::ErrorKind::Unfinished).
pub struct Completion(Box<dyn FnOnce(Outcome) + Send>);

impl Completion {
    /// Calls `report` with the outcome.
    pub fn new(report: impl FnOnce(Outcome) + Send + 'static) -> Completion {
        Completion(Box::new(report))
    }

    /// Ends the request. May be called on any thread; does not block.
    pub fn report(self, outcome: Outcome) {
        (self.0)(outcome);
    }
}
