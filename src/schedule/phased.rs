//! The phased schedule of a graph: every product, in an order of phases.

use std::collections::BTreeMap;

use crate::graph::{Graph, Node, Operand, Product};

use super::{DirectionSchedule, PhasePlacement};

/// Products that are executed at once: none of them needs another.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Phase {
    nodes: Vec<Node>,
}

impl Phase {
    /// A phase of `nodes`, in any order.
    pub fn new(mut nodes: Vec<Node>) -> Phase {
        nodes.sort_unstable();
        Phase { nodes }
    }

    /// Its products, sorted.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Whether a product in it needs a state, so that it must wait for the recurrence.
    pub fn is_time_dependent(&self) -> bool {
        self.nodes.iter().any(|node| node.product.needs_state())
    }

    /// Whether a product in it needs a product of `earlier`.
    pub fn depends_on(&self, earlier: &Phase, graph: &Graph) -> bool {
        let mut needed = self.nodes.iter().flat_map(|node| graph.predecessors(node));
        needed.any(|node| earlier.nodes.binary_search(&node).is_ok())
    }

    /// Its products, those with the same operand made one: the weights of several gates (of both
    /// directions, for input products) side by side, the steps below one another.
    ///
    /// Gates whose steps differ stay apart, so that each fused product is a full block.
    pub fn fused(&self, graph: &Graph) -> Vec<Fused> {
        // Steps of each block of weights, then the blocks with equal steps. Both directions have
        // the same input, but each its own state.
        let mut steps = BTreeMap::<_, Vec<usize>>::new();
        for node in &self.nodes {
            let operand = graph.operand(node);
            let block = (node.direction, node.product);
            let of_step = steps.entry((node.layer, operand, block)).or_default();
            of_step.push(node.step);
        }
        let mut fused = BTreeMap::<_, Vec<(usize, Product)>>::new();
        for ((layer, operand, block), mut steps) in steps {
            steps.sort_unstable();
            let owner = (operand != Operand::INPUT).then_some(block.0);
            let same = fused.entry((layer, operand, owner, steps)).or_default();
            same.push(block);
        }
        let fused = fused.into_iter();
        let fused = fused.map(|((layer, operand, _, steps), blocks)| Fused {
            layer,
            operand,
            steps,
            blocks,
        });
        fused.collect()
    }
}

/// Several products with one operand, executed as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fused {
    /// The layer.
    pub layer: usize,
    /// What is multiplied.
    pub operand: Operand,
    /// The steps of the sequence whose operands are stacked, ascending.
    pub steps: Vec<usize>,
    /// The blocks of weights side by side: direction and product.
    pub blocks: Vec<(usize, Product)>,
}

/// Every product of a graph in one of an ordered list of phases; a phase begins when the one
/// before is complete (deepcpu section 5.1).
///
/// ```
/// use gatestream::graph::Graph;
/// use gatestream::model::Lstm;
/// use gatestream::schedule::{DirectionSchedule, PhasedSchedule};
///
/// let model = Lstm::new(8, 16).random(1)?;
/// let graph = Graph::new(&model, 10)?;
/// let ahead = DirectionSchedule::all_ahead(&model.layers()[0].directions()[0]);
/// let schedule = PhasedSchedule::of(&graph, &[vec![ahead]])?;
/// assert_eq!(schedule.phases().len(), 11);
/// assert_eq!(schedule.check(&graph), Ok(()));
/// // All gates of all steps are one product, and so are the four recurrent ones of a step.
/// assert_eq!(schedule.phases()[0].fused(&graph).len(), 1);
/// assert_eq!(schedule.phases()[1].fused(&graph)[0].blocks.len(), 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PhasedSchedule {
    phases: Vec<Phase>,
}

