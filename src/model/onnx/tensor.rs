//! Constant tensors: decoding them from the file, and the few operations exporters leave on them
//! (PyTorch's exporters reorder large weights with Slice and Concat nodes).

use std::rc::Rc;

use half::{bf16, f16};

use super::budget::Budget;
use super::proto::{TensorProto, data_type};
use crate::model::LoadError;

/// Axes that any value may have; exported recurrent graphs use at most 4.
pub(super) const MOST_AXES: usize = 16;

/// The values of a tensor, widened.
#[derive(Debug, PartialEq)]
pub(super) enum Data {
    Float(Vec<f32>),
    Int(Vec<i64>),
}

impl Data {
    fn len(&self) -> usize {
        match self {
            Data::Float(v) => v.len(),
            Data::Int(v) => v.len(),
        }
    }
}

/// A constant: row-major values with their shape. The data always has as many values as the shape.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tensor {
    pub dims: Vec<usize>,
    pub data: Rc<Data>,
}

impl Tensor {
    pub(super) fn ints(dims: Vec<usize>, values: Vec<i64>) -> Tensor {
        Tensor {
            dims,
            data: Rc::new(Data::Int(values)),
        }
    }

    pub(super) fn floats(dims: Vec<usize>, values: Vec<f32>) -> Tensor {
        Tensor {
            dims,
            data: Rc::new(Data::Float(values)),
        }
    }

    /// Its values as integers, if it holds integers.
    pub(super) fn as_ints(&self) -> Option<&[i64]> {
        match &*self.data {
            Data::Int(v) => Some(v),
            Data::Float(_) => None,
        }
    }

    /// Its values as floats, if it holds floats.
    pub(super) fn as_floats(&self) -> Option<&[f32]> {
        match &*self.data {
            Data::Float(v) => Some(v),
            Data::Int(_) => None,
        }
    }

    /// Whether every value is zero.
    pub(super) fn is_zero(&self) -> bool {
        match &*self.data {
            Data::Float(v) => v.iter().all(|x| *x == 0.0),
            Data::Int(v) => v.iter().all(|x| *x == 0),
        }
    }

    /// The same values under another shape with as many values.
    pub(super) fn with_dims(&self, dims: Vec<usize>) -> Tensor {
        debug_assert_eq!(dims.iter().product::<usize>(), self.data.len());
        Tensor {
            dims,
            data: Rc::clone(&self.data),
        }
    }

    /// The entries of one axis that `indices` names, in that order.
    pub(super) fn take(
        &self,
        axis: usize,
        indices: &[usize],
        budget: &mut Budget,
    ) -> Result<Tensor, String> {
        let outer: usize = self.dims[..axis].iter().product();
        let inner: usize = self.dims[axis + 1..].iter().product();
        let length = self.dims[axis];
        budget.charge(outer.saturating_mul(inner).saturating_mul(indices.len()))?;
        let mut dims = self.dims.clone();
        dims[axis] = indices.len();
        let starts = (0..outer).flat_map(|o| indices.iter().map(move |i| (o * length + i) * inner));
        Ok(self.gathered(dims, starts, inner))
    }

    /// The tensors one after the other along `axis`; shapes must agree on the other axes.
    pub(super) fn concat(
        parts: &[Tensor],
        axis: usize,
        budget: &mut Budget,
    ) -> Result<Tensor, String> {
        let mut dims = parts[0].dims.clone();
        let agree = |t: &Tensor| {
            t.dims.len() == dims.len()
                && (0..dims.len()).all(|d| d == axis || t.dims[d] == dims[d])
                && matches!(*t.data, Data::Float(_)) == matches!(*parts[0].data, Data::Float(_))
        };
        if !parts.iter().all(agree) {
            return Err("the constants joined differ in type or in shape off the axis".into());
        }
        // Each part was allocated before, so these sums cannot overflow.
        budget.charge(parts.iter().map(|t| t.data.len()).sum())?;
        dims[axis] = parts.iter().map(|t| t.dims[axis]).sum();
        let outer: usize = dims[..axis].iter().product();
        let run = |t: &Tensor| t.data.len() / outer.max(1);
        Ok(match &*parts[0].data {
            Data::Float(_) => Tensor::floats(
                dims,
                (0..outer)
                    .flat_map(|o| {
                        parts.iter().flat_map(move |t| {
                            &t.as_floats().unwrap_or_default()[o * run(t)..(o + 1) * run(t)]
                        })
                    })
                    .copied()
                    .collect(),
            ),
            Data::Int(_) => Tensor::ints(
                dims,
                (0..outer)
                    .flat_map(|o| {
                        parts.iter().flat_map(move |t| {
                            &t.as_ints().unwrap_or_default()[o * run(t)..(o + 1) * run(t)]
                        })
                    })
                    .copied()
                    .collect(),
            ),
        })
    }

    /// Axes reordered: axis `i` of the result is axis `order[i]` of this.
    pub(super) fn transpose(&self, order: &[usize], budget: &mut Budget) -> Result<Tensor, String> {
        budget.charge(self.data.len())?;
        let mut strides = vec![1; self.dims.len()];
        for axis in (1..self.dims.len()).rev() {
            strides[axis - 1] = strides[axis] * self.dims[axis];
        }
        let dims: Vec<usize> = order.iter().map(|&a| self.dims[a]).collect();
        let starts = (0..self.data.len()).map(|flat| {
            let mut rest = flat;
            let mut at = 0;
            for (axis, dim) in dims.iter().enumerate().rev() {
                at += rest % dim * strides[order[axis]];
                rest /= dim;
            }
            at
        });
        Ok(self.gathered(dims.clone(), starts, 1))
    }

