//! NVIDIA's driver and compiler, loaded when they are first asked for.

mod compile;
mod pinned;
mod stream;

use std::sync::Arc;

use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::{CudaContext, DriverError as CallError};
use gatestream::execute::{
    Backend, PreparedModel, ResidentModel, ResidentNetwork, ResidentRoom, SessionError,
};
use gatestream::model::Model;
use gatestream::plan::Plan;

use crate::layer::{LEAST_CHUNK, Settings};
use crate::model::{DeviceModel, checked_room, weights_of};
use crate::resident::ResidentStack;
use crate::tune::tune;
use crate::{Device, DriverError, LaunchPlan, TunedPlans, TunedPlansError, WeightType};

pub use compile::{Compiled, compile};
use stream::{Modules, Stream};

/// A GPU as a backend. Each prepared model has a stream of its own, and its answers are those of
/// [`SumOrder::Lanes`](gatestream::reference::SumOrder::Lanes).
///
/// ```no_run
/// use gatestream::execute::Backend;
/// use gatestream::model::{Input, Lstm, Output};
/// use gatestream::plan::Plan;
/// use gatestream_cuda::Cuda;
///
/// let model = Lstm::new(64, 1024).random(1)?;
/// let mut prepared = Cuda::open(0)?.prepare(&model, &Plan::estimate(&model, 1, 100, 1))?;
/// let (input, mut output) = (vec![0.5; 100 * 64], vec![0.0; 100 * 1024]);
/// prepared.run(&Input::new(&input, 100, 1), &mut Output::new(&mut output))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Cuda {
    context: Arc<CudaContext>,
    device: Device,
    name: String,
    weights: Option<WeightType>,
    plans: Arc<TunedPlans>,
    modules: Arc<Modules>,
}

impl Cuda {
    /// The device with this number, from 0.
    ///
    /// # Errors
    /// [`DriverError::NoLibrary`] without NVIDIA's driver, [`DriverError::NoDevice`],
    /// [`DriverError::TooOld`], [`DriverError::Call`].
    pub fn open(ordinal: usize) -> Result<Cuda, DriverError> {
        // Asked first, because the crate panics where the library is not found.
        // SAFETY: it loads the driver's library, as any call of it would, and calls nothing.
        if !unsafe { cudarc::driver::sys::is_culib_present() } {
            return Err(DriverError::NoLibrary { library: "libcuda" });
        }
        let count = CudaContext::device_count().map_err(failed("cuDeviceGetCount"))?;
        let count = usize::try_from(count).unwrap_or(0);
        if ordinal >= count {
            return Err(DriverError::NoDevice { ordinal, count });
        }
        let context = CudaContext::new(ordinal).map_err(failed("cuDevicePrimaryCtxRetain"))?;
        let name = context.name().map_err(failed("cuDeviceGetName"))?;
        let of = |attribute| {
            let value = context
                .attribute(attribute)
                .map_err(failed("cuDeviceGetAttribute"))?;
            Ok(u32::try_from(value).unwrap_or(0))
        };
        let device = Device {
            capability: (
                of(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                of(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            multiprocessors: of(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            shared_bytes: of(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        };
        let (major, minor) = device.capability;
        if device.capability < (8, 0) {
            return Err(DriverError::TooOld { name, major, minor });
        }
        Ok(Cuda {
            context,
            device,
            name,
            weights: None,
            plans: Arc::new(TunedPlans::new(device)),
            modules: Arc::default(),
        })
    }

    /// Keeps weights in this type, whatever the model's precision is.
    #[must_use]
    pub fn with_weights(mut self, weights: WeightType) -> Cuda {
        self.weights = Some(weights);
        self
    }

    /// Launches sizes that were timed by their plans; others by [`LaunchPlan::choose`].
    ///
    /// # Errors
    /// [`TunedPlansError::Device`] for plans of another device.
    pub fn with_plans(mut self, plans: TunedPlans) -> Result<Cuda, TunedPlansError> {
        plans.check(&self.device)?;
        self.plans = Arc::new(plans);
        Ok(self)
    }

    /// Times all plans of each layer, for `batch` sequences of `steps` steps: for
    /// [`Cuda::with_plans`]. The bits of answers do not depend on the plan.
    ///
    /// # Errors
    /// As [`Backend::prepare`].
    pub fn tune(
        &self,
        model: &Model,
        batch: usize,
        steps: usize,
    ) -> Result<TunedPlans, SessionError> {
        let (room, weights) = (checked_room(model, batch, steps)?, self.weights_for(model));
        Ok(tune(&self.stream()?, model, weights, room)?)
    }

    fn weights_for(&self, model: &Model) -> WeightType {
        self.weights.unwrap_or_else(|| weights_of(model))
    }

    fn settings(&self, model: &Model) -> Settings {
        let plans = Arc::clone(&self.plans);
        Settings {
            weights: self.weights_for(model),
            choose: Arc::new(move |device, size| {
                plans
                    .get(size)
                    .map_or_else(|| LaunchPlan::choose(device, size), Ok)
            }),
            least_chunk: LEAST_CHUNK,
        }
    }

    fn stream(&self) -> Result<Stream, SessionError> {
        let opened = Stream::open(&self.context, self.device, &self.modules);
        opened.map_err(|error| SessionError::Backend(error.to_string()))
    }

    /// The limits of the device.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The name of the device, such as "NVIDIA H100 80GB HBM3".
    pub fn device_name(&self) -> &str {
        &self.name
    }
}

impl Backend for Cuda {
    fn name(&self) -> &str {
        "cuda"
    }

    /// Of the plan only its batch and steps are read: launches have plans of their own,
    /// [`LaunchPlan`].
    fn prepare(&self, model: &Model, plan: &Plan) -> Result<Box<dyn PreparedModel>, SessionError> {
        let room = (plan.batch(), plan.steps());
        Ok(Box::new(DeviceModel::new(
            self.stream()?,
            model,
            self.settings(model),
            room,
        )?))
    }

    fn prepare_resident(
        &self,
        network: &ResidentNetwork<'_>,
        room: ResidentRoom,
    ) -> Result<Option<Box<dyn ResidentModel>>, SessionError> {
        let settings = self.settings(network.model);
        let stack = ResidentStack::new(self.stream()?, network, &settings, room)?;
        Ok(Some(Box::new(stack)))
    }
}

fn failed(call: &'static str) -> impl Fn(CallError) -> DriverError {
    move |error| DriverError::Call {
        call,
        error: error.to_string(),
    }
}
