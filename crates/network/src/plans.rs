//! Plans that are kept, by the shapes of inputs.
//!
//! ```text
//! bound    the plans that are kept have at most so many bytes together; constants that several
//!          plans have count once
//! claims   a plan is kept for each caller that has used it. Beyond the bound, the caller with the
//!          most bytes loses the plan that it has not used for longest; callers that have not used
//!          a plan for ten minutes lose it before
//! making   a thread makes a plan without a lock: runs with other plans go on. Threads that need
//!          the same one wait for it; if it cannot be made, they have the same error
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::derived::PlanMemory;
use crate::plan::{Known, Plan};
use crate::{NetworkError, Tensor};

/// Bytes of kept plans, if the options name none.
pub(crate) const DEFAULT_BYTES: usize = 512 << 20;

/// A plan that a caller has not used for so long is not protected from others.
const IDLE: Duration = Duration::from_mins(10);

/// Most values of modes that plans are made for. Values that change more often, such as a count of
/// steps, would need a plan for each run.
const MAX_MODES: usize = 4;

/// So many runs that fail are tried with plans for their values, each.
const TRIES: u64 = 16;

/// The one for whom a network runs, such as a client of a server. Plans that a caller uses are kept
/// although others need many plans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Caller(pub u64);

/// The plans that a network keeps, and has made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlanStats {
    /// Plans that are kept.
    pub kept: usize,
    /// Their bytes, apart from the constants of the file; constants that several plans have count
    /// once.
    pub bytes: usize,
    /// Plans that were made.
    pub made: u64,
    /// Plans that were kept and are not any more.
    pub evicted: u64,
}

/// See the [module](self).
pub(crate) struct Plans {
    /// Most bytes.
    bound: usize,
    state: Mutex<State>,
    /// A plan was made, or could not be.
    made: Condvar,
}

/// The shapes of all inputs.
type Shapes = Vec<Vec<usize>>;

#[derive(Default)]
struct State {
    /// By the shapes of all inputs; several where values are part of the plans.
    kept: HashMap<Shapes, Vec<Kept>>,
    bytes: Bytes,
    making: HashMap<Shapes, Arc<OnceLock<Failure>>>,
    /// The values of modes that plans have been made for, each list once.
    modes: Vec<Vec<Known>>,
    /// Whether the values of all small integers are part of each plan: without them a run fails.
    need_values: bool,
    /// Number of runs that failed without, and counted.
    failed_runs: u64,
    made: u64,
    evicted: u64,
}

/// A plan that could not be made.
struct Failure {
    /// All that it may have known.
    known: Vec<Known>,
    why: String,
}

struct Kept {
    plan: Arc<Plan>,
    /// The callers that have used it, and when they did last.
    claims: HashMap<Caller, Instant>,
}

