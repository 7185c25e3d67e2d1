//! Phased schedules by brute force: sets of products as bit masks, tried in all ways.
//!
//! Knows a graph by its edges only, and nothing of the crate's schedules.

use std::collections::{BTreeSet, HashMap};

use gatestream::graph::{Graph, Node, Product};
use gatestream::schedule::{Phase, PhasedSchedule};

/// The products and edges of a graph.
pub struct Dag {
    pub nodes: Vec<Node>,
    pub steps: usize,
    /// What each product needs.
    needs: Vec<u32>,
    /// The products with the state.
    pub state: u32,
    /// The same product one step later.
    later: Vec<Option<usize>>,
}

impl Dag {
    pub fn of(graph: &Graph) -> Dag {
        let nodes: Vec<Node> = graph.nodes().collect();
        assert!(nodes.len() <= 32);
        let place = |node: &Node| nodes.iter().position(|other| other == node);
        let needs = nodes.iter().map(|node| {
            let needed = graph.predecessors(node);
            needed.fold(0, |mask, node| {
                mask | 1 << place(&node).expect("a node of the graph")
            })
        });
        let state = (0..nodes.len()).filter(|&node| nodes[node].product.needs_state());
        let later = nodes.iter().map(|node| {
            nodes.iter().position(|other| {
                (other.direction, other.product) == (node.direction, node.product)
                    && other.taken == node.taken + 1
            })
        });
        Dag {
            needs: needs.collect(),
            state: state.fold(0, |mask, node| mask | 1 << node),
            later: later.collect(),
            steps: graph.steps(),
            nodes,
        }
    }

    pub fn all(&self) -> u32 {
        ((1_u64 << self.nodes.len()) - 1) as u32
    }

    /// What may come next when `done` is done.
    pub fn ready(&self, done: u32) -> u32 {
        let waiting = bits(self.all() & !done);
        let ready = waiting.filter(|&node| self.needs[node] & !done == 0);
        ready.fold(0, |mask, node| mask | 1 << node)
    }

    pub fn depends(&self, before: u32, after: u32) -> bool {
        bits(after).any(|node| self.needs[node] & before != 0)
    }

    fn timed(&self, phase: u32) -> bool {
        phase & self.state != 0
    }

    /// Rules 2 and 3 for two neighbours; both hold of a schedule when they hold of all its pairs.
    pub fn neighbours(&self, before: u32, after: u32) -> bool {
        self.dependent(before, after) && (!self.timed(before) || self.timed(after))
    }

    /// Rule 2.
    pub fn dependent(&self, before: u32, after: u32) -> bool {
        self.timed(before) != self.timed(after) || self.depends(before, after)
    }

    /// Whether each gate's product with the input comes no later than that with the state.
    pub fn in_order(&self, phases: &[u32]) -> bool {
        let phase_of = |node: usize| phases.iter().position(|phase| phase & 1 << node != 0);
        let inputs = (0..self.nodes.len()).filter(|&node| self.state & 1 << node == 0);
        let mut gates = inputs.map(|input| {
            let Product::Input(gate) = self.nodes[input].product else {
                panic!("a product without the state");
            };
            let product = Product::Recurrent(gate);
            let partner = Node {
                product,
                ..self.nodes[input]
            };
            let partner = self.nodes.iter().position(|node| *node == partner);
            (input, partner.expect("a gate has two products"))
        });
        gates.all(|(input, recurrent)| phase_of(input) <= phase_of(recurrent))
    }

    pub fn move_later(&self, phase: u32) -> Option<u32> {
        bits(phase).try_fold(0, |mask, node| Some(mask | 1 << self.later[node]?))
    }

    /// Rule 1, literally: as many groups as steps, each the one before moved by a step.
    pub fn symmetric(&self, phases: &[u32]) -> bool {
        let timed = || phases.iter().copied().filter(|phase| self.timed(*phase));
        let number = timed().count();
        let group = number / self.steps;
        let mut pairs = timed().zip(timed().skip(group));
        number.is_multiple_of(self.steps)
            && pairs.all(|(phase, next)| self.move_later(phase) == Some(next))
    }

    /// Calls `found` for every schedule all of whose neighbours are `allowed`.
    pub fn each(&self, allowed: &dyn Fn(&Dag, u32, u32) -> bool, found: &mut dyn FnMut(&[u32])) {
        self.extend(&mut Vec::new(), 0, allowed, found);
    }

