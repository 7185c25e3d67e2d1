//! Constants that plans derive from those of the file, such as packed matrices: equal ones of
//! several plans are one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tract_onnx::prelude::{DatumType, TypedModel};
use tract_onnx::tract_core::ops::konst::Const;
use tract_onnx::tract_core::ops::scan::OptScan;
use tract_onnx::tract_hir::internal::*;

use crate::source::constants::Constants;

/// Fewest bytes of a constant that is compared with others.
const MIN_BYTES: usize = 1024;

/// A guess at the bytes of a node of a plan apart from its constants: its operator, facts and name.
const NODE_BYTES: usize = 2048;

/// See the [module](self). A constant lives as long as a plan with it.
#[derive(Default)]
pub(crate) struct DerivedConstants {
    kept: Mutex<Kept>,
}

type Kept = HashMap<Key, Vec<Weak<Tensor>>>;

#[derive(PartialEq, Eq, Hash)]
struct Key {
    datum: DatumType,
    shape: Vec<usize>,
    bytes: usize,
}

/// The memory of a plan.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlanMemory {
    /// Bytes that it has alone.
    pub own: usize,
    /// Constants that other plans may have, too: an address and a number of bytes.
    pub shared: HashMap<usize, usize>,
}

impl DerivedConstants {
    /// Has the constants of a model among those of other plans where they are equal, and returns
    /// the memory of the model, without the constants of the file.
    pub fn share(&self, model: &mut TypedModel, of_file: &Constants) -> PlanMemory {
        let mut memory = PlanMemory::default();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        for node in &mut model.nodes {
            memory.own += NODE_BYTES;
            if let Some(scan) = node.op.downcast_ref::<OptScan>() {
                add_body(&mut memory, scan.plan.model(), of_file);
            }
            let Some(constant) = node.op.downcast_ref::<Const>() else {
                continue;
            };
            let Some(fact) = node.outputs.first_mut().map(|output| &mut output.fact) else {
                continue;
            };
            let bytes = bytes_of(fact);
            if of_file.has(constant.val()) {
                continue;
            }
            if bytes < MIN_BYTES {
                memory.own += bytes;
                continue;
            }
            let shared = shared(&mut kept, constant.val(), bytes);
            let exotic = fact.exotic_fact.clone();
            if let Ok(op) = Const::new_with_opt_exotic_fact(Arc::clone(&shared), exotic) {
                node.op = Box::new(op);
                fact.konst = Some(Arc::clone(&shared));
            }
            memory.shared.insert(Arc::as_ptr(&shared).addr(), bytes);
        }
        // Those of plans that are gone.
        kept.retain(|_, of_key| {
            of_key.retain(|one| one.strong_count() > 0);
            !of_key.is_empty()
        });
        memory
    }
}

/// The kept constant with these bits, or this one from now on.
fn shared(kept: &mut Kept, constant: &Arc<Tensor>, bytes: usize) -> Arc<Tensor> {
    let key = Key {
        datum: constant.datum_type(),
        shape: constant.shape().to_vec(),
        bytes,
    };
    let of_key = kept.entry(key).or_default();
    let mut alive = of_key.iter().filter_map(Weak::upgrade);
    if let Some(same) = alive.find(|one| is_same(one, constant)) {
        return same;
    }
    drop(alive);
    of_key.push(Arc::downgrade(constant));
    Arc::clone(constant)
}

/// The constants of a loop's body are not shared: tract has made its plan already.
fn add_body(memory: &mut PlanMemory, body: &TypedModel, of_file: &Constants) {
    for node in &body.nodes {
        memory.own += NODE_BYTES;
        if let Some(scan) = node.op.downcast_ref::<OptScan>() {
            add_body(memory, scan.plan.model(), of_file);
        }
        if let Some(constant) = node.op.downcast_ref::<Const>()
            && !of_file.has(constant.val())
            && let Some(output) = node.outputs.first()
        {
            memory.own += bytes_of(&output.fact);
        }
    }
}

fn bytes_of(fact: &TypedFact) -> usize {
    let bytes = fact.mem_size().as_i64();
    bytes.and_then(|bytes| bytes.try_into().ok()).unwrap_or(0)
}

/// Whether two constants have the same bits: -0 and 0 differ.
fn is_same(one: &Tensor, other: &Tensor) -> bool {
    match (one.try_as_plain_ram(), other.try_as_plain_ram()) {
        (Ok(one), Ok(other)) => one.as_bytes() == other.as_bytes(),
        // Packed matrices compare their bytes.
        (Err(_), Err(_)) => one == other,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_go_with_their_plans() {
        let derived = DerivedConstants::default();
        for size in [1000, 2000, 3000] {
            let mut model = TypedModel::default();
            let constant = tensor1(&vec![1f32; size]);
            model.add_const("constant", constant).unwrap();
            let memory = derived.share(&mut model, &Constants::default());
            assert_eq!(memory.shared.into_values().sum::<usize>(), 4 * size);
            assert_eq!(derived.kept.lock().unwrap().len(), 1);
        }
    }
}
