//! A named array, and the names of its element types in the protocol.

use std::borrow::Cow;

use bytes::{BufMut, Bytes, BytesMut};
use half::{bf16, f16};
use serde::{Serialize, Serializer};

use super::{FloatJson, flat};
use crate::error::InferError;

/// An array with a name, in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    pub name: String,
    pub shape: Vec<usize>,
    pub data: Data,
}

macro_rules! datatypes {
    ($($variant:ident, $type:ty, $name:literal, $size:literal;)*) => {
        /// The elements of a [`Tensor`].
        #[derive(Clone, Debug, PartialEq)]
        pub enum Data {
            $($variant(Vec<$type>),)*
            /// Strings, UTF-8 or not.
            Bytes(Vec<Bytes>),
        }

        /// The type of the elements of a [`Tensor`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Datatype {
            $($variant,)*
            Bytes,
        }

        impl Datatype {
            /// The name in the protocol.
            pub fn name(self) -> &'static str {
                match self {
                    $(Datatype::$variant => $name,)*
                    Datatype::Bytes => "BYTES",
                }
            }

            /// The name in a model configuration of Triton.
            pub fn config_name(self) -> &'static str {
                match self {
                    $(Datatype::$variant => concat!("TYPE_", $name),)*
                    Datatype::Bytes => "TYPE_STRING",
                }
            }

            /// The type of this name.
            pub fn named(name: &str) -> Option<Datatype> {
                match name {
                    $($name => Some(Datatype::$variant),)*
                    "BYTES" => Some(Datatype::Bytes),
                    _ => None,
                }
            }
        }

        impl Data {
            pub fn datatype(&self) -> Datatype {
                match self {
                    $(Data::$variant(_) => Datatype::$variant,)*
                    Data::Bytes(_) => Datatype::Bytes,
                }
            }

            /// Number of elements.
            pub fn len(&self) -> usize {
                match self {
                    $(Data::$variant(values) => values.len(),)*
                    Data::Bytes(values) => values.len(),
                }
            }

            /// Bytes of all elements in memory.
            pub fn bytes(&self) -> usize {
                match self {
                    $(Data::$variant(values) => size_of_val(values.as_slice()),)*
                    Data::Bytes(values) => {
                        let strings = values.iter().map(Bytes::len).sum::<usize>();
                        size_of_val(values.as_slice()) + strings
                    }
                }
            }

            /// These elements again and again, until there are so many.
            pub fn repeated(&self, count: usize) -> Data {
                match self {
                    $(Data::$variant(values) => {
                        Data::$variant(values.iter().copied().cycle().take(count).collect())
                    })*
                    Data::Bytes(values) => {
                        Data::Bytes(values.iter().cloned().cycle().take(count).collect())
                    }
                }
            }

            /// Reads little-endian elements; `None`: the length is not that of whole elements.
            pub fn from_raw(datatype: Datatype, raw: &[u8]) -> Option<Data> {
                match datatype {
                    $(Datatype::$variant => {
                        let (elements, rest) = raw.as_chunks::<$size>();
                        let read = |element: &[u8; $size]| <$type as Raw<$size>>::read(*element);
                        rest.is_empty().then(|| Data::$variant(elements.iter().map(read).collect()))
                    })*
                    Datatype::Bytes => strings(raw).map(Data::Bytes),
                }
            }

            /// Little-endian elements.
            pub fn to_raw(&self) -> Bytes {
                match self {
                    $(Data::$variant(values) => {
                        let raw: Vec<[u8; $size]> =
                            values.iter().map(|&value| Raw::<$size>::raw(value)).collect();
                        Bytes::from(raw.into_flattened())
                    })*
                    Data::Bytes(values) => {
                        let mut raw = BytesMut::new();
                        for value in values {
                            raw.put_u32_le(value.len() as u32);
                            raw.put_slice(value);
                        }
                        raw.freeze()
                    }
                }
            }

            /// Reads the list of elements, nested or flat.
            ///
            /// # Errors
            /// JSON that is malformed, or has elements of another type.
            pub fn from_json(datatype: Datatype, json: &str) -> Result<Data, serde_json::Error> {
                Ok(match datatype {
                    $(Datatype::$variant => Data::$variant(flat(json)?),)*
                    Datatype::Bytes => Data::Bytes(flat(json)?),
                })
            }
        }
    };
}

