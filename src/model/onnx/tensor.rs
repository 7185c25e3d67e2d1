//! Constant tensors: decodes them and evaluates the operations that exporters leave on them.
//! PyTorch's exporters reorder large weights with Slice and Concat nodes.

use std::mem::discriminant;
use std::rc::Rc;

use half::{bf16, f16};

use super::budget::Budget;
use super::proto::{TensorProto, data_type};
use crate::model::LoadError;

/// Largest number of axes of a value. Exported recurrent graphs use at most 4.
pub(super) const MAX_AXES: usize = 16;

/// The values of a tensor. Floats and integers are widened. Bytes keep their type: they are
/// weights, and the type decides the middle of their range.
#[derive(Debug, PartialEq)]
pub(super) enum Data {
    Float(Vec<f32>),
    Int(Vec<i64>),
    Int8(Vec<i8>),
    Uint8(Vec<u8>),
}

impl Data {
    pub(super) fn len(&self) -> usize {
        match self {
            Data::Float(v) => v.len(),
            Data::Int(v) => v.len(),
            Data::Int8(v) => v.len(),
            Data::Uint8(v) => v.len(),
        }
    }

    /// Their type, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Data::Float(_) => "floats",
            Data::Int(_) => "integers",
            Data::Int8(_) => "int8",
            Data::Uint8(_) => "uint8",
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

    /// Its integers, if it holds integers.
    pub(super) fn as_ints(&self) -> Option<&[i64]> {
        match &*self.data {
            Data::Int(v) => Some(v),
            _ => None,
        }
    }

    /// Its floats, if it holds floats.
    pub(super) fn as_floats(&self) -> Option<&[f32]> {
        match &*self.data {
            Data::Float(v) => Some(v),
            _ => None,
        }
    }

    /// Whether every value is zero.
    pub(super) fn is_zero(&self) -> bool {
        match &*self.data {
            Data::Float(v) => v.iter().all(|x| *x == 0.0),
            Data::Int(v) => v.iter().all(|x| *x == 0),
            Data::Int8(v) => v.iter().all(|x| *x == 0),
            Data::Uint8(v) => v.iter().all(|x| *x == 0),
        }
    }

    /// The same values with another shape of the same number of values.
    pub(super) fn with_dims(&self, dims: Vec<usize>) -> Tensor {
        debug_assert_eq!(dims.iter().product::<usize>(), self.data.len());
        Tensor {
            dims,
            data: Rc::clone(&self.data),
        }
    }

    /// The entries `indices` of one axis, in that order.
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

    /// Concatenates tensors along `axis`. Their shapes must agree on all other axes.
    pub(super) fn concat(
        parts: &[Tensor],
        axis: usize,
        budget: &mut Budget,
    ) -> Result<Tensor, String> {
        let mut dims = parts[0].dims.clone();
        let agree = |t: &Tensor| {
            t.dims.len() == dims.len()
                && (0..dims.len()).all(|d| d == axis || t.dims[d] == dims[d])
                && discriminant(&*t.data) == discriminant(&*parts[0].data)
        };
        if !parts.iter().all(agree) {
            return Err(
                "the constants to concatenate differ in type or in another axis than the given one"
                    .into(),
            );
        }
        // Every part is allocated, so these sums cannot overflow.
        budget.charge(parts.iter().map(|t| t.data.len()).sum())?;
        dims[axis] = parts.iter().map(|t| t.dims[axis]).sum();
        let outer: usize = dims[..axis].iter().product();
        let all = parts.iter().map(|t| &*t.data);
        let data = match &*parts[0].data {
            Data::Float(_) => Data::Float(interleaved(outer, all, |d| match d {
                Data::Float(v) => v,
                _ => &[],
            })),
            Data::Int(_) => Data::Int(interleaved(outer, all, |d| match d {
                Data::Int(v) => v,
                _ => &[],
            })),
            Data::Int8(_) => Data::Int8(interleaved(outer, all, |d| match d {
                Data::Int8(v) => v,
                _ => &[],
            })),
            Data::Uint8(_) => Data::Uint8(interleaved(outer, all, |d| match d {
                Data::Uint8(v) => v,
                _ => &[],
            })),
        };
        Ok(Tensor {
            dims,
            data: Rc::new(data),
        })
    }

