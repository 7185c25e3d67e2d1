//! A tensor and its bytes.

use std::borrow::Cow;
use std::sync::Arc;

use safetensors::tensor::Dtype;

/// A tensor and its bytes, in row-major order or as a view of others.
#[derive(Clone, Debug)]
pub(in crate::model) struct Entry<'a> {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    data: Data<'a>,
}

#[derive(Clone, Debug)]
enum Data<'a> {
    /// At least as many bytes as the shape says, of which the first are read.
    Rows(Bytes<'a>),
    /// Checked: every index of the shape is within the bytes.
    #[cfg_attr(not(feature = "pytorch"), expect(dead_code))]
    View {
        bytes: Bytes<'a>,
        /// In values.
        strides: Vec<usize>,
    },
}

/// Bytes of a file, or others, which copies of an entry share.
#[derive(Clone, Debug)]
enum Bytes<'a> {
    OfFile(&'a [u8]),
    Own(Arc<Vec<u8>>),
}

impl Bytes<'_> {
    fn all(&self) -> &[u8] {
        match self {
            Bytes::OfFile(bytes) => bytes,
            Bytes::Own(bytes) => bytes,
        }
    }
}

impl<'a> From<Cow<'a, [u8]>> for Bytes<'a> {
    fn from(bytes: Cow<'a, [u8]>) -> Bytes<'a> {
        match bytes {
            Cow::Borrowed(bytes) => Bytes::OfFile(bytes),
            Cow::Owned(bytes) => Bytes::Own(bytes.into()),
        }
    }
}

/// Where the values of an entry are and how they are read: two of one place are equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    address: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    strides: Option<Vec<usize>>,
}

impl<'a> Entry<'a> {
    /// A tensor with its rows in order: as many bytes as its shape says.
    pub fn new(dtype: Dtype, shape: Vec<usize>, bytes: impl Into<Cow<'a, [u8]>>) -> Entry<'a> {
        let data = Data::Rows(bytes.into().into());
        Entry { dtype, shape, data }
    }

    /// A tensor of `F32`.
    pub fn of_f32(shape: Vec<usize>, values: Vec<f32>) -> Entry<'static> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Entry::new(Dtype::F32, shape, bytes)
    }

    /// A tensor whose value at an index lies `Σ index · stride` values from the start of `bytes`.
    /// `None`: some lie beyond their end.
    #[cfg(feature = "pytorch")]
    pub fn strided(
        dtype: Dtype,
        shape: Vec<usize>,
        strides: Vec<usize>,
        bytes: impl Into<Cow<'a, [u8]>>,
    ) -> Option<Entry<'a>> {
        let bytes = bytes.into();
        let width = width(dtype);
        if shape.len() != strides.len() {
            return None;
        }
        let values = (shape.iter()).try_fold(1usize, |all, &size| all.checked_mul(size))?;
        let axes = || shape.iter().zip(&strides);
        let last = axes().try_fold(0usize, |last, (&size, &stride)| {
            last.checked_add(size.saturating_sub(1).checked_mul(stride)?)
        });
        let length = if values == 0 {
            0
        } else {
            last?.checked_add(1)?.checked_mul(width)?
        };
        if length > bytes.len() {
            return None;
        }
        let mut expected = 1usize;
        let is_in_rows = axes().rev().all(|(&size, &stride)| {
            let fits = size == 1 || stride == expected;
            expected = expected.saturating_mul(size);
            fits
        });
        let bytes = bytes.into();
        let data = if is_in_rows || values == 0 {
            Data::Rows(bytes)
        } else {
            Data::View { bytes, strides }
        };
        Some(Entry { dtype, shape, data })
    }

    /// Whether its bytes are not those of the file.
    #[cfg(feature = "pytorch")]
    pub fn is_own(&self) -> bool {
        let (Data::Rows(bytes) | Data::View { bytes, .. }) = &self.data;
        matches!(bytes, Bytes::Own(_))
    }

    /// Valid while the entry lives.
    pub(super) fn place(&self) -> Place {
        let (bytes, strides) = match &self.data {
            Data::Rows(bytes) => (bytes, None),
            Data::View { bytes, strides } => (bytes, Some(strides.clone())),
        };
        Place {
            address: bytes.all().as_ptr().addr(),
            dtype: self.dtype,
            shape: self.shape.clone(),
            strides,
        }
    }

    /// The number of values.
    pub fn values(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it may have more values than its bytes have room for.
    pub fn is_view(&self) -> bool {
        matches!(self.data, Data::View { .. })
    }

    /// All values in row-major order, little-endian.
    pub fn bytes(&self) -> Cow<'_, [u8]> {
        let width = width(self.dtype);
        let (bytes, strides) = match &self.data {
            Data::Rows(bytes) => return Cow::Borrowed(&bytes.all()[..self.values() * width]),
            Data::View { bytes, strides } => (bytes.all(), strides),
        };
        let mut gathered = Vec::with_capacity(self.values() * width);
        let mut index = vec![0; self.shape.len()];
        for _ in 0..self.values() {
            let place: usize = index
                .iter()
                .zip(strides)
                .map(|(i, stride)| i * stride)
                .sum();
            gathered.extend_from_slice(&bytes[place * width..(place + 1) * width]);
            for (i, &size) in index.iter_mut().zip(&self.shape).rev() {
                *i += 1;
                if *i < size {
                    break;
                }
                *i = 0;
            }
        }
        Cow::Owned(gathered)
    }
}

/// Bytes of a value.
pub(in crate::model) fn width(dtype: Dtype) -> usize {
    dtype.bitsize() / 8
}

#[cfg(all(test, feature = "pytorch"))]
mod tests {
    use super::*;

    fn strided(shape: &[usize], strides: &[usize], bytes: &[u8]) -> Option<Vec<u8>> {
        let entry = Entry::strided(Dtype::U8, shape.into(), strides.into(), bytes)?;
        Some(entry.bytes().into_owned())
    }

    #[test]
    fn views_are_read_by_their_strides() {
        let bytes: Vec<u8> = (0..12).collect();
        assert_eq!(
            strided(&[2, 3], &[3, 1], &bytes).unwrap(),
            [0, 1, 2, 3, 4, 5]
        );
        assert_eq!(
            strided(&[3, 2], &[1, 3], &bytes).unwrap(),
            [0, 3, 1, 4, 2, 5]
        );
        assert_eq!(strided(&[2, 2], &[0, 5], &bytes).unwrap(), [0, 5, 0, 5]);
        assert_eq!(strided(&[1, 2], &[99, 1], &bytes).unwrap(), [0, 1]);
        assert!(strided(&[0, 2], &[2, 1], &bytes).unwrap().is_empty());
        assert_eq!(strided(&[], &[], &bytes).unwrap(), [0]);
        for (shape, strides) in [
            (vec![2, 7], vec![6, 1]),
            (vec![2], vec![usize::MAX]),
            (vec![usize::MAX, 2], vec![0, 0]),
            (vec![2, 2], vec![2]),
        ] {
            assert_eq!(
                strided(&shape, &strides, &bytes),
                None,
                "{shape:?} {strides:?}"
            );
        }
    }
}