impl Plans {
    pub fn new(bound: usize) -> Plans {
        Plans {
            bound,
            state: Mutex::default(),
            made: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn stats(&self) -> PlanStats {
        let state = self.lock();
        PlanStats {
            kept: state.kept.values().map(Vec::len).sum(),
            bytes: state.bytes.all,
            made: state.made,
            evicted: state.evicted,
        }
    }

    /// Whether there are plans for these shapes.
    pub fn has(&self, shapes: &Shapes) -> bool {
        self.lock().kept.contains_key(shapes)
    }

    /// The plan for these inputs, if it is kept.
    pub fn find(&self, values: &[&Tensor], caller: Caller) -> Option<Arc<Plan>> {
        let shapes = shapes(values);
        let fits = |known: &[Known]| fits(known, values);
        self.lock().find(&shapes, fits, caller, Instant::now())
    }

    /// The plan that knows this, if it is kept.
    pub fn find_known(&self, known: &[Known], caller: Caller) -> Option<Arc<Plan>> {
        let shapes = known.iter().map(Known::shape).collect();
        let is_same = |of_plan: &[Known]| of_plan == known;
        self.lock().find(&shapes, is_same, caller, Instant::now())
    }

    /// The plan for these inputs, which `make` makes if it is not kept.
    pub fn get(
        &self,
        values: &[&Tensor],
        caller: Caller,
        make: impl FnOnce() -> Result<Plan, NetworkError>,
    ) -> Result<Arc<Plan>, NetworkError> {
        let shapes = shapes(values);
        let fits = |known: &[Known]| fits(known, values);
        let failure = Arc::default();
        let mut state = self.lock();
        loop {
            if let Some(plan) = state.find(&shapes, fits, caller, Instant::now()) {
                return Ok(plan);
            }
            let Some(other) = state.making.get(&shapes).cloned() else {
                state.making.insert(shapes.clone(), Arc::clone(&failure));
                break;
            };
            let waited = self.made.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
            if let Some(Failure { known, why }) = other.get()
                && fits(known)
            {
                let why = why.clone();
                return Err(NetworkError::Plan { why });
            }
        }
        drop(state);
        // Ends also if `make` fails.
        let _making = Making {
            plans: self,
            shapes: &shapes,
        };
        let made = make();
        if let Err(NetworkError::Plan { why }) = &made {
            let _ = failure.set(Failure {
                known: Known::of(values, |_| true),
                why: why.clone(),
            });
        }
        let plan = Arc::new(made?);
        let _evicted = self.lock().keep(&plan, shapes.clone(), caller, self.bound);
        Ok(plan)
    }

    /// Whether the values of all small integers are part of each plan.
    pub fn need_values(&self) -> bool {
        self.lock().need_values
    }

    /// Whether plans may be made for these values of modes: for the first few lists of them,
    /// however many shapes they come with.
    pub fn may_know(&self, modes: &[Known]) -> bool {
        let mut state = self.lock();
        let is_known = modes.is_empty() || state.modes.iter().any(|known| known == modes);
        let may = is_known || state.modes.len() < MAX_MODES;
        if may && !is_known {
            state.modes.push(modes.to_vec());
        }
        may
    }

    /// Whether a run that failed is tried with a plan for its values. Of runs that count, ever
    /// fewer are tried until one has succeeded, but some always: others may be of wrong inputs.
    pub fn tries_values(&self, counts: bool) -> bool {
        let mut state = self.lock();
        if state.need_values || !counts {
            return true;
        }
        state.failed_runs += 1;
        state.failed_runs <= TRIES || state.failed_runs.is_power_of_two()
    }

    /// Keeps a plan for values, with which a run succeeded that had failed without: all plans need
    /// values from now on.
    pub fn replace_by_values(&self, plan: Arc<Plan>, caller: Caller) {
        let shapes = plan.known.iter().map(Known::shape).collect();
        let mut state = self.lock();
        state.need_values = true;
        let of_shapes = state.remove(|kept| !kept.plan.known.iter().any(Known::is_value));
        let is_same = |known: &[Known]| known == plan.known;
        let found = state.find(&shapes, is_same, caller, Instant::now());
        let evicted = match found {
            Some(_) => Vec::new(),
            None => state.keep(&plan, shapes, caller, self.bound),
        };
        drop(state);
        drop((of_shapes, evicted));
    }
}

struct Making<'a> {
    plans: &'a Plans,
    shapes: &'a Shapes,
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        self.plans.lock().making.remove(self.shapes);
        self.plans.made.notify_all();
    }
}

fn fits(known: &[Known], values: &[&Tensor]) -> bool {
    let mut pairs = known.iter().zip(values);
    pairs.all(|(known, value)| known.fits(value))
}

fn shapes(values: &[&Tensor]) -> Shapes {
    values.iter().map(|value| value.shape().to_vec()).collect()
}

/// The bytes of plans together.
#[derive(Default)]
struct Bytes {
    all: usize,
    /// By the address of a constant that several plans may have: the plans that have it.
    users: HashMap<usize, usize>,
}

