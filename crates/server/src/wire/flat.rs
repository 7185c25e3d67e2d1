//! The elements of a tensor in JSON: a flat list, or lists within lists.

use std::fmt;
use std::marker::PhantomData;

use bytes::Bytes;
use half::f16;
use serde::de::{DeserializeSeed, Deserializer, Error, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// An element in JSON.
pub trait Element: Sized {
    /// The words for it in an error.
    const EXPECTED: &'static str;

    fn of_integer(_: i128) -> Option<Self> {
        None
    }

    fn of_float(_: f64) -> Option<Self> {
        None
    }

    fn of_bool(_: bool) -> Option<Self> {
        None
    }

    fn of_string(_: &str) -> Option<Self> {
        None
    }
}

macro_rules! integers {
    ($($type:ty)*) => {
        $(impl Element for $type {
            const EXPECTED: &'static str = concat!("integers of the type ", stringify!($type));

            fn of_integer(value: i128) -> Option<$type> {
                value.try_into().ok()
            }
        })*
    };
}

integers! { i8 i16 i32 i64 u8 u16 u32 u64 }

/// The names of floats that JSON has no numbers for, as the JSON of Protocol Buffers has them.
const NAMES: [(&str, f64); 3] = [
    ("Infinity", f64::INFINITY),
    ("-Infinity", f64::NEG_INFINITY),
    ("NaN", f64::NAN),
];

/// A float in JSON: a number, or the name of one that is infinite or not a number.
pub struct FloatJson<T>(pub T);

macro_rules! float_json {
    ($($type:ty, $serialize:ident;)*) => {
        $(impl Serialize for FloatJson<$type> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                if self.0.is_finite() {
                    return serializer.$serialize(self.0);
                }
                // All that are left are equal to one of the infinities, or to nothing.
                let named = NAMES.iter().find(|(_, value)| *value == f64::from(self.0));
                serializer.serialize_str(named.map_or("NaN", |(name, _)| name))
            }
        })*
    };
}

float_json! { f32, serialize_f32; f64, serialize_f64; }

macro_rules! floats {
    ($($type:ty, $of:expr;)*) => {
        $(impl Element for $type {
            const EXPECTED: &'static str =
                "numbers of the type or \"Infinity\", \"-Infinity\", \"NaN\"";

            fn of_integer(value: i128) -> Option<$type> {
                Self::of_float(value as f64)
            }

            fn of_float(value: f64) -> Option<$type> {
                Some($of(value)).filter(|value: &$type| value.is_finite())
            }

            fn of_string(value: &str) -> Option<$type> {
                let named = NAMES.iter().find(|(name, _)| *name == value);
                named.map(|(_, value)| $of(*value))
            }
        })*
    };
}

floats! {
    f32, |value: f64| value as f32;
    f64, |value: f64| value;
    f16, f16::from_f64;
}

impl Element for bool {
    const EXPECTED: &'static str = "true or false";

    fn of_integer(value: i128) -> Option<bool> {
        matches!(value, 0 | 1).then_some(value == 1)
    }

    fn of_bool(value: bool) -> Option<bool> {
        Some(value)
    }
}

impl Element for Bytes {
    const EXPECTED: &'static str = "strings";

    fn of_string(value: &str) -> Option<Bytes> {
        Some(Bytes::copy_from_slice(value.as_bytes()))
    }
}

/// Reads all elements, however deep they are nested.
///
/// # Errors
/// JSON that is malformed, or has elements of another type.
pub fn flat<T: Element>(json: &str) -> Result<Vec<T>, serde_json::Error> {
    Ok(Flat::<T>::deserialize(&mut serde_json::Deserializer::from_str(json))?.0)
}

struct Flat<T>(Vec<T>);

impl<'de, T: Element> Deserialize<'de> for Flat<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Flat<T>, D::Error> {
        let mut values = Vec::new();
        deserializer.deserialize_seq(Into(&mut values))?;
        Ok(Flat(values))
    }
}

/// Adds an element, or those of a list, to the vector.
struct Into<'a, T>(&'a mut Vec<T>);

impl<'de, T: Element> DeserializeSeed<'de> for Into<'_, T> {
    type Value = PhantomData<T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<T: Element> Into<'_, T> {
    fn push<E: Error>(
        self,
        value: Option<T>,
        unexpected: Unexpected<'_>,
    ) -> Result<PhantomData<T>, E> {
        let value = value.ok_or_else(|| E::invalid_value(unexpected, &T::EXPECTED))?;
        self.0.push(value);
        Ok(PhantomData)
    }
}

impl<'de, T: Element> Visitor<'de> for Into<'_, T> {
    type Value = PhantomData<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<PhantomData<T>, E> {
        self.push(T::of_bool(value), Unexpected::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<PhantomData<T>, E> {
        self.push(T::of_integer(value.into()), Unexpected::Signed(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<PhantomData<T>, E> {
        self.push(T::of_integer(value.into()), Unexpected::Unsigned(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<PhantomData<T>, E> {
        self.push(T::of_float(value), Unexpected::Float(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<PhantomData<T>, E> {
        self.push(T::of_string(value), Unexpected::Str(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<PhantomData<T>, A::Error> {
        while list.next_element_seed(Into(&mut *self.0))?.is_some() {}
        Ok(PhantomData)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_within_lists_are_one_list() {
        let read = flat::<f32>("[[1, 2.5], [[-3e-1], []], 4]").expect("numbers");
        assert_eq!(read, [1.0, 2.5, -0.3, 4.0]);
    }

    #[test]
    fn floats_that_are_no_numbers_have_names() {
        let values = [1.5, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
        let json = serde_json::to_string(&values.map(FloatJson)).expect("JSON");
        assert_eq!(json, r#"[1.5,"Infinity","-Infinity","NaN"]"#);
        let read = flat::<f32>(&json).expect("numbers");
        assert_eq!(read[..3], values[..3]);
        assert!(read[3].is_nan());
    }

    #[test]
    fn elements_of_another_type_are_errors() {
        assert!(flat::<f32>("[1, \"2\"]").is_err());
        assert!(flat::<i64>("[1.5]").is_err());
        assert!(flat::<u8>("[256]").is_err());
        assert!(flat::<bool>("[2]").is_err());
        assert!(flat::<Bytes>("[1]").is_err());
        assert!(flat::<f32>("1").is_err());
        assert!(
            flat::<f32>("[1e39]").is_err(),
            "no infinity that nobody asked for"
        );
        assert!(flat::<f16>("[70000]").is_err());
        assert!(flat::<f32>("[\"infinity\"]").is_err());
        assert!(
            flat::<f32>(&"[".repeat(10_000)).is_err(),
            "no overflow of the stack"
        );
    }
}