datatypes! {
    F32, f32, "FP32", 4;
    F64, f64, "FP64", 8;
    F16, f16, "FP16", 2;
    I64, i64, "INT64", 8;
    I32, i32, "INT32", 4;
    I16, i16, "INT16", 2;
    I8, i8, "INT8", 1;
    U64, u64, "UINT64", 8;
    U32, u32, "UINT32", 4;
    U16, u16, "UINT16", 2;
    U8, u8, "UINT8", 1;
    Bool, bool, "BOOL", 1;
}

/// Elements of `N` bytes.
trait Raw<const N: usize>: Copy {
    fn read(raw: [u8; N]) -> Self;
    fn raw(self) -> [u8; N];
}

macro_rules! raw {
    ($($type:ty, $size:literal;)*) => {
        $(impl Raw<$size> for $type {
            fn read(raw: [u8; $size]) -> $type {
                <$type>::from_le_bytes(raw)
            }

            fn raw(self) -> [u8; $size] {
                self.to_le_bytes()
            }
        })*
    };
}

raw! {
    f32, 4; f64, 8; f16, 2; i64, 8; i32, 4; i16, 2; i8, 1; u64, 8; u32, 4; u16, 2; u8, 1;
}

impl Raw<1> for bool {
    fn read([raw]: [u8; 1]) -> bool {
        raw != 0
    }

    fn raw(self) -> [u8; 1] {
        [self.into()]
    }
}

/// As a flat list.
impl Serialize for Data {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Data::F32(values) => serializer.collect_seq(values.iter().map(|&v| FloatJson(v))),
            Data::F64(values) => serializer.collect_seq(values.iter().map(|&v| FloatJson(v))),
            Data::F16(values) => {
                serializer.collect_seq(values.iter().map(|v| FloatJson(v.to_f32())))
            }
            Data::I64(values) => values.serialize(serializer),
            Data::I32(values) => values.serialize(serializer),
            Data::I16(values) => values.serialize(serializer),
            Data::I8(values) => values.serialize(serializer),
            Data::U64(values) => values.serialize(serializer),
            Data::U32(values) => values.serialize(serializer),
            Data::U16(values) => values.serialize(serializer),
            Data::U8(values) => values.serialize(serializer),
            Data::Bool(values) => values.serialize(serializer),
            Data::Bytes(values) => {
                serializer.collect_seq(values.iter().map(|v| String::from_utf8_lossy(v)))
            }
        }
    }
}

/// The product of the axes; `None`: more elements than memory has addresses.
pub fn elements(shape: &[usize]) -> Option<usize> {
    shape
        .iter()
        .try_fold(1usize, |all, &axis| all.checked_mul(axis))
}

impl Tensor {
    /// An input of a request, whose elements fill the shape.
    ///
    /// # Errors
    /// A negative axis; another number of elements than the shape has.
    pub fn input(name: &str, shape: &[i64], data: Data) -> Result<Tensor, InferError> {
        let axes: Option<Vec<usize>> = shape.iter().map(|&axis| axis.try_into().ok()).collect();
        let axes = axes.ok_or_else(|| {
            InferError::invalid(format!(
                "input {name:?} has the shape {shape:?}; axes are 0 or more"
            ))
        })?;
        if elements(&axes) != Some(data.len()) {
            return Err(InferError::invalid(format!(
                "input {name:?} has the shape {shape:?} and {} elements",
                data.len()
            )));
        }
        Ok(Tensor {
            name: name.to_owned(),
            shape: axes,
            data,
        })
    }

    /// The elements as `f32`; those of the type `FP16` are widened.
    ///
    /// # Errors
    /// Another type.
    pub fn floats(&self) -> Result<Cow<'_, [f32]>, InferError> {
        match &self.data {
            Data::F32(values) => Ok(Cow::Borrowed(values)),
            Data::F16(values) => Ok(values.iter().map(|value| value.to_f32()).collect()),
            data => Err(self.expected("FP32", data)),
        }
    }

    /// The elements as sizes or indices.
    ///
    /// # Errors
    /// Another type, or a negative element.
    pub fn indices(&self) -> Result<Vec<usize>, InferError> {
        let read = |value: i64| {
            usize::try_from(value).map_err(|_| {
                InferError::invalid(format!("input {:?} has the element {value}", self.name))
            })
        };
        match &self.data {
            Data::I64(values) => values.iter().map(|&value| read(value)).collect(),
            Data::I32(values) => values.iter().map(|&value| read(value.into())).collect(),
            data => Err(self.expected("INT64", data)),
        }
    }

    fn expected(&self, expected: &str, found: &Data) -> InferError {
        let found = found.datatype().name();
        InferError::invalid(format!(
            "input {:?} has the datatype {found}; it must be {expected}",
            self.name
        ))
    }
}

