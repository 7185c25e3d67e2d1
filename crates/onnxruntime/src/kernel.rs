//! The kernel of a claimed node: sessions of its model, on the threads of ONNX Runtime.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gatestream::execute::team::{ProcessMark, Team};
use gatestream::execute::{PackedModel, Session};
use gatestream::machine::Topology;
use gatestream::model::{Input, Model, Output, RecurrentAxes, Signature};
use gatestream::plan::Plan;

use crate::api::{Api, Result, Tensor};
use crate::ffi::KernelContext;
use crate::node::RecurrentNode;
use crate::pool::Pool;

/// See the [module](self).
pub struct Kernel {
    api: Api,
    node: RecurrentNode,
    signature: Signature,
    /// The most threads of a plan. Those of them that the pool has do the parts of the others.
    cores: usize,
    at: Slots,
    /// Of the packed weights that are in use; new runs take sessions of the newest. Locked for
    /// moments only, so that a fork finds it open.
    packed: Mutex<Option<Packed>>,
    /// Held while weights are packed.
    packing: Mutex<()>,
    made_in: ProcessMark,
}

/// Indices of inputs and outputs of the kernel.
struct Slots {
    x: usize,
    lengths: Option<usize>,
    initial_h: Option<usize>,
    initial_c: Option<usize>,
    weights: Vec<(&'static str, usize)>,
    outputs: [Option<usize>; 3],
}

/// Packed weights, and sessions that no run uses now.
struct Packed {
    model: Arc<PackedModel>,
    idle: Vec<Scratch>,
}

/// What a run takes of [`Packed`].
struct Ready {
    model: Arc<PackedModel>,
    idle: Option<Scratch>,
}

impl Ready {
    fn scratch(self) -> Result<Scratch> {
        match self.idle {
            Some(scratch) => Ok(scratch),
            None => Scratch::new(self.model),
        }
    }
}

/// What a run needs for itself.
struct Scratch {
    session: Session,
    /// The output of both directions, before its axes are swapped.
    y: Vec<f32>,
    hn: Vec<f32>,
    cn: Vec<f32>,
}

impl Kernel {
    /// The kernel of a node whose fused node has these inputs and outputs. `signature` is that of
    /// the weights of the file.
    ///
    /// # Errors
    /// A value of the node that the fused node does not have.
    pub fn new(
        api: Api,
        node: RecurrentNode,
        signature: Signature,
        inputs: &[String],
        outputs: &[String],
    ) -> Result<Kernel> {
        let find = |name: &str| {
            let found = inputs.iter().position(|found| found == name);
            found.ok_or_else(|| format!("the fused node has no value {name:?}"))
        };
        let input = |input: &str| node.input(input).map(find).transpose();
        // Outputs that nobody reads are no outputs of the fused node.
        let output = |name: &Option<String>| {
            name.as_ref()
                .and_then(|name| outputs.iter().position(|found| found == name))
        };
        Ok(Kernel {
            api,
            at: Slots {
                x: input("X")?.ok_or("it has no X")?,
                lengths: input("sequence_lens")?,
                initial_h: input("initial_h")?,
                initial_c: input("initial_c")?,
                weights: { node.weights() }
                    .map(|(input, name)| Ok((input, find(name)?)))
                    .collect::<Result<_>>()?,
                outputs: std::array::from_fn(|at| output(&node.outputs[at])),
            },
            signature,
            cores: Topology::detect().team_size(),
            node,
            packed: Mutex::new(None),
            packing: Mutex::new(()),
            made_in: ProcessMark::new(),
        })
    }

    /// Computes the node.
    ///
    /// # Errors
    /// Inputs that do not fit.
    pub fn run(&self, context: &KernelContext) -> Result<()> {
        self.compute(context).map_err(|why| {
            format!(
                "recurrent node {:?} ({}): {why}",
                self.node.name, self.node.operator
            )
        })
    }

    fn compute(&self, context: &KernelContext) -> Result<()> {
        let (api, node) = (&self.api, &self.node);
        let x = api.input(context, self.at.x)?.ok_or("X is missing")?;
        let axes = RecurrentAxes::of_x(
            &x.shape,
            node.is_batch_major,
            node.directions,
            &self.signature,
        )?;
        let RecurrentAxes { steps, batch, .. } = axes;
        let lengths = self.lengths(context, &axes)?;
        let h0 = self.initial(context, self.at.initial_h, &axes)?;
        let c0 = self.initial(context, self.at.initial_c, &axes)?;
        let output = |at: usize, shape: &[usize]| {
            self.at.outputs[at]
                .map(|at| api.output(context, at, shape))
                .transpose()
        };
        let y = output(0, &axes.y_shape())?;
        let hn = output(1, &axes.state_shape())?;
        let cn = output(2, &axes.state_shape())?;

        let mut scratch = self.scratch(context, batch, steps)?;
        let Scratch {
            session,
            y: swapped_y,
            hn: swapped_h,
            cn: swapped_c,
        } = &mut scratch;
        let mut input = Input::new(x.floats()?, steps, batch).layout(axes.layout());
        input.lengths = lengths.as_deref();
        (input.h0, input.c0) = (h0.as_deref(), c0.as_deref());
        let (swaps_y, swaps_state) = (axes.swaps_output(), axes.swaps_states());
        let (mut y, mut hn, mut cn) = (y, hn, cn);
        let mut results = Output {
            values: target(&mut y, swaps_y.then_some(&mut *swapped_y)),
            hn: target(&mut hn, swaps_state.then_some(&mut *swapped_h)),
            cn: target(&mut cn, swaps_state.then_some(&mut *swapped_c)),
        };
        let ran = if self.made_in.is_forked() {
            // The threads of the pool are in the parent.
            session.run(&input, &mut results)
        } else {
            session.run_on_host(&input, &mut results, &Pool { api: *api, context })
        };
        ran.map_err(|why| why.to_string())?;
        if swaps_y && let Some(y) = y {
            axes.output_of_session(&swapped_y[..y.len()], y);
        }
        for (to, swapped) in [(hn, &*swapped_h), (cn, &*swapped_c)] {
            let Some(to) = to else {
                continue;
            };
            if swaps_state {
                axes.state_of_session(&swapped[..to.len()], to);
            }
            axes.clear_states_of_empty(lengths.as_deref().unwrap_or_default(), to);
        }
        self.give_back(scratch);
        Ok(())
    }

