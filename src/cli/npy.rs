//! NumPy's `.npy` files to arrays and back.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::Path;

use npyz::{NpyFile, Order, TypeChar, WriterBuilder};

use super::Failure;
use crate::model::{Array, Elements};

/// What the axes of an array without elements may multiply to, those of length 0 left out.
const MAX_EMPTY: usize = 1 << 20;

/// Reads an array of float32, or of 32- or 64-bit integers.
pub fn read(path: &Path) -> Result<Array, Failure> {
    let refused =
        |what: &dyn std::fmt::Display| Failure::new(format!("{}: {what}", path.display()));
    let file = File::open(path).map_err(|e| refused(&e))?;
    let bytes = file.metadata().map_err(|e| refused(&e))?.len();
    let npy = NpyFile::new(BufReader::new(file))
        .map_err(|e| refused(&format_args!("not a readable .npy file ({e})")))?;
    let shape: Vec<usize> = (npy.shape().iter())
        .map(|&length| usize::try_from(length))
        .collect::<Result<_, _>>()
        .map_err(|e| refused(&e))?;
    let npyz::DType::Plain(kind) = npy.dtype() else {
        return Err(refused(&"structured arrays are not supported; use float32"));
    };
    // A header may claim any shape; the file must hold it before anything is allocated for it.
    let size = kind.num_bytes().unwrap_or(1) as u64;
    let claimed = (shape.iter()).try_fold(size, |all, &length| all.checked_mul(length as u64));
    if claimed.is_none_or(|claimed| claimed > bytes) {
        return Err(refused(&format_args!(
            "holds fewer elements than its shape {shape:?} says"
        )));
    }
    // A shape with a 0 in it needs no bytes, but states are made for each of its sequences.
    let others =
        (shape.iter().filter(|&&l| l > 0)).try_fold(1, |all: usize, &l| all.checked_mul(l));
    if others.is_none_or(|others| others > MAX_EMPTY) && claimed == Some(0) {
        return Err(refused(&format_args!(
            "is empty, yet has the shape {shape:?}; its other axes may multiply to {MAX_EMPTY} at most"
        )));
    }
    let fortran = npy.order() == Order::Fortran;
    let broken = |e: std::io::Error| refused(&e);
    let elements = match (kind.type_char(), kind.size_field()) {
        (TypeChar::Float, 4) => {
            Elements::Floats(turn(npy.into_vec().map_err(broken)?, &shape, fortran))
        }
        (TypeChar::Int, 8) => {
            Elements::Integers(turn(npy.into_vec().map_err(broken)?, &shape, fortran))
        }
        (TypeChar::Int, 4) => {
            let values: Vec<i32> = npy.into_vec().map_err(broken)?;
            Elements::Integers(turn(
                values.into_iter().map(i64::from).collect(),
                &shape,
                fortran,
            ))
        }
        _ => {
            return Err(refused(&format_args!(
                "holds {kind}; values must be float32 (.astype('float32')), lengths int32 or int64"
            )));
        }
    };
    Ok(Array { shape, elements })
}

/// Elements in row-major order, from column-major where `fortran`.
fn turn<T: Copy>(values: Vec<T>, shape: &[usize], fortran: bool) -> Vec<T> {
    if !fortran {
        return values;
    }
    let mut index = vec![0; shape.len()];
    let mut turned = Vec::with_capacity(values.len());
    for _ in 0..values.len() {
        let mut stride = 1;
        let mut at = 0;
        for (i, length) in index.iter().zip(shape) {
            at += i * stride;
            stride *= length;
        }
        turned.push(values[at]);
        for (i, length) in index.iter_mut().zip(shape).rev() {
            *i += 1;
            if *i < *length {
                break;
            }
            *i = 0;
        }
    }
    turned
}

/// Writes a float array, whole or not at all: a file beside it is renamed into place.
pub fn write(path: &Path, array: &Array) -> Result<(), Failure> {
    let refused = |e: std::io::Error| Failure::new(format!("{}: {e}", path.display()));
    let Elements::Floats(values) = &array.elements else {
        return Err(Failure::new(format!(
            "{}: outputs are floats",
            path.display()
        )));
    };
    let mut beside = path.as_os_str().to_owned();
    beside.push(".partial");
    let written = || -> std::io::Result<()> {
        let shape: Vec<u64> = array.shape.iter().map(|&length| length as u64).collect();
        let mut file = BufWriter::new(File::create(&beside)?);
        let mut writer = npyz::WriteOptions::new()
            .default_dtype()
            .shape(&shape)
            .writer(&mut file)
            .begin_nd()?;
        writer.extend(values.iter().copied())?;
        writer.finish()?;
        file.flush()?;
        std::fs::rename(&beside, path)
    };
    written().map_err(|e| {
        let _ = std::fs::remove_file(&beside);
        refused(e)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn column_major_is_turned() {
        // [[1, 2, 3], [4, 5, 6]] kept column after column.
        assert_eq!(
            turn(vec![1, 4, 2, 5, 3, 6], &[2, 3], true),
            [1, 2, 3, 4, 5, 6]
        );
        assert_eq!(turn(vec![1, 4, 2], &[3], false), [1, 4, 2]);
    }

    #[test]
    fn what_is_written_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("y.npy");
        let array = Array {
            shape: vec![2, 0, 3],
            elements: Elements::Floats(vec![]),
        };
        write(&path, &array).unwrap();
        assert_eq!(read(&path).unwrap(), array);
        let array = Array {
            shape: vec![2, 2],
            elements: Elements::Floats(vec![1.0, -0.0, 3.5e-40, 4.0]),
        };
        write(&path, &array).unwrap();
        assert_eq!(read(&path).unwrap(), array);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_shorter_than_its_shape_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.npy");
        let array = Array {
            shape: vec![4, 4],
            elements: Elements::Floats(vec![1.0; 16]),
        };
        write(&path, &array).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        for cut in [0, 5, 20, bytes.len() - 1] {
            std::fs::write(&path, &bytes[..cut]).unwrap();
            assert!(read(&path).is_err(), "cut at {cut}");
        }
    }
}
