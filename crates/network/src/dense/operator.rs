//! The operator of a typed graph.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use gatestream::execute::team::SharedTeam;
use gatestream::layers::Dense;
use tract_onnx::Onnx;
use tract_onnx::model::ParsingContext;
use tract_onnx::pb::NodeProto;
use tract_onnx::tract_hir::internal::*;

use crate::operators::Parsed;
use crate::operators::computed::{Computed, computed};
use crate::scoped;
use crate::source::Table;
use crate::source::attributes::integer;
use crate::source::constants::{table, table_index};
use crate::threads::Threads;

/// `y = x W + b`: `x` `[.., inputs]`, `W` `[inputs, outputs]` or with `transB` `[outputs, inputs]`,
/// `b` `[outputs]`; `b` may be absent. `W` is an input or a table.
pub(super) const DENSE: &str = "gatestream.Dense";

pub(crate) fn register(onnx: &mut Onnx) {
    onnx.op_register.insert(DENSE, parse);
}

fn parse(_: &ParsingContext<'_>, node: &NodeProto) -> TractResult<Parsed> {
    let expansion = DenseExpansion {
        table: table(node).ok(),
        key: Key {
            constants: node.input.get(1..).unwrap_or_default().to_vec(),
            table: table_index(node),
            is_transposed: integer(node, "transB", 0) != 0,
        },
        layers: scoped::current(&LAYERS).context("a dense layer outside of a network")?,
    };
    Ok((expand(expansion), Vec::new()))
}

/// The parts of a dense layer: constants of the graph by their names. In each plan of a network a
/// name has the same value, but a product may have a bias in one and none in another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    constants: Vec<String>,
    /// The number of the table that is `W`.
    table: Option<i64>,
    is_transposed: bool,
}

/// The packed layers of a network: all plans share them.
pub(crate) struct DenseLayers {
    threads: Arc<Threads>,
    packed: Mutex<HashMap<Key, Arc<Dense>>>,
}

impl fmt::Debug for DenseLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DenseLayers").finish_non_exhaustive()
    }
}

thread_local!(static LAYERS: RefCell<Option<Arc<DenseLayers>>> = const { RefCell::new(None) });

/// Parses a graph whose dense layers are among these.
pub(crate) fn while_parsing<T>(layers: &Arc<DenseLayers>, parse: impl FnOnce() -> T) -> T {
    scoped::with(&LAYERS, layers, parse)
}

impl DenseLayers {
    pub fn new(threads: Arc<Threads>) -> Arc<DenseLayers> {
        Arc::new(DenseLayers {
            threads,
            packed: Mutex::default(),
        })
    }

    fn get(&self, key: &Key, parts: &Parts) -> TractResult<Arc<Dense>> {
        let mut layers = self.packed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(dense) = layers.get(key) {
            return Ok(Arc::clone(dense));
        }
        let dense = Arc::new(parts.pack(key.is_transposed, self.threads.team()?)?);
        layers.insert(key.clone(), Arc::clone(&dense));
        Ok(dense)
    }
}

/// Where the values of a layer are.
struct Parts {
    matrix: Matrix,
    bias: Option<Arc<Tensor>>,
}

enum Matrix {
    Constant(Arc<Tensor>),
    Table(Arc<Table>),
}

impl Parts {
    fn pack(&self, is_transposed: bool, team: &SharedTeam) -> TractResult<Dense> {
        let shape = self.matrix.shape();
        let &[first, second] = shape else {
            bail!("W has the shape {shape:?}; it must have two axes");
        };
        let (outputs, inputs) = if is_transposed {
            (first, second)
        } else {
            (second, first)
        };
        let bias = match &self.bias {
            None => vec![0.0; outputs],
            Some(bias) => bias.try_as_plain_ram()?.as_slice::<f32>()?.to_vec(),
        };
        ensure!(bias.len() == outputs, "b has {} values", bias.len());
        let failure = Mutex::new(None);
        let keep = |read: TractResult<()>| {
            if let Err(why) = read {
                *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
            }
        };
        let dense = if is_transposed {
            Dense::from_rows(inputs, &bias, team, |units, rows| {
                keep(self.matrix.read(rows, units.start * inputs));
            })?
        } else {
            Dense::from_columns(inputs, &bias, team, |columns, units, values| {
                for (column, values) in columns.zip(values.chunks_mut(units.len())) {
                    keep(self.matrix.read(values, column * outputs + units.start));
                }
            })?
        };
        match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(why) => Err(why),
            None => Ok(dense),
        }
    }
}

impl Matrix {
    fn shape(&self) -> &[usize] {
        match self {
            Matrix::Constant(tensor) => tensor.shape(),
            Matrix::Table(table) => &table.shape,
        }
    }