impl Bytes {
    fn add(&mut self, memory: &PlanMemory) {
        self.all += memory.own;
        for (address, bytes) in &memory.shared {
            let users = self.users.entry(*address).or_default();
            if *users == 0 {
                self.all += bytes;
            }
            *users += 1;
        }
    }

    fn remove(&mut self, memory: &PlanMemory) {
        self.all -= memory.own;
        for (address, bytes) in &memory.shared {
            let Some(users) = self.users.get_mut(address) else {
                continue;
            };
            *users -= 1;
            if *users == 0 {
                self.users.remove(address);
                self.all -= bytes;
            }
        }
    }

    /// Those of one plan, with its part of what several have.
    fn part(&self, memory: &PlanMemory) -> usize {
        let shared = memory.shared.iter();
        let shared = shared.map(|(address, bytes)| bytes / self.users.get(address).unwrap_or(&1));
        memory.own + shared.sum::<usize>()
    }
}

impl State {
    /// The first plan for these shapes that fits by what it knows.
    fn find(
        &mut self,
        shapes: &Shapes,
        fits: impl Fn(&[Known]) -> bool,
        caller: Caller,
        now: Instant,
    ) -> Option<Arc<Plan>> {
        let mut of_shapes = self.kept.get_mut(shapes)?.iter_mut();
        let kept = of_shapes.find(|kept| fits(&kept.plan.known))?;
        if kept.claims.insert(caller, now).is_none() {
            // Else those of all who ever came would stay.
            let is_idle = |last| now.saturating_duration_since(last) > IDLE;
            kept.claims.retain(|_, last| !is_idle(*last));
        }
        Some(Arc::clone(&kept.plan))
    }

    /// Keeps a plan that was made for a caller, and ends others beyond the bound.
    fn keep(
        &mut self,
        plan: &Arc<Plan>,
        shapes: Shapes,
        caller: Caller,
        bound: usize,
    ) -> Vec<Arc<Plan>> {
        let now = Instant::now();
        self.made += 1;
        self.bytes.add(&plan.memory);
        self.kept.entry(shapes).or_default().push(Kept {
            plan: Arc::clone(plan),
            claims: HashMap::from([(caller, now)]),
        });
        self.evict(bound, now)
    }

    /// Ends claims until the plans have at most so many bytes. The last plan stays.
    fn evict(&mut self, bound: usize, now: Instant) -> Vec<Arc<Plan>> {
        let mut evicted = Vec::new();
        while self.kept.values().map(Vec::len).sum::<usize>() > 1
            && self.bytes.all > bound
            && let Some(victim) = self.victim(now)
        {
            evicted.append(&mut self.remove(|kept| {
                kept.claims
                    .retain(|caller, last| (*caller, *last) != victim);
                kept.claims.is_empty()
            }));
        }
        evicted
    }

    /// Ends plans. They are to be dropped without the lock: that takes time.
    fn remove(&mut self, mut ends: impl FnMut(&mut Kept) -> bool) -> Vec<Arc<Plan>> {
        let mut removed = Vec::new();
        self.kept.retain(|_, of_shapes| {
            let ended = of_shapes.extract_if(.., &mut ends);
            removed.extend(ended.map(|kept| kept.plan));
            !of_shapes.is_empty()
        });
        { removed.iter() }.for_each(|plan| self.bytes.remove(&plan.memory));
        self.evicted += removed.len() as u64;
        removed
    }

