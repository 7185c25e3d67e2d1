//! The elements of tensors, little-endian.

use std::str::FromStr;

use half::{bf16, f16};

/// The type of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    Bool,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    F16,
    Bf16,
    F32,
    F64,
    Text,
}

/// All, with their names in the protocol and their sizes in bytes.
const ALL: [(Element, &str, usize); 14] = [
    (Element::Bool, "BOOL", 1),
    (Element::I8, "INT8", 1),
    (Element::I16, "INT16", 2),
    (Element::I32, "INT32", 4),
    (Element::I64, "INT64", 8),
    (Element::U8, "UINT8", 1),
    (Element::U16, "UINT16", 2),
    (Element::U32, "UINT32", 4),
    (Element::U64, "UINT64", 8),
    (Element::F16, "FP16", 2),
    (Element::Bf16, "BF16", 2),
    (Element::F32, "FP32", 4),
    (Element::F64, "FP64", 8),
    // The length; the text follows.
    (Element::Text, "BYTES", 4),
];

impl FromStr for Element {
    type Err = ();

    fn from_str(name: &str) -> Result<Element, ()> {
        let found = ALL.iter().find(|(_, other, _)| *other == name);
        found.map(|(element, ..)| *element).ok_or(())
    }
}

impl Element {
    /// The name in the protocol.
    pub fn name(self) -> &'static str {
        ALL[self as usize].1
    }

    /// The size in bytes.
    pub fn bytes(self) -> usize {
        ALL[self as usize].2
    }

    pub fn is_float(self) -> bool {
        matches!(
            self,
            Element::F16 | Element::Bf16 | Element::F32 | Element::F64
        )
    }

    /// Whether a number can be an element; floats are rounded.
    pub fn holds(self, number: f64) -> bool {
        if self.is_float() || self == Element::Text {
            return number.is_finite() && self != Element::Text;
        }
        let (low, high) = self.bounds();
        number.fract() == 0.0 && (low..=high).contains(&number)
    }

    /// The least and the greatest integer, of 64 bits those that f64 has.
    fn bounds(self) -> (f64, f64) {
        let signed = |bits: i32| {
            let half = 2_f64.powi((bits - 1).min(53));
            (-half, half - 1.0)
        };
        let unsigned = |bits: i32| (0.0, 2_f64.powi(bits.min(53)) - 1.0);
        match self {
            Element::Bool => (0.0, 1.0),
            Element::I8 | Element::I16 | Element::I32 | Element::I64 => {
                signed(8 * self.bytes() as i32)
            }
            _ => unsigned(8 * self.bytes() as i32),
        }
    }

    /// Appends a number that [`Element::holds`]; nothing for a text.
    pub fn write(self, number: f64, to: &mut Vec<u8>) {
        match self {
            Element::Bool | Element::U8 => to.extend((number as u8).to_le_bytes()),
            Element::I8 => to.extend((number as i8).to_le_bytes()),
            Element::I16 => to.extend((number as i16).to_le_bytes()),
            Element::I32 => to.extend((number as i32).to_le_bytes()),
            Element::I64 => to.extend((number as i64).to_le_bytes()),
            Element::U16 => to.extend((number as u16).to_le_bytes()),
            Element::U32 => to.extend((number as u32).to_le_bytes()),
            Element::U64 => to.extend((number as u64).to_le_bytes()),
            Element::F16 => to.extend(f16::from_f64(number).to_le_bytes()),
            Element::Bf16 => to.extend(bf16::from_f64(number).to_le_bytes()),
            Element::F32 => to.extend((number as f32).to_le_bytes()),
            Element::F64 => to.extend(number.to_le_bytes()),
            Element::Text => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_have_their_bytes() {
        for (index, (element, name, bytes)) in ALL.into_iter().enumerate() {
            assert_eq!((element as usize, name.parse()), (index, Ok(element)));
            let mut raw = Vec::new();
            element.write(1.0, &mut raw);
            let expected: &[u8] = match element {
                Element::F16 => &[0, 0x3c],
                Element::Bf16 => &[0x80, 0x3f],
                Element::F32 => &[0, 0, 0x80, 0x3f],
                Element::F64 => &[0, 0, 0, 0, 0, 0, 0xf0, 0x3f],
                Element::Text => &[],
                _ => &[1, 0, 0, 0, 0, 0, 0, 0][..bytes],
            };
            assert_eq!(raw, expected, "{name}");
        }
        assert_eq!("FP8".parse::<Element>(), Err(()));
    }

    #[test]
    fn integers_hold_their_range() {
        for (element, low, high) in [
            (Element::Bool, 0.0, 1.0),
            (Element::I8, -128.0, 127.0),
            (Element::U8, 0.0, 255.0),
            (Element::I32, -2147483648.0, 2147483647.0),
            (Element::U16, 0.0, 65535.0),
        ] {
            assert!(element.holds(low) && element.holds(high), "{element:?}");
            assert!(
                !element.holds(low - 1.0) && !element.holds(high + 1.0),
                "{element:?}"
            );
            assert!(!element.holds(0.5), "{element:?}");
        }
        assert!(Element::I64.holds(-9e15) && Element::F16.holds(0.5));
        assert!(!Element::F32.holds(f64::NAN) && !Element::Text.holds(1.0));
    }
}