/// Why a list of phases is not a schedule of a graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PhasedError {
    /// A phase with nothing in it.
    #[error("phase {phase} is empty; leave it out")]
    Empty {
        /// The phase, from 0.
        phase: usize,
    },
    /// A product that the graph does not have.
    #[error("phase {phase} has a product that the graph lacks: {node:?}")]
    Unknown {
        /// The phase, from 0.
        phase: usize,
        /// The product.
        node: Node,
    },
    /// A product in two places.
    #[error("{label} is executed twice, the second time in phase {phase}")]
    Twice {
        /// The later phase, from 0.
        phase: usize,
        /// The product.
        label: String,
    },
    /// A product that is never executed.
    #[error("{label} is in no phase")]
    Missing {
        /// The product.
        label: String,
    },
    /// A product that is not after what it needs.
    #[error("{label} is in phase {phase}, but {needed}, which it needs, is not in an earlier one")]
    TooEarly {
        /// The phase, from 0.
        phase: usize,
        /// The product.
        label: String,
        /// What it needs.
        needed: String,
    },
    /// Schedules of directions that do not fit the graph's layers and directions.
    #[error("the graph's layers have {expected:?} directions, the schedules are for {found:?}")]
    Shape {
        /// Directions of each layer of the graph.
        expected: Vec<usize>,
        /// Directions of each layer of the schedules.
        found: Vec<usize>,
    },
    /// A direction's schedule with another number of gates than the graph's direction.
    #[error(
        "the schedule {schedule} of direction {direction} of layer {layer} has another number of \
         gates than the graph's cell"
    )]
    Gates {
        /// The layer.
        layer: usize,
        /// The direction.
        direction: usize,
        /// The schedule.
        schedule: DirectionSchedule,
    },
}

impl PhasedSchedule {
    /// A schedule of these phases; [`PhasedSchedule::check`] says whether it is one.
    pub fn new(phases: Vec<Phase>) -> PhasedSchedule {
        PhasedSchedule { phases }
    }

    /// What `schedules` (one per direction of each layer) mean for all steps of `graph`: layer
    /// after layer, in each the products ahead and then the steps in the order they are taken. The
    /// directions of a layer run side by side: phase `k` of a step of one together with phase `k`
    /// of the step that the other has come to.
    ///
    /// # Errors
    /// [`PhasedError::Shape`] and [`PhasedError::Gates`]. An order that contradicts the graph is
    /// found by [`PhasedSchedule::check`].
    pub fn of(
        graph: &Graph,
        schedules: &[Vec<DirectionSchedule>],
    ) -> Result<PhasedSchedule, PhasedError> {
        let expected: Vec<_> = (0..graph.layers()).map(|l| graph.directions(l)).collect();
        let found: Vec<_> = schedules.iter().map(Vec::len).collect();
        if expected != found {
            return Err(PhasedError::Shape { expected, found });
        }
        let mut phases = Vec::new();
        for (layer, directions) in schedules.iter().enumerate() {
            let mut ahead = Vec::new();
            // By step taken and phase of the step.
            let mut steps = vec![Vec::<Vec<Node>>::new(); graph.steps()];
            for (direction, schedule) in directions.iter().enumerate() {
                let gates = graph.gates(layer, direction);
                if schedule.input.len() != gates || schedule.recurrent.len() != gates {
                    return Err(PhasedError::Gates {
                        layer,
                        direction,
                        schedule: schedule.clone(),
                    });
                }
                let places = places(schedule);
                for (taken, step) in steps.iter_mut().enumerate() {
                    for &(product, place) in &places {
                        let node = graph.node(layer, direction, taken, product);
                        match place {
                            PhasePlacement::Ahead => ahead.extend(node),
                            PhasePlacement::Phase(phase) => {
                                let phase = usize::from(phase);
                                step.resize(step.len().max(phase + 1), Vec::new());
                                step[phase].extend(node);
                            }
                        }
                    }
                }
            }
            let of_layer = std::iter::once(ahead).chain(steps.into_iter().flatten());
            phases.extend(of_layer.filter(|nodes| !nodes.is_empty()).map(Phase::new));
        }
        Ok(PhasedSchedule::new(phases))
    }

    /// The phases, first to last.
    pub fn phases(&self) -> &[Phase] {
        &self.phases
    }

