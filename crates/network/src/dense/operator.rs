//! The operator of a typed graph.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use cellstream::layers::Dense;
use cellstream::model::Matrix;
use tract_onnx::Onnx;
use tract_onnx::model::ParsingContext;
use tract_onnx::pb::NodeProto;
use tract_onnx::tract_hir::internal::*;

use crate::operators::Parsed;
use crate::operators::computed::{Computed, computed};
use crate::scoped;
use crate::source::attributes::integer;
use crate::threads::Threads;

/// `y = x W + b`: `x` `[.., inputs]`, `W` `[inputs, outputs]` or with `transB` `[outputs, inputs]`,
/// `b` `[outputs]`; `b` may be absent.
pub(super) const DENSE: &str = "cellstream.Dense";

pub(crate) fn register(onnx: &mut Onnx) {
    onnx.op_register.insert(DENSE, parse);
}

fn parse(_: &ParsingContext<'_>, node: &NodeProto) -> TractResult<Parsed> {
    let constants = node.input.get(1..).unwrap_or_default();
    let expansion = DenseExpansion {
        key: Key {
            constants: constants.to_vec(),
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

    fn get(&self, key: &Key, constants: &[Arc<Tensor>]) -> TractResult<Arc<Dense>> {
        let mut layers = self.packed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(dense) = layers.get(key) {
            return Ok(Arc::clone(dense));
        }
        let dense = Arc::new(pack(constants, key.is_transposed)?);
        layers.insert(key.clone(), Arc::clone(&dense));
        Ok(dense)
    }
}

fn pack(constants: &[Arc<Tensor>], is_transposed: bool) -> TractResult<Dense> {
    let w = constants[0].try_as_plain_ram()?;
    let w = w.as_slice::<f32>()?;
    let &[first, second] = constants[0].shape() else {
        bail!(
            "W has the shape {:?}; it must have two axes",
            constants[0].shape()
        );
    };
    let (outputs, inputs, values) = match is_transposed {
        true => (first, second, w.to_vec()),
        false => (second, first, transposed(w, first, second)),
    };
    let bias = match constants.get(1) {
        None => vec![0.0; outputs],
        Some(bias) => bias.try_as_plain_ram()?.as_slice::<f32>()?.to_vec(),
    };
    let matrix = Matrix::new(outputs, inputs, values)?;
    Ok(Dense::new(&matrix, &bias)?)
}

/// A matrix `[rows, columns]` as `[columns, rows]`, square by square: both sides stay in the cache.
fn transposed(matrix: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    const SIDE: usize = 16;
    let mut values = vec![0.0; matrix.len()];
    for first_row in (0..rows).step_by(SIDE) {
        for first_column in (0..columns).step_by(SIDE) {
            for column in first_column..columns.min(first_column + SIDE) {
                for row in first_row..rows.min(first_row + SIDE) {
                    values[column * rows + row] = matrix[row * columns + column];
                }
            }
        }
    }
    values
}

#[derive(Clone, Debug)]
struct DenseExpansion {
    key: Key,
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
        ensure!(
            matches!(inputs.len(), 2 | 3),
            "it has {} inputs",
            inputs.len()
        );
        check_output_arity(outputs, 1)?;
        let (of_inputs, of_outputs) = match self.key.is_transposed {
            true => (1, 0),
            false => (0, 1),
        };
        solver.equals(&inputs[0].datum_type, f32::datum_type())?;
        solver.equals(&outputs[0].datum_type, f32::datum_type())?;
        solver.equals(&inputs[1].rank, 2)?;
        solver.equals(&inputs[0].rank, &outputs[0].rank)?;
        solver.given(&inputs[0].rank, move |solver, rank| {
            let last = usize::try_from(rank - 1).context("x has no axis")?;
            for axis in 0..last {
                solver.equals(&inputs[0].shape[axis], &outputs[0].shape[axis])?;
            }
            solver.equals(&inputs[0].shape[last], &inputs[1].shape[of_inputs])?;
            solver.equals(&outputs[0].shape[last], &inputs[1].shape[of_outputs])
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
        let operator = DenseOperator {
            dense: self.layers.get(&self.key, &constants)?,
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