impl Datatype {
    /// The type of an input.
    ///
    /// # Errors
    /// An unknown name.
    pub fn of_input(name: &str, datatype: &str) -> Result<Datatype, InferError> {
        Datatype::named(datatype).ok_or_else(|| {
            InferError::invalid(format!(
                "input {name:?} has the unknown datatype {datatype:?}"
            ))
        })
    }
}

impl Data {
    /// The elements of an input from their little-endian bytes. Those of the type `BF16`, which has
    /// no variant, are widened.
    ///
    /// # Errors
    /// An unknown type; a length that is not one of whole elements.
    pub fn of_input(name: &str, datatype: &str, raw: &[u8]) -> Result<Data, InferError> {
        let data = match datatype {
            "BF16" => widen_bf16(raw),
            datatype => Data::from_raw(Datatype::of_input(name, datatype)?, raw),
        };
        data.ok_or_else(|| {
            InferError::invalid(format!(
                "input {name:?} has {} bytes, which are no whole elements of {datatype}",
                raw.len()
            ))
        })
    }
}

fn widen_bf16(raw: &[u8]) -> Option<Data> {
    let (elements, rest) = raw.as_chunks::<2>();
    let widen = |element: &[u8; 2]| bf16::from_le_bytes(*element).to_f32();
    rest.is_empty()
        .then(|| Data::F32(elements.iter().map(widen).collect()))
}

/// The strings of the type `BYTES`: each has its length before it, four bytes.
fn strings(mut raw: &[u8]) -> Option<Vec<Bytes>> {
    let mut strings = Vec::new();
    while !raw.is_empty() {
        let (&length, rest) = raw.split_first_chunk::<4>()?;
        let (string, rest) = rest.split_at_checked(u32::from_le_bytes(length) as usize)?;
        strings.push(Bytes::copy_from_slice(string));
        raw = rest;
    }
    Some(strings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_elements_are_read_as_they_are_written() {
        let all = [
            Data::F32(vec![1.5, f32::NAN.copysign(-1.0), -0.0]),
            Data::F64(vec![0.1]),
            Data::F16(vec![f16::from_f32(0.5)]),
            Data::I64(vec![-1, i64::MAX]),
            Data::I32(vec![7]),
            Data::I16(vec![-2]),
            Data::I8(vec![-128]),
            Data::U64(vec![u64::MAX]),
            Data::U32(vec![9]),
            Data::U16(vec![1]),
            Data::U8(vec![255]),
            Data::Bool(vec![true, false]),
            Data::Bytes(vec![Bytes::from_static(b"ab"), Bytes::new()]),
        ];
        for data in all {
            let raw = data.to_raw();
            let read = Data::from_raw(data.datatype(), &raw).expect("whole elements");
            assert_eq!(format!("{read:?}"), format!("{data:?}"), "NaN included");
            assert_eq!(
                Datatype::named(data.datatype().name()),
                Some(data.datatype())
            );
        }
    }

    #[test]
    fn empty_strings_take_memory_too() {
        let pointer_and_length = 2 * size_of::<usize>();
        let empty = Data::Bytes(vec![Bytes::new(); 1000]);
        assert!(empty.bytes() >= 1000 * pointer_and_length);
    }

    #[test]
    fn incomplete_elements_are_refused() {
        assert!(Data::from_raw(Datatype::F32, &[0; 6]).is_none());
        assert!(Data::from_raw(Datatype::Bytes, &[2, 0, 0, 0, 97]).is_none());
        assert!(Data::from_raw(Datatype::Bytes, &[0, 0]).is_none());
        assert!(Tensor::input("x", &[2, -1], Data::F32(vec![])).is_err());
        assert!(Tensor::input("x", &[i64::MAX, 4], Data::F32(vec![0.0; 4])).is_err());
    }
}
