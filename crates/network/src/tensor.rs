//! Values of inputs and outputs.

use std::borrow::Cow;

use half::f16;
use tract_onnx::pb::TensorProto;
use tract_onnx::prelude::{Datum, DatumType, TDim, Tensor as TractTensor};

use crate::NetworkError;

/// An array in row-major order.
///
/// ```
/// use gatestream_network::Tensor;
///
/// let x = Tensor::new(&[1, 2, 3], vec![0.5f32; 6])?;
/// assert_eq!(x.shape(), [1, 2, 3]);
/// # Ok::<(), gatestream_network::NetworkError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    shape: Vec<usize>,
    data: Data,
}

macro_rules! elements {
    ($($variant:ident, $type:ty, $name:literal;)*) => {
        /// The elements of a [`Tensor`].
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum Data {
            $(#[doc = concat!("Elements of the type `", $name, "`.")] $variant(Vec<$type>),)*
        }

        /// The type of the elements of a [`Tensor`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ElementType {
            $(#[doc = concat!("`", $name, "`.")] $variant,)*
        }

        impl ElementType {
            /// The name, as NumPy has it.
            pub fn name(self) -> &'static str {
                match self {
                    $(ElementType::$variant => $name,)*
                }
            }
        }

        impl Data {
            /// Number of elements.
            pub fn len(&self) -> usize {
                match self {
                    $(Data::$variant(values) => values.len(),)*
                }
            }

            /// The type of the elements.
            pub fn element_type(&self) -> ElementType {
                match self {
                    $(Data::$variant(_) => ElementType::$variant,)*
                }
            }
        }

        $(impl From<Vec<$type>> for Data {
            fn from(values: Vec<$type>) -> Data {
                Data::$variant(values)
            }
        })*

        impl Tensor {
            pub(crate) fn to_tract(&self) -> Result<TractTensor, String> {
                let made = match &self.data {
                    $(Data::$variant(values) => TractTensor::from_shape(&self.shape, values),)*
                };
                made.map_err(|why| format!("{why:#}"))
            }

            pub(crate) fn from_tract(tensor: &TractTensor) -> Result<Tensor, String> {
                // A size that tract has kept symbolic until now.
                let is_size = tensor.datum_type() == TDim::datum_type();
                let tensor = if is_size {
                    tensor.cast_to::<i64>().map_err(|why| format!("{why:#}"))?
                } else {
                    Cow::Borrowed(tensor)
                };
                let shape = tensor.shape().to_vec();
                let plain = tensor.try_as_plain_ram().map_err(|why| format!("{why:#}"))?;
                let kind = ElementType::of(tensor.datum_type());
                let data = match kind {
                    $(Some(ElementType::$variant) => {
                        let values = plain.as_slice::<$type>().map_err(|why| format!("{why:#}"))?;
                        Data::$variant(values.to_vec())
                    })*
                    None => return Err(format!("{:?} is no type of a result", tensor.datum_type())),
                };
                Ok(Tensor { shape, data })
            }
        }
    };
}

elements! {
    F32, f32, "float32";
    F64, f64, "float64";
    F16, f16, "float16";
    I64, i64, "int64";
    I32, i32, "int32";
    I16, i16, "int16";
    I8, i8, "int8";
    U64, u64, "uint64";
    U32, u32, "uint32";
    U16, u16, "uint16";
    U8, u8, "uint8";
    Bool, bool, "bool";
}

impl Data {
    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl std::fmt::Display for ElementType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl ElementType {
    pub(crate) fn of(datum: DatumType) -> Option<ElementType> {
        Some(match datum.unquantized() {
            DatumType::F32 => ElementType::F32,
            DatumType::F64 => ElementType::F64,
            DatumType::F16 => ElementType::F16,
            DatumType::I64 => ElementType::I64,
            DatumType::I32 => ElementType::I32,
            DatumType::I16 => ElementType::I16,
            DatumType::I8 => ElementType::I8,
            DatumType::U64 => ElementType::U64,
            DatumType::U32 => ElementType::U32,
            DatumType::U16 => ElementType::U16,
            DatumType::U8 => ElementType::U8,
            DatumType::Bool => ElementType::Bool,
            _ => return None,
        })
    }

    /// The number of ONNX's `TensorProto.DataType`.
    pub(crate) fn to_onnx(self) -> i32 {
        let mut of_type = (1..=13).filter(|&number| ElementType::of_onnx(number) == Some(self));
        of_type.next().expect("every type has a number")
    }

    /// Of a number of ONNX's `TensorProto.DataType`.
    pub(crate) fn of_onnx(number: i32) -> Option<ElementType> {
        Some(match number {
            1 => ElementType::F32,
            2 => ElementType::U8,
            3 => ElementType::I8,
            4 => ElementType::U16,
            5 => ElementType::I16,
            6 => ElementType::I32,
            7 => ElementType::I64,
            9 => ElementType::Bool,
            10 => ElementType::F16,
            11 => ElementType::F64,
            12 => ElementType::U32,
            13 => ElementType::U64,
            _ => return None,
        })
    }

    /// The name of any number, also of one that is not supported.
    pub(crate) fn name_of_onnx(number: i32) -> String {
        let name = match number {
            8 => "string",
            14 => "complex64",
            15 => "complex128",
            16 => "bfloat16",
            17 => "float8e4m3fn",
            18 => "float8e4m3fnuz",
            19 => "float8e5m2",
            20 => "float8e5m2fnuz",
            21 => "uint4",
            22 => "int4",
            23 => "float4e2m1",
            _ => match ElementType::of_onnx(number) {
                Some(known) => known.name(),
                None => return format!("number {number} of TensorProto.DataType"),
            },
        };
        name.to_owned()
    }
}

impl Tensor {
    /// A tensor of these elements, row by row.
    ///
    /// # Errors
    /// [`NetworkError::Malformed`] if the shape has another number of elements.
    pub fn new(shape: &[usize], data: impl Into<Data>) -> Result<Tensor, NetworkError> {
        let data = data.into();
        let expected = shape
            .iter()
            .try_fold(1usize, |all, &one| all.checked_mul(one));
        if expected != Some(data.len()) {
            return Err(NetworkError::Malformed(format!(
                "a tensor of shape {shape:?} has {} elements; give as many as the shape has",
                data.len()
            )));
        }
        Ok(Tensor {
            shape: shape.to_vec(),
            data,
        })
    }

    /// Length of each axis, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The elements.
    pub fn data(&self) -> &Data {
        &self.data
    }

    /// The elements, without a copy.
    pub fn into_data(self) -> Data {
        self.data
    }

    /// The first element as an integer; `None` if there is none or it is no integer.
    pub(crate) fn first_integer(&self) -> Option<i64> {
        let tensor = self.to_tract().ok()?;
        let tensor = tensor.cast_to::<i64>().ok()?;
        let plain = tensor.try_as_plain_ram().ok()?;
        plain.as_slice::<i64>().ok()?.first().copied()
    }

    /// A constant of a graph.
    pub(crate) fn to_proto(&self, name: &str) -> TensorProto {
        let bytes = self.to_tract().map(|tensor| tensor.as_bytes().to_vec());
        TensorProto {
            name: name.to_owned(),
            dims: self.shape.iter().map(|&size| size as i64).collect(),
            data_type: self.data.element_type().to_onnx(),
            raw_data: bytes.unwrap_or_default(),
            ..TensorProto::default()
        }
    }

    /// The elements, if they are `f32`.
    pub fn floats(&self) -> Option<&[f32]> {
        match &self.data {
            Data::F32(values) => Some(values),
            _ => None,
        }
    }
}