    fn lengths(&self, context: &KernelContext, axes: &RecurrentAxes) -> Result<Option<Vec<usize>>> {
        let Some(tensor) = self.input(context, self.at.lengths)? else {
            return Ok(None);
        };
        let lengths: Vec<i64> = tensor.ints()?.iter().copied().map(i64::from).collect();
        axes.lengths(&lengths).map(Some)
    }

    /// An initial state in the order of [`Input::h0`].
    fn initial<'a>(
        &'a self,
        context: &'a KernelContext,
        at: Option<usize>,
        axes: &RecurrentAxes,
    ) -> Result<Option<Cow<'a, [f32]>>> {
        let Some(tensor) = self.input(context, at)? else {
            return Ok(None);
        };
        axes.initial_state(tensor.floats()?).map(Some)
    }

    /// An input of the kernel; `None`: it is absent.
    fn input<'a>(
        &self,
        context: &'a KernelContext,
        at: Option<usize>,
    ) -> Result<Option<Tensor<'a>>> {
        at.map_or(Ok(None), |at| self.api.input(context, at))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Packed>> {
        self.packed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session for this run, with room for it.
    fn scratch(&self, context: &KernelContext, batch: usize, steps: usize) -> Result<Scratch> {
        let mut scratch = match self.ready(batch, steps) {
            Some(ready) => ready.scratch()?,
            None => self.pack(context, batch, steps)?.scratch()?,
        };
        let room = scratch.session.reserve(batch, steps);
        room.map_err(|why| why.to_string())?;
        Ok(scratch)
    }

    /// What is packed, if it is for inputs of this size.
    fn ready(&self, batch: usize, steps: usize) -> Option<Ready> {
        let mut kept = self.lock();
        let packed = kept.as_mut()?;
        { packed.model.plan() }
            .will_do(batch, steps)
            .then(|| Ready {
                idle: packed.idle.pop(),
                model: Arc::clone(&packed.model),
            })
    }

    /// Packs the weights, unless another run has done it meanwhile.
    fn pack(&self, context: &KernelContext, batch: usize, steps: usize) -> Result<Ready> {
        // In a child its holder may be a thread of the parent.
        let _one_at_a_time = (!self.made_in.is_forked())
            .then(|| self.packing.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(ready) = self.ready(batch, steps) {
            return Ok(ready);
        }
        let model = self.model(context)?;
        let earlier = self.lock().as_ref().map(|packed| Arc::clone(&packed.model));
        let earlier = earlier.as_ref().map(|packed| packed.plan());
        let Some(plan) = Plan::grown(earlier, &model, batch, steps, self.cores) else {
            return self
                .ready(batch, steps)
                .ok_or_else(|| "no weights are packed".into());
        };
        let mut team = Team::for_host(plan.threads()).map_err(|why| why.to_string())?;
        let model = PackedModel::new(&model, &plan, &mut team).map_err(|why| why.to_string())?;
        *self.lock() = Some(Packed {
            model: Arc::clone(&model),
            idle: Vec::new(),
        });
        Ok(Ready { idle: None, model })
    }

    /// The model with the weights of the session: those of the file, or those that its options give
    /// in their place.
    fn model(&self, context: &KernelContext) -> Result<Model> {
        let weights = self.at.weights.iter().map(|&(input, at)| {
            let tensor = self.api.input(context, at)?;
            Ok((input, tensor.ok_or_else(|| format!("{input} is missing"))?))
        });
        let model = self.node.model(&weights.collect::<Result<Vec<_>>>()?)?;
        if model.signature() == self.signature {
            Ok(model)
        } else {
            Err("the weights that the options give have other shapes than in the file".into())
        }
    }

    /// Keeps the session for other runs, unless the weights have been packed anew.
    fn give_back(&self, scratch: Scratch) {
        if let Some(packed) = &mut *self.lock()
            && Arc::ptr_eq(&packed.model, scratch.session.packed())
        {
            packed.idle.push(scratch);
        }
    }
}

impl Scratch {
    fn new(model: Arc<PackedModel>) -> Result<Scratch> {
        let team = Team::for_host(model.plan().threads()).map_err(|why| why.to_string())?;
        Ok(Scratch {
            session: Session::with_team(model, team).map_err(|why| why.to_string())?,
            y: Vec::new(),
            hn: Vec::new(),
            cn: Vec::new(),
        })
    }
}

/// Where a run writes an output: to a buffer, if its axes are to be swapped.
fn target<'a>(
    output: &'a mut Option<&mut [f32]>,
    buffer: Option<&'a mut Vec<f32>>,
) -> Option<&'a mut [f32]> {
    let output = output.as_deref_mut()?;
    let Some(buffer) = buffer else {
        return Some(output);
    };
    if buffer.len() < output.len() {
        buffer.resize(output.len(), 0.0);
    }
    Some(&mut buffer[..output.len()])
}