    fn extend(
        &self,
        phases: &mut Vec<u32>,
        done: u32,
        allowed: &dyn Fn(&Dag, u32, u32) -> bool,
        found: &mut dyn FnMut(&[u32]),
    ) {
        if done == self.all() {
            return found(phases);
        }
        for phase in subsets(self.ready(done)) {
            if { phases.last() }.is_none_or(|before| allowed(self, *before, phase)) {
                phases.push(phase);
                self.extend(phases, done | phase, allowed, found);
                phases.pop();
            }
        }
    }

    /// The number of all schedules, by the set of what is done.
    pub fn number(&self) -> u128 {
        fn from(dag: &Dag, done: u32, known: &mut HashMap<u32, u128>) -> u128 {
            if done == dag.all() {
                return 1;
            }
            if let Some(number) = known.get(&done) {
                return *number;
            }
            let phases = subsets(dag.ready(done));
            let number = phases.map(|phase| from(dag, done | phase, known)).sum();
            known.insert(done, number);
            number
        }
        from(self, 0, &mut HashMap::new())
    }

    /// Every sequence of time-dependent phases that rule 1 allows: any ordered, disjoint sets of
    /// products that all have a counterpart one step later, and one more, to the last step.
    pub fn symmetric_lines(&self) -> Vec<Vec<u32>> {
        let mut lines = Vec::new();
        self.grow_line(&mut Vec::new(), false, &mut lines);
        lines
    }

    /// All that the three rules leave: one time-independent phase, if any, and then a line of
    /// phases that each need the one before.
    pub fn kept(&self) -> BTreeSet<Vec<u32>> {
        let mut lines = Vec::new();
        self.grow_line(&mut Vec::new(), true, &mut lines);
        let kept = lines.into_iter().map(|line| {
            let used = line.iter().fold(0, |mask, phase| mask | phase);
            let ahead = Some(self.all() & !used).filter(|ahead| *ahead != 0);
            ahead.into_iter().chain(line).collect()
        });
        kept.collect()
    }

    fn grow_line(&self, first: &mut Vec<u32>, dependent: bool, lines: &mut Vec<Vec<u32>>) {
        let used = first.iter().fold(0, |mask, phase| mask | phase);
        let movable = (0..self.nodes.len()).filter(|&node| {
            let last = (1..self.steps).try_fold(node, |node, _| self.later[node]);
            used & 1 << node == 0 && last.is_some()
        });
        let movable = movable.fold(0, |mask, node| mask | 1 << node);
        if movable & self.state == 0 {
            let mut line = first.clone();
            let mut group = first.clone();
            for _ in 1..self.steps {
                let moved = group.iter().map(|phase| self.move_later(*phase));
                group = moved.collect::<Option<_>>().expect("all can be moved");
                line.extend(&group);
            }
            let mut pairs = line.windows(2);
            let kept = !dependent || pairs.all(|pair| self.depends(pair[0], pair[1]));
            if kept && self.line_is_possible(&line) {
                lines.push(line);
            }
            return;
        }
        for phase in subsets(movable).filter(|phase| self.timed(*phase)) {
            // What it needs of its own step must have come, or be left to time-independent phases.
            let states = used & self.state;
            let needs = bits(phase).fold(0, |mask, node| mask | self.needs[node]);
            let lonely = { first.last() }.is_some_and(|before| needs & before == 0);
            if needs & self.state & !states == 0 && !(dependent && lonely) {
                first.push(phase);
                self.grow_line(first, dependent, lines);
                first.pop();
            }
        }
    }

    /// Whether each phase comes after what it needs, all that is in no phase being done.
    fn line_is_possible(&self, line: &[u32]) -> bool {
        let mut done = self.all() & !line.iter().fold(0, |mask, phase| mask | phase);
        line.iter().all(|phase| {
            let possible = bits(*phase).all(|node| self.needs[node] & !done == 0);
            done |= phase;
            possible
        })
    }

