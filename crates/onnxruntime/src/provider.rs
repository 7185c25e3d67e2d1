//! The execution provider: claims nodes and makes their kernels.

use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use gatestream::model::RecurrentOp;

use crate::api::{Api, Result};
use crate::claim::slower;
use crate::ffi::{self, ComputeContext, ComputeInfo, Ep, Graph, KernelContext, Logger, Node};
use crate::ffi::{Status, SupportInfo};
use crate::guard::guarded;
use crate::kernel::Kernel;
use crate::node::{RecurrentNode, value_names};

/// The name of the provider.
pub const NAME: &std::ffi::CStr = c"GatestreamExecutionProvider";

/// Why nodes of a second graph of a session are left.
const ONE_GRAPH: &str = "before version 1.24.4 it supports claimed nodes in one graph of a model \
                         only (the main graph, or one branch of an If); update ONNX Runtime";

/// An `OrtEp`. ONNX Runtime sees its first field.
#[repr(C)]
pub struct Provider {
    ep: Ep,
    api: Api,
    logger: *const Logger,
    /// Nodes of a graph of this session have been claimed.
    has_claimed: AtomicBool,
}

/// An `OrtNodeComputeInfo`. ONNX Runtime sees its first field.
#[repr(C)]
struct Computation {
    info: ComputeInfo,
    kernel: Kernel,
    api: Api,
}

impl Provider {
    /// A provider, to be released by [`Provider::release`].
    pub fn make(api: Api, logger: *const Logger) -> *mut Ep {
        let provider = Provider {
            ep: Ep {
                version: ffi::VERSION,
                get_name,
                get_capability,
                compile,
                release_compute_infos,
                absent: [ptr::null(); 16],
            },
            api,
            logger,
            has_claimed: AtomicBool::new(false),
        };
        Box::into_raw(Box::new(provider)).cast()
    }

    /// # Safety
    /// `ep` was made by [`Provider::make`], and is not used any more.
    pub unsafe fn release(ep: *mut Ep) {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(ep.cast::<Provider>()) });
    }

    /// Claims the recurrent nodes of a graph that are supported and gain.
    fn claim(&self, graph: *const Graph, info: *mut SupportInfo) -> Result<()> {
        let api = &self.api;
        // Relaxed: ONNX Runtime prepares a session on one thread.
        let is_second = self.has_claimed.load(Ordering::Relaxed);
        for node in api.nodes(graph)? {
            let (operator, domain) = (api.operator(node)?, api.domain(node)?);
            if !RecurrentOp::is_recurrent(&operator, &domain) {
                continue;
            }
            let name = api.node_name(node)?;
            let claimed = RecurrentNode::read(api, node)
                .and_then(|read| read.constant_model(api, node))
                .and_then(|model| slower(&model).map_or(Ok(()), Err));
            let left =
                |why: &str| format!("node {name:?} ({operator}) is left to ONNX Runtime: {why}");
            let (level, message) = match claimed {
                Ok(()) if is_second && api.names_repeat => (ffi::WARNING, left(ONE_GRAPH)),
                Ok(()) => {
                    api.claim(info, node)?;
                    self.has_claimed.store(true, Ordering::Relaxed);
                    let message = format!("gatestream computes node {name:?} ({operator})");
                    (ffi::INFO, message)
                }
                Err(why) => (ffi::INFO, left(&why)),
            };
            api.log(self.logger, level, &message);
        }
        Ok(())
    }

    fn kernel(&self, graph: *const Graph, fused: *const Node) -> Result<Kernel> {
        let api = &self.api;
        let nodes = api.nodes(graph)?;
        let &[node] = &nodes[..] else {
            return Err(format!("a graph of {} nodes instead of one", nodes.len()));
        };
        let read = RecurrentNode::read(api, node)?;
        let signature = read.constant_model(api, node)?.signature();
        let inputs = value_names(api, &api.inputs(fused)?)?;
        let outputs = value_names(api, &api.outputs(fused)?)?;
        Kernel::new(*api, read, signature, &inputs, &outputs)
    }
}

unsafe extern "C" fn get_name(_: *const Ep) -> *const c_char {
    NAME.as_ptr()
}

unsafe extern "C" fn get_capability(
    this: *mut Ep,
    graph: *const Graph,
    info: *mut SupportInfo,
) -> Status {
    // SAFETY: ONNX Runtime passes a provider of `Provider::make`.
    let provider = unsafe { &*this.cast::<Provider>() };
    guarded(&provider.api, || provider.claim(graph, info))
}

unsafe extern "C" fn compile(
    this: *mut Ep,
    graphs: *const *const Graph,
    fused: *const *const Node,
    count: usize,
    infos: *mut *mut ComputeInfo,
    _: *mut *mut Node,
) -> Status {
    // SAFETY: as in `get_capability`; the arrays have `count` elements.
    let (provider, graphs, fused, infos) = unsafe {
        (
            &*this.cast::<Provider>(),
            std::slice::from_raw_parts(graphs, count),
            std::slice::from_raw_parts(fused, count),
            std::slice::from_raw_parts_mut(infos, count),
        )
    };
    guarded(&provider.api, || {
        for ((&graph, &fused), info) in graphs.iter().zip(fused).zip(infos) {
            let computation = Computation {
                info: ComputeInfo {
                    version: ffi::VERSION,
                    create_state,
                    compute,
                    release_state,
                },
                kernel: provider.kernel(graph, fused)?,
                api: provider.api,
            };
            *info = Box::into_raw(Box::new(computation)).cast();
        }
        Ok(())
    })
}

unsafe extern "C" fn release_compute_infos(_: *mut Ep, infos: *mut *mut ComputeInfo, count: usize) {
    // SAFETY: the array has `count` elements, each of `compile`, or null after an error.
    for info in unsafe { std::slice::from_raw_parts(infos, count) } {
        if !info.is_null() {
            // SAFETY: made by `compile`; ONNX Runtime does not use it any more.
            drop(unsafe { Box::from_raw(info.cast::<Computation>()) });
        }
    }
}

/// The state of a kernel is its `Computation`, which lives longer.
unsafe extern "C" fn create_state(
    this: *mut ComputeInfo,
    _: *const ComputeContext,
    state: *mut *mut c_void,
) -> Status {
    // SAFETY: ONNX Runtime passes a place for the pointer.
    unsafe { *state = this.cast() };
    ptr::null_mut()
}

unsafe extern "C" fn compute(
    _: *mut ComputeInfo,
    state: *mut c_void,
    context: *mut KernelContext,
) -> Status {
    // SAFETY: the state of `create_state`; the context lives during the call. Several threads may
    // be here at once; they share what they use.
    let (computation, context) = unsafe { (&*state.cast::<Computation>(), &*context) };
    guarded(&computation.api, || computation.kernel.run(context))
}

unsafe extern "C" fn release_state(_: *mut ComputeInfo, _: *mut c_void) {}