    fn gathered(
        &self,
        dims: Vec<usize>,
        starts: impl Iterator<Item = usize>,
        run: usize,
    ) -> Tensor {
        match &*self.data {
            Data::Float(v) => {
                Tensor::floats(dims, starts.flat_map(|s| &v[s..s + run]).copied().collect())
            }
            Data::Int(v) => {
                Tensor::ints(dims, starts.flat_map(|s| &v[s..s + run]).copied().collect())
            }
        }
    }
}

/// Decodes a tensor of the file; everything is checked before anything is allocated.
pub(super) fn decode(name: &str, proto: &TensorProto) -> Result<Tensor, LoadError> {
    read(proto).map_err(|reason| LoadError::Tensor {
        name: name.to_string(),
        reason,
    })
}

fn read(proto: &TensorProto) -> Result<Tensor, String> {
    if proto.data_location != 0 {
        return Err(
            "its data lies in another file; save the model with its data inside the file \
             (torch.onnx.export(…, external_data=False), onnx.save_model of the loaded model)"
                .into(),
        );
    }
    if proto.segment.is_some() {
        return Err("it is one segment of a tensor; only whole tensors are supported".into());
    }
    let (dims, count) = shape(&proto.dims)?;
    let width = match proto.data_type {
        data_type::FLOAT | data_type::INT32 => 4,
        data_type::FLOAT16 | data_type::BFLOAT16 => 2,
        data_type::INT64 => 8,
        other => {
            return Err(format!(
                "element type {} is not supported; use float, float16 or bfloat16 (weights), int32 \
                 or int64 (shapes)",
                data_type::name(other)
            ));
        }
    };
    let typed = proto.float_data.len() + proto.int32_data.len() + proto.int64_data.len();
    let held = match &proto.raw_data {
        // A reader must not choose between two sources.
        Some(_) if typed > 0 => return Err("it has both raw and typed data".into()),
        Some(raw) if raw.len() % width != 0 => {
            return Err(format!(
                "{} bytes of raw data are no whole number of {width}-byte values",
                raw.len()
            ));
        }
        Some(raw) => raw.len() / width,
        None => match proto.data_type {
            data_type::FLOAT => proto.float_data.len(),
            data_type::INT64 => proto.int64_data.len(),
            _ => proto.int32_data.len(),
        },
    };
    if held != count || (proto.raw_data.is_none() && typed != held) {
        return Err(format!(
            "shape {dims:?} needs {count} values of type {}, the file holds {held} (of {typed} typed values)",
            data_type::name(proto.data_type)
        ));
    }
    let raw = proto.raw_data.as_deref();
    let data = match (proto.data_type, raw) {
        (data_type::FLOAT, Some(raw)) => Data::Float(
            raw.as_chunks::<4>()
                .0
                .iter()
                .map(|b| f32::from_le_bytes(*b))
                .collect(),
        ),
        (data_type::FLOAT, None) => Data::Float(proto.float_data.clone()),
        (data_type::INT64, Some(raw)) => Data::Int(
            raw.as_chunks::<8>()
                .0
                .iter()
                .map(|b| i64::from_le_bytes(*b))
                .collect(),
        ),
        (data_type::INT64, None) => Data::Int(proto.int64_data.clone()),
        (data_type::INT32, Some(raw)) => Data::Int(
            raw.as_chunks::<4>()
                .0
                .iter()
                .map(|b| i32::from_le_bytes(*b).into())
                .collect(),
        ),
        (data_type::INT32, None) => Data::Int(proto.int32_data.iter().map(|&v| v.into()).collect()),
        (kind, raw) => {
            let widen = |bits: u16| match kind {
                data_type::FLOAT16 => f16::from_bits(bits).to_f32(),
                _ => bf16::from_bits(bits).to_f32(),
            };
            Data::Float(match raw {
                Some(raw) => {
                    let pairs = raw.as_chunks::<2>().0.iter();
                    pairs.map(|b| widen(u16::from_le_bytes(*b))).collect()
                }
                None => {
                    let mut values = Vec::with_capacity(count);
                    for &v in &proto.int32_data {
                        let bits = u16::try_from(v)
                            .map_err(|_| format!("{v} is not the bits of a 16-bit value"))?;
                        values.push(widen(bits));
                    }
                    values
                }
            })
        }
    };
    Ok(Tensor {
        dims,
        data: Rc::new(data),
    })
}

/// The shape, and its number of values. An empty tensor is accepted only as an empty list, since
/// `[2^60, 0]` would give loops over nothing that never end.
fn shape(dims: &[i64]) -> Result<(Vec<usize>, usize), String> {
    if dims.len() > MOST_AXES {
        return Err(format!(
            "{} axes; at most {MOST_AXES} are supported",
            dims.len()
        ));
    }
    let mut shape = Vec::with_capacity(dims.len());
    let mut count = 1usize;
    for &dim in dims {
        let size = usize::try_from(dim).map_err(|_| format!("axis of size {dim} in {dims:?}"))?;
        if size == 0 && dims.len() > 1 {
            return Err(format!(
                "empty shape {dims:?}; every axis needs at least one entry"
            ));
        }
        count = count
            .checked_mul(size)
            .ok_or_else(|| format!("shape {dims:?} has more values than memory"))?;
        shape.push(size);
    }
    Ok((shape, count))
}