    /// Whether every product of `graph` is executed once, after all that it needs.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self, graph: &Graph) -> Result<(), PhasedError> {
        let mut phase_of: Vec<Option<usize>> = graph.nodes().map(|_| None).collect();
        for (phase, nodes) in self.phases.iter().map(Phase::nodes).enumerate() {
            if nodes.is_empty() {
                return Err(PhasedError::Empty { phase });
            }
            for &node in nodes {
                let unknown = PhasedError::Unknown { phase, node };
                let index = graph.index(&node).ok_or(unknown)?;
                if phase_of[index].replace(phase).is_some() {
                    let label = graph.label(&node);
                    return Err(PhasedError::Twice { phase, label });
                }
            }
        }
        for (node, phase) in graph.nodes().zip(&phase_of) {
            let label = || graph.label(&node);
            let phase = phase.ok_or_else(|| PhasedError::Missing { label: label() })?;
            for needed in graph.predecessors(&node) {
                let before = graph.index(&needed).and_then(|index| phase_of[index]);
                if before.is_none_or(|before| before >= phase) {
                    return Err(PhasedError::TooEarly {
                        phase,
                        label: label(),
                        needed: graph.label(&needed),
                    });
                }
            }
        }
        Ok(())
    }

    /// Rule 1: the time-dependent phases are as many equal groups as there are steps, each the one
    /// before with every product moved by one step taken. (No product of another step can be among
    /// them: moved by all steps but one, it would have left the sequence.)
    pub fn is_symmetric(&self, graph: &Graph) -> bool {
        let phases: Vec<_> = { self.phases.iter() }
            .filter(|phase| phase.is_time_dependent())
            .collect();
        let steps = graph.steps();
        if steps == 0 || !phases.len().is_multiple_of(steps) {
            return phases.is_empty();
        }
        let moved = |phase: &Phase| -> Option<Phase> {
            let nodes = phase.nodes.iter();
            let nodes = nodes
                .map(|node| graph.node(node.layer, node.direction, node.taken + 1, node.product));
            nodes.collect::<Option<Vec<_>>>().map(Phase::new)
        };
        let group = phases.len() / steps;
        let mut pairs = phases.iter().zip(phases.iter().skip(group));
        pairs.all(|(phase, next)| moved(phase).as_ref() == Some(*next))
    }

    /// Rule 2: of two phases of one type in a row, the second depends on the first.
    pub fn has_dependent_neighbours(&self, graph: &Graph) -> bool {
        self.phases.windows(2).all(|pair| {
            pair[0].is_time_dependent() != pair[1].is_time_dependent()
                || pair[1].depends_on(&pair[0], graph)
        })
    }

    /// Rule 3: no time-independent phase after a time-dependent one.
    pub fn is_independent_first(&self) -> bool {
        self.phases.is_sorted_by_key(Phase::is_time_dependent)
    }

    /// Whether it survives all three rules. They speak of one layer: a stack's schedule is its
    /// layers' one after another, each with its own time-independent phase.
    pub fn is_kept(&self, graph: &Graph) -> bool {
        self.is_independent_first()
            && self.has_dependent_neighbours(graph)
            && self.is_symmetric(graph)
    }
}

/// The products of a step with their places; the projection, for cells that have one, after all.
fn places(schedule: &DirectionSchedule) -> Vec<(Product, PhasePlacement)> {
    let inputs = (0..).map(Product::Input).zip(&schedule.input);
    let recurrent = (0..).map(Product::Recurrent).zip(&schedule.recurrent);
    let products = inputs.chain(recurrent);
    let mut places: Vec<_> = products.map(|(product, place)| (product, *place)).collect();
    let phases = places.iter().map(|(_, place)| match place {
        PhasePlacement::Ahead => 0,
        PhasePlacement::Phase(phase) => phase.saturating_add(1),
    });
    let after = phases.max().unwrap_or(0);
    places.push((Product::Projection, PhasePlacement::Phase(after)));
    places
}