    /// The schedules that have these time-dependent phases, by rule 2 or not: their number.
    pub fn number_with_line(&self, line: &[u32], dependent: bool) -> u128 {
        /// Whether the phase before was time-independent is all that rule 2 asks of the past.
        struct Search<'a> {
            dag: &'a Dag,
            line: &'a [u32],
            dependent: bool,
            known: HashMap<(usize, u32, bool), u128>,
        }
        impl Search<'_> {
            fn from(&mut self, at: usize, free: u32, after_free: bool) -> u128 {
                if at == self.line.len() && free == 0 {
                    return 1;
                }
                if let Some(number) = self.known.get(&(at, free, after_free)) {
                    return *number;
                }
                let mut number = 0;
                if !(self.dependent && after_free) {
                    for phase in subsets(free) {
                        number += self.from(at, free & !phase, true);
                    }
                }
                if let Some(&phase) = self.line.get(at) {
                    let to_come = self.line[at..]
                        .iter()
                        .fold(free, |mask, phase| mask | phase);
                    let possible = bits(phase).all(|node| self.dag.needs[node] & to_come == 0);
                    let lonely = at > 0 && !self.dag.depends(self.line[at - 1], phase);
                    if possible && !(self.dependent && lonely && !after_free) {
                        number += self.from(at + 1, free, false);
                    }
                }
                self.known.insert((at, free, after_free), number);
                number
            }
        }
        let used = line.iter().fold(0, |mask, phase| mask | phase);
        let mut search = Search {
            dag: self,
            line,
            dependent,
            known: HashMap::new(),
        };
        search.from(0, self.all() & !used, false)
    }

    /// Calls `found` for every schedule with these time-dependent phases.
    pub fn each_with_line(&self, line: &[u32], found: &mut dyn FnMut(&[u32])) {
        let used = line.iter().fold(0, |mask, phase| mask | phase);
        self.fill(&mut Vec::new(), 0, line, self.all() & !used, found);
    }

    fn fill(
        &self,
        phases: &mut Vec<u32>,
        done: u32,
        line: &[u32],
        free: u32,
        found: &mut dyn FnMut(&[u32]),
    ) {
        if line.is_empty() && free == 0 {
            return found(phases);
        }
        for phase in subsets(free) {
            phases.push(phase);
            self.fill(phases, done | phase, line, free & !phase, found);
            phases.pop();
        }
        if let Some((&phase, rest)) = line.split_first()
            && bits(phase).all(|node| self.needs[node] & !done == 0)
        {
            phases.push(phase);
            self.fill(phases, done | phase, rest, free, found);
            phases.pop();
        }
    }

    /// One of them, drawn by taking at every turn either the next phase of the line, if it is
    /// possible, or some of what is free.
    pub fn at_random(&self, line: &[u32], random: &mut fastrand::Rng) -> Vec<u32> {
        let used = line.iter().fold(0, |mask, phase| mask | phase);
        let (mut free, mut line, mut phases) = (self.all() & !used, line, Vec::new());
        while free != 0 || !line.is_empty() {
            let done = phases.iter().fold(0, |mask, phase| mask | phase);
            let next = line.first().copied();
            let next = next.filter(|phase| bits(*phase).all(|node| self.needs[node] & !done == 0));
            let some = Some(random.u32(..) & free).filter(|some| *some != 0);
            match next.filter(|_| some.is_none() || random.bool()) {
                Some(phase) => {
                    phases.push(phase);
                    line = &line[1..];
                }
                None => {
                    let some = some.unwrap_or(free);
                    phases.extend(Some(some).filter(|some| *some != 0));
                    free &= !some;
                }
            }
        }
        phases
    }

    pub fn phased(&self, phases: &[u32]) -> PhasedSchedule {
        let nodes = |phase: &u32| bits(*phase).map(|node| self.nodes[node]).collect();
        PhasedSchedule::new(
            phases
                .iter()
                .map(|phase| Phase::new(nodes(phase)))
                .collect(),
        )
    }

    pub fn masks(&self, schedule: &PhasedSchedule) -> Vec<u32> {
        let place = |node: &Node| self.nodes.iter().position(|other| other == node);
        let mask = |phase: &Phase| {
            let nodes = phase.nodes().iter();
            nodes.fold(0, |mask, node| {
                mask | 1 << place(node).expect("a node of the graph")
            })
        };
        schedule.phases().iter().map(mask).collect()
    }
}

pub fn bits(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = mask.trailing_zeros();
        mask &= mask.wrapping_sub(1);
        (bit < 32).then_some(bit as usize)
    })
}

/// All subsets but the empty one.
pub fn subsets(of: u32) -> impl Iterator<Item = u32> {
    let mut next = Some(of).filter(|of| *of != 0);
    std::iter::from_fn(move || {
        let subset = next?;
        next = Some((subset - 1) & of).filter(|subset| *subset != 0);
        Some(subset)
    })
}