    /// The claim that ends first.
    fn victim(&self, now: Instant) -> Option<(Caller, Instant)> {
        // Of each caller the oldest claim, and its bytes.
        let mut callers: HashMap<Caller, (Instant, usize)> = HashMap::new();
        for kept in self.kept.values().flatten() {
            let bytes = self.bytes.part(&kept.plan.memory);
            for (&caller, &last) in &kept.claims {
                let (oldest, sum) = callers.entry(caller).or_insert((last, 0));
                *oldest = last.min(*oldest);
                *sum += bytes;
            }
        }
        let oldest = callers.iter().min_by_key(|(_, (oldest, _))| *oldest)?;
        let is_idle = now.saturating_duration_since(oldest.1.0) > IDLE;
        // Of equal ones, the same each time.
        let heaviest = { callers.iter() }.max_by_key(|(caller, (_, bytes))| (*bytes, **caller))?;
        let (caller, (last, _)) = if is_idle { oldest } else { heaviest };
        Some((*caller, *last))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use tract_onnx::pb::{GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto};

    use super::*;
    use crate::ElementType;
    use crate::executors::Executors;
    use crate::recurrent::RegionOptions;
    use crate::source::constants::Constants;
    use crate::source::of_any_size;
    use crate::threads::Threads;

    /// The plan of `y = relu(x)`.
    fn plan(x: &Tensor) -> Plan {
        let output = ValueInfoProto {
            name: "y".into(),
            ..ValueInfoProto::default()
        };
        let model = ModelProto {
            ir_version: 8,
            opset_import: vec![OperatorSetIdProto {
                version: 17,
                ..OperatorSetIdProto::default()
            }],
            graph: Some(GraphProto {
                node: vec![NodeProto {
                    op_type: "Relu".into(),
                    input: vec!["x".into()],
                    output: vec!["y".into()],
                    ..NodeProto::default()
                }],
                input: vec![of_any_size("x", ElementType::F32, 1)],
                output: vec![output],
                ..GraphProto::default()
            }),
            ..ModelProto::default()
        };
        let threads = Arc::new(Threads::new(1));
        let executors = Executors::new(
            threads,
            RegionOptions::default(),
            Constants::default(),
            false,
        );
        let known = vec![Known::Shape(x.shape().to_vec())];
        Plan::new(&model, &executors, &["x"], known).unwrap()
    }

    fn x(steps: usize) -> Tensor {
        Tensor::new(&[steps], vec![0.5f32; steps]).unwrap()
    }

    fn get(plans: &Plans, steps: usize, caller: Caller) {
        let x = x(steps);
        plans.get(&[&x], caller, || Ok(plan(&x))).unwrap();
    }

    #[test]
    fn runs_with_a_plan_go_on_while_another_is_made() {
        let plans = Plans::new(usize::MAX);
        get(&plans, 1, Caller(0));
        let (begun, begins) = channel();
        let (go_on, goes_on) = channel();
        std::thread::scope(|scope| {
            let plans = &plans;
            let slow = scope.spawn(move || {
                let x = x(2);
                plans.get(&[&x], Caller(0), || {
                    begun.send(()).unwrap();
                    goes_on.recv().unwrap();
                    Ok(plan(&x))
                })
            });
            begins.recv().unwrap();
            // With the plan that is there, and one for other shapes.
            assert!(plans.find(&[&x(1)], Caller(0)).is_some());
            get(plans, 3, Caller(1));
            assert!(!slow.is_finished());
            go_on.send(()).unwrap();
            assert!(slow.join().unwrap().is_ok());
        });
        assert_eq!(plans.stats().made, 3);
    }

    #[test]
    fn a_plan_that_cannot_be_made_is_tried_again() {
        let plans = Plans::new(usize::MAX);
        let x = x(2);
        let failed = plans.get(&[&x], Caller(0), || {
            Err(NetworkError::Plan { why: String::new() })
        });
        assert!(failed.is_err());
        get(&plans, 2, Caller(0));
        let stats = plans.stats();
        assert_eq!((stats.made, stats.kept), (1, 1));
    }

    #[test]
    fn those_who_wait_for_a_plan_have_its_error() {
        const WAITING: usize = 3;
        let plans = Plans::new(usize::MAX);
        let all_wait = |plans: &Plans| {
            let state = plans.lock();
            // The state, the one who makes it, and those who wait.
            { state.making.values() }.all(|making| Arc::strong_count(making) == 2 + WAITING)
        };
        let x = x(2);
        let get = |make: &dyn Fn() -> Result<Plan, NetworkError>| {
            let got = plans.get(&[&x], Caller(0), make);
            got.err().unwrap().to_string()
        };
        std::thread::scope(|scope| {
            let (begun, begins) = channel();
            let get = &get;
            let plans = &plans;
            let first = scope.spawn(move || {
                get(&|| {
                    begun.send(()).unwrap();
                    while !all_wait(plans) {
                        std::thread::yield_now();
                    }
                    let why = "too short".into();
                    Err(NetworkError::Plan { why })
                })
            });
            begins.recv().unwrap();
            let second = || get(&|| panic!("it is made again"));
            let others = [(); WAITING].map(|()| scope.spawn(second));
            let why = first.join().unwrap();
            assert!(why.contains("too short"));
            for other in others {
                assert_eq!(other.join().unwrap(), why);
            }
        });
    }

    #[test]
    fn callers_that_stay_away_lose_their_plans_first() {
        let plans = Plans::new(usize::MAX);
        get(&plans, 1, Caller(1));
        for steps in 2..5 {
            get(&plans, steps, Caller(2));
        }
        let mut state = plans.lock();
        let now = Instant::now();
        let three = state.bytes.all - 1;
        let caller_1_has_a_plan = |state: &State| state.kept.contains_key(&vec![vec![1]]);
        state.evict(three, now);
        assert!(caller_1_has_a_plan(&state), "the other one has more");
        let two = state.bytes.all - 1;
        state.evict(two, now + IDLE + Duration::from_secs(1));
        assert!(!caller_1_has_a_plan(&state));
        assert_eq!((state.kept.len(), state.evicted), (2, 2));
    }

    #[test]
    fn a_constant_counts_while_a_plan_has_it() {
        let plans = Plans::new(usize::MAX);
        for (steps, shared) in [(1, vec![7, 8]), (2, vec![7]), (3, vec![7, 9])] {
            let x = x(steps);
            let mut made = plan(&x);
            made.memory = PlanMemory {
                own: 10 * steps,
                shared: shared.into_iter().map(|address| (address, 100)).collect(),
            };
            let got = plans.get(&[&x], Caller(steps as u64), || Ok(made));
            got.unwrap();
        }
        let mut state = plans.lock();
        assert_eq!(state.bytes.all, 60 + 300);
        for (steps, left) in [(3, 30 + 200), (2, 10 + 200), (1, 0)] {
            state.remove(|kept| kept.claims.contains_key(&Caller(steps)));
            assert_eq!(state.bytes.all, left);
        }
    }

    #[test]
    fn claims_end_when_others_come() {
        let plans = Plans::new(usize::MAX);
        (1..9).for_each(|caller| get(&plans, 1, Caller(caller)));
        let mut state = plans.lock();
        let later = Instant::now() + IDLE + Duration::from_secs(1);
        state.find(&vec![vec![1]], |_| true, Caller(9), later);
        let claims = &state.kept[&vec![vec![1]]][0].claims;
        assert_eq!(*claims, HashMap::from([(Caller(9), later)]));
    }

    #[test]
    fn a_plan_of_two_callers_stays_while_one_uses_it() {
        let plans = Plans::new(usize::MAX);
        get(&plans, 1, Caller(1));
        get(&plans, 1, Caller(2));
        for steps in 2..6 {
            get(&plans, steps, Caller(1));
        }
        let mut state = plans.lock();
        let bound = 2 * state.bytes.all / 5;
        state.evict(bound, Instant::now());
        assert!(state.kept.contains_key(&vec![vec![1]]));
        assert_eq!(state.kept.len(), 2);
    }
}