    /// Reorders the axes: axis `i` of the result is axis `order[i]` of this tensor.
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
        let data = match &*self.data {
            Data::Float(v) => Data::Float(runs(v, starts, run)),
            Data::Int(v) => Data::Int(runs(v, starts, run)),
            Data::Int8(v) => Data::Int8(runs(v, starts, run)),
            Data::Uint8(v) => Data::Uint8(runs(v, starts, run)),
        };
        Tensor {
            dims,
            data: Rc::new(data),
        }
    }
}

/// Copies `run` values from each start.
fn runs<T: Copy>(values: &[T], starts: impl Iterator<Item = usize>, run: usize) -> Vec<T> {
    let all = starts.flat_map(|s| &values[s..s + run]);
    all.copied().collect()
}

/// Splits every part into `outer` equal shares; copies the first share of every part, then the
/// second of every part, and so on.
fn interleaved<'a, T: Copy + 'a>(
    outer: usize,
    parts: impl Iterator<Item = &'a Data> + Clone,
    values: impl Fn(&'a Data) -> &'a [T],
) -> Vec<T> {
    let mut all = Vec::with_capacity(parts.clone().map(Data::len).sum());
    for share in 0..outer {
        for part in parts.clone() {
            let run = part.len() / outer;
            all.extend_from_slice(&values(part)[share * run..(share + 1) * run]);
        }
    }
    all
}

/// Decodes a tensor of the file. All checks precede the first allocation.
pub(super) fn decode(name: &str, proto: &TensorProto) -> Result<Tensor, LoadError> {
    read(proto).map_err(|reason| LoadError::Tensor {
        name: name.to_string(),
        reason,
    })
}

fn read(proto: &TensorProto) -> Result<Tensor, String> {
    if proto.data_location != 0 {
        return Err(
            "its data is in another file; save the model with its data inside the file \
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
        data_type::INT8 | data_type::UINT8 => 1,
        other => {
            return Err(format!(
                "element type {} is not supported; use float, float16 or bfloat16 (weights), int8 \
                 or uint8 (weights of DynamicQuantizeLSTM), int32 or int64 (shapes)",
                data_type::name(other)
            ));
        }
    };
    let typed = proto.float_data.len() + proto.int32_data.len() + proto.int64_data.len();
    let held = match &proto.raw_data {
        Some(_) if typed > 0 => return Err("it has both raw and typed data".into()),
        Some(raw) if raw.len() % width != 0 => {
            return Err(format!(
                "{} bytes of raw data are not a multiple of {width}, the bytes of a value",
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
            "shape {dims:?} needs {count} values of type {}, but the file holds {held} (of {typed} \
             typed values)",
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
        (data_type::INT8, Some(raw)) => Data::Int8(raw.iter().map(|b| b.cast_signed()).collect()),
        (data_type::INT8, None) => Data::Int8(narrowed(&proto.int32_data, "int8")?),
        (data_type::UINT8, Some(raw)) => Data::Uint8(raw.to_vec()),
        (data_type::UINT8, None) => Data::Uint8(narrowed(&proto.int32_data, "uint8")?),
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

/// Narrows the typed form of bytes, which has one byte in each 32-bit integer.
fn narrowed<T: TryFrom<i32>>(values: &[i32], name: &str) -> Result<Vec<T>, String> {
    let narrow = |&v| T::try_from(v).map_err(|_| format!("{v} is not of type {name}"));
    values.iter().map(narrow).collect()
}

/// The shape and its number of values. An empty tensor may have only one axis: with `[2^60, 0]`,
/// loops over the first axis would not end.
fn shape(dims: &[i64]) -> Result<(Vec<usize>, usize), String> {
    if dims.len() > MAX_AXES {
        return Err(format!(
            "{} axes; at most {MAX_AXES} are supported",
            dims.len()
        ));
    }
    let mut shape = Vec::with_capacity(dims.len());
    let mut count = 1usize;
    for &dim in dims {
        let size = usize::try_from(dim).map_err(|_| format!("axis of size {dim} in {dims:?}"))?;
        if size == 0 && dims.len() > 1 {
            return Err(format!(
                "empty shape {dims:?}; every axis must have length 1 or more"
            ));
        }
        count = count
            .checked_mul(size)
            .ok_or_else(|| format!("shape {dims:?} has too many values for memory"))?;
        shape.push(size);
    }
    Ok((shape, count))
}