    /// The elements from this one on.
    fn read(&self, into: &mut [f32], from: usize) -> TractResult<()> {
        match self {
            Matrix::Constant(tensor) => {
                let values = tensor.try_as_plain_ram()?;
                let values = &values.as_slice::<f32>()?[from..from + into.len()];
                into.copy_from_slice(values);
            }
            Matrix::Table(table) => table.read_floats(into, from)?,
        }
        Ok(())
    }
}

#[derive(Clone, Debug)]
struct DenseExpansion {
    key: Key,
    /// `W`, if it is no input.
    table: Option<Arc<Table>>,
    layers: Arc<DenseLayers>,
}

impl Expansion for DenseExpansion {
    fn name(&self) -> StaticName {
        "Dense".into()
    }

    fn validation(&self) -> Validation {
        Validation::Rounding
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        solver: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        let constants = self.key.constants.len();
        let is_matrix_given = self.table.is_none();
        let most = 1 + usize::from(is_matrix_given);
        ensure!(
            (usize::from(is_matrix_given)..=most).contains(&constants),
            "it has {} inputs",
            inputs.len()
        );
        check_input_arity(inputs, 1 + constants)?;
        check_output_arity(outputs, 1)?;
        let (of_inputs, of_outputs) = if self.key.is_transposed {
            (1, 0)
        } else {
            (0, 1)
        };
        solver.equals(&inputs[0].datum_type, f32::datum_type())?;
        solver.equals(&outputs[0].datum_type, f32::datum_type())?;
        solver.equals(&inputs[0].rank, &outputs[0].rank)?;
        if is_matrix_given {
            solver.equals(&inputs[1].rank, 2)?;
        }
        solver.given(&inputs[0].rank, move |solver, rank| {
            let last = usize::try_from(rank - 1).context("x has no axis")?;
            for axis in 0..last {
                solver.equals(&inputs[0].shape[axis], &outputs[0].shape[axis])?;
            }
            for (value, axis) in [(&inputs[0], of_inputs), (&outputs[0], of_outputs)] {
                match &self.table {
                    Some(table) => solver.equals(&value.shape[last], table.shape[axis].to_dim())?,
                    None => solver.equals(&value.shape[last], &inputs[1].shape[axis])?,
                }
            }
            Ok(())
        })
    }

    fn wire(
        &self,
        prefix: &str,
        target: &mut TypedModel,
        inputs: &[OutletId],
    ) -> TractResult<TVec<OutletId>> {
        let constants = inputs[1..].iter().map(|outlet| {
            let constant = target.outlet_fact(*outlet)?.konst.clone();
            constant.with_context(|| format!("a weight of {prefix:?} is no constant"))
        });
        let constants = constants.collect::<TractResult<Vec<_>>>()?;
        let mut constants = constants.into_iter();
        let matrix = match &self.table {
            Some(table) => Matrix::Table(Arc::clone(table)),
            None => Matrix::Constant(constants.next().context("W is missing")?),
        };
        let parts = Parts {
            matrix,
            bias: constants.next(),
        };
        let operator = DenseOperator {
            dense: self.layers.get(&self.key, &parts)?,
            layers: Arc::clone(&self.layers),
        };
        target.wire_node(prefix, operator, &inputs[..1])
    }
}

/// See the [module](self).
#[derive(Clone)]
struct DenseOperator {
    dense: Arc<Dense>,
    layers: Arc<DenseLayers>,
}

impl fmt::Debug for DenseOperator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DenseOperator").finish_non_exhaustive()
    }
}

impl PartialEq for DenseOperator {
    fn eq(&self, other: &DenseOperator) -> bool {
        Arc::ptr_eq(&self.dense, &other.dense)
    }
}

impl Eq for DenseOperator {}

computed!(DenseOperator);

impl Computed for DenseOperator {
    const NAME: &'static str = "Dense";

    fn facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let x = inputs.first().context("x is missing")?;
        let mut shape: TVec<TDim> = x.shape.to_tvec();
        *shape.last_mut().context("x has no axis")? = self.dense.outputs().to_dim();
        Ok(tvec!(f32::datum_type().fact(&*shape)))
    }

    fn compute(&self, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let x = args_1!(inputs);
        let dense = &self.dense;
        let mut shape: TVec<usize> = x.shape().into();
        let last = shape.last_mut().context("x has no axis")?;
        ensure!(
            *last == dense.inputs(),
            "x has {last} features; W has {}",
            dense.inputs()
        );
        *last = dense.outputs();
        let mut y = Tensor::zero::<f32>(&shape)?;
        {
            let x = x.try_as_plain_ram()?;
            let x = x.as_slice::<f32>()?;
            let mut y = y.try_as_plain_ram_mut()?;
            let y = y.as_slice_mut::<f32>()?;
            let threads = &self.layers.threads;
            match threads.count() {
                1 => dense.run(x, y)?,
                _ => dense.run_on(threads.team()?, x, y)?,
            }
        }
        Ok(tvec!(y.into_tvalue()))
    }
}
