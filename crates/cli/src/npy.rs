//! NumPy's `.npy` files to arrays and back.

use std::fs::File;
use std::io::{BufReader, Cursor, Read, Write};
use std::path::Path;

use npyz::{NpyFile, Order, TypeChar, WriterBuilder};

use gatestream::atomic_file::PendingFile;
use gatestream::model::{Array, Elements};
use gatestream_command::Failure;
#[cfg(feature = "network")]
use gatestream_network::{Data, Tensor};

/// Maximum product of the axes of an array without elements, except those of length 0.
const MAX_EMPTY: usize = 1 << 20;

/// Longest header in bytes. Only structured arrays need more, which are refused anyway.
const MAX_HEADER: u64 = u16::MAX as u64;

/// Maximum number of opening brackets of a header: a plain array's has two. The parser recurses at
/// each and parses its content twice, so a header of brackets would overflow the stack.
const MAX_BRACKETS: usize = 8;

/// Most bytes of a pipe, which are kept in memory.
const MAX_PIPED: u64 = 1 << 30;

/// The file up to the end of its header, checked against limits before it is parsed.
fn header(file: &mut impl Read, bytes: u64) -> Result<Vec<u8>, String> {
    let refused = |e: std::io::Error| format!("not a readable .npy file ({e})");
    // Magic, version, length of the header in two bytes or, from version 2 on, four.
    let mut start = vec![0; 12];
    if bytes < start.len() as u64 {
        return Err("not a readable .npy file (it is shorter than any header)".into());
    }
    file.read_exact(&mut start).map_err(refused)?;
    if !start.starts_with(b"\x93NUMPY") {
        return Err("not a readable .npy file (it does not start as one)".into());
    }
    let (before, length) = match start[6] {
        1 => (10, u64::from(u16::from_le_bytes([start[8], start[9]]))),
        _ => {
            let length = [start[8], start[9], start[10], start[11]];
            (12, u64::from(u32::from_le_bytes(length)))
        }
    };
    if length > MAX_HEADER.min(bytes - before) {
        return Err(format!(
            "not a readable .npy file (a header of {length} bytes; the file has {bytes}, and a \
             plain array's header at most {MAX_HEADER})"
        ));
    }
    // In version 1 two bytes of it are read already.
    let rest = (before + length).saturating_sub(start.len() as u64);
    let end = start.len() + rest as usize;
    let already = start.len();
    start.resize(end, 0);
    file.read_exact(&mut start[already..]).map_err(refused)?;
    let brackets = start[before as usize..]
        .iter()
        .filter(|b| b"([{".contains(b));
    if brackets.count() > MAX_BRACKETS {
        return Err("not a plain array (too many brackets in its header); use float32".into());
    }
    Ok(start)
}

/// The bytes of a pipe, whose size is not known.
fn piped(pipe: File) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = pipe.take(MAX_PIPED + 1).read_to_end(&mut bytes);
    read.map_err(|error| error.to_string())?;
    if bytes.len() as u64 > MAX_PIPED {
        Err(format!(
            "is a pipe with more than {MAX_PIPED} bytes; use a file"
        ))
    } else {
        Ok(bytes)
    }
}

fn refusal(path: &Path, what: &dyn std::fmt::Display) -> Failure {
    Failure::new(format!("{}: {what}", path.display()))
}

/// An array whose header was checked.
struct Opened {
    npy: NpyFile<Box<dyn Read>>,
    shape: Vec<usize>,
    kind: npyz::TypeStr,
}

/// Reads the header, and checks that the file holds what it says.
fn open(path: &Path) -> Result<Opened, Failure> {
    let refused = |what: &dyn std::fmt::Display| refusal(path, what);
    let file = File::open(path).map_err(|e| refused(&e))?;
    let metadata = file.metadata().map_err(|e| refused(&e))?;
    let (mut file, bytes): (Box<dyn Read>, u64) = if metadata.is_file() {
        (Box::new(file), metadata.len())
    } else {
        let all = piped(file).map_err(|e| refused(&e))?;
        let bytes = all.len() as u64;
        (Box::new(Cursor::new(all)), bytes)
    };
    let header = header(&mut file, bytes).map_err(|e| refused(&e))?;
    let npy =
        NpyFile::new(Box::new(BufReader::new(Cursor::new(header).chain(file))) as Box<dyn Read>)
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
            "is empty, yet has the shape {shape:?}; its other axes may multiply to {MAX_EMPTY} at \
             most"
        )));
    }
    Ok(Opened { npy, shape, kind })
}

/// Reads an array of float32, or of 32- or 64-bit integers. Values of float64 are rounded, which
/// standard error tells.
pub fn read(path: &Path) -> Result<Array, Failure> {
    let refused = |what: &dyn std::fmt::Display| refusal(path, what);
    let Opened { npy, shape, kind } = open(path)?;
    let fortran = npy.order() == Order::Fortran;
    let broken = |e: std::io::Error| refused(&e);
    let elements = match (kind.type_char(), kind.size_field()) {
        (TypeChar::Float, 4) => {
            Elements::Floats(turn(npy.into_vec().map_err(broken)?, &shape, fortran))
        }
        (TypeChar::Float, 8) => {
            let exact: Vec<f64> = npy.into_vec().map_err(broken)?;
            let values = exact.iter().map(|&exact| {
                let rounded = exact as f32;
                if rounded.is_infinite() && exact.is_finite() {
                    Err(refused(&format_args!("holds {exact}, which is no float32")))
                } else {
                    Ok(rounded)
                }
            });
            let values = values.collect::<Result<Vec<f32>, Failure>>()?;
            eprintln!(
                "gatestream: {}: float64 is rounded to float32",
                path.display()
            );
            Elements::Floats(turn(values, &shape, fortran))
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

/// Reads an array of any numbers.
#[cfg(feature = "network")]
pub fn read_tensor(path: &Path) -> Result<Tensor, Failure> {
    let refused = |what: &dyn std::fmt::Display| refusal(path, what);
    let Opened { npy, shape, kind } = open(path)?;
    let fortran = npy.order() == Order::Fortran;
    macro_rules! values {
        ($($type_char:ident, $size:literal, $type:ty;)*) => {
            match (kind.type_char(), kind.size_field()) {
                $((TypeChar::$type_char, $size) => {
                    let values: Vec<$type> = npy.into_vec().map_err(|error| refused(&error))?;
                    Data::from(turn(values, &shape, fortran))
                })*
                _ => return Err(refused(&format_args!(
                    "holds {kind}; supported: floats, integers and bool"
                ))),
            }
        };
    }
    let data = values! {
        Float, 4, f32;
        Float, 8, f64;
        Float, 2, half::f16;
        Int, 8, i64;
        Int, 4, i32;
        Int, 2, i16;
        Int, 1, i8;
        Uint, 8, u64;
        Uint, 4, u32;
        Uint, 2, u16;
        Uint, 1, u8;
        Bool, 1, bool;
    };
    Tensor::new(&shape, data).map_err(|why| refused(&why))
}

/// Writes an array beside `path`; the file is put there when it is committed.
#[cfg(feature = "network")]
pub fn write_tensor(path: &Path, tensor: &Tensor) -> Result<PendingFile, Failure> {
    macro_rules! write_as {
        ($($variant:ident),*) => {
            match tensor.data() {
                $(Data::$variant(values) => write_values(path, tensor.shape(), values),)*
                _ => Err(refusal(path, &"its type cannot be written")),
            }
        };
    }
    write_as!(F32, F64, F16, I64, I32, I16, I8, U64, U32, U16, U8, Bool)
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

/// Writes a float array beside `path`; the file is put there when it is committed.
pub fn write(path: &Path, array: &Array) -> Result<PendingFile, Failure> {
    match &array.elements {
        Elements::Floats(values) => write_values(path, &array.shape, values),
        Elements::Integers(_) => Err(refusal(path, &"outputs are floats")),
    }
}

fn write_values<T: npyz::AutoSerialize + Copy>(
    path: &Path,
    shape: &[usize],
    values: &[T],
) -> Result<PendingFile, Failure> {
    let refused = |e: std::io::Error| refusal(path, &e);
    // The rename would refuse it too, but after others are in place.
    if path.is_dir() {
        return Err(refused(std::io::ErrorKind::IsADirectory.into()));
    }
    let shape: Vec<u64> = shape.iter().map(|&length| length as u64).collect();
    let fill = |to: &mut dyn Write| -> std::io::Result<()> {
        let options = npyz::WriteOptions::new().default_dtype().shape(&shape);
        let mut writer = options.writer(&mut *to).begin_nd()?;
        writer.extend(values.iter().copied())?;
        writer.finish()
    };
    PendingFile::prepare(path, fill).map_err(refused)
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
        write(&path, &array).unwrap().commit().unwrap();
        assert_eq!(read(&path).unwrap(), array);
        let array = Array {
            shape: vec![2, 2],
            elements: Elements::Floats(vec![1.0, -0.0, 3.5e-40, 4.0]),
        };
        write(&path, &array).unwrap().commit().unwrap();
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
        write(&path, &array).unwrap().commit().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        for cut in [0, 5, 20, bytes.len() - 1] {
            std::fs::write(&path, &bytes[..cut]).unwrap();
            assert!(read(&path).is_err(), "cut at {cut}");
        }
    }

    /// A file of this version, with a header of these bytes that says it is `length` long.
    fn file(version: u8, length: usize, header: &[u8]) -> Vec<u8> {
        let mut file = b"\x93NUMPY".to_vec();
        file.extend([version, 0]);
        match version {
            1 => file.extend((length as u16).to_le_bytes()),
            _ => file.extend((length as u32).to_le_bytes()),
        }
        file.extend(header);
        file
    }

    #[test]
    fn headers_are_held_against_limits_before_they_are_parsed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.npy");
        let message = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            read(&path).map_err(|failure| failure.to_string())
        };
        let plain = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}";
        for version in [1, 2, 3] {
            let whole = [&file(version, plain.len(), plain)[..], &[0, 0, 128, 63]].concat();
            let array = message(&whole).unwrap();
            assert_eq!(array.elements, Elements::Floats(vec![1.0]));
            assert_eq!(array.shape, [1]);
        }
        for claimed in [u32::MAX as usize, plain.len() + 1] {
            let text = message(&file(2, claimed, plain)).unwrap_err();
            assert!(
                text.contains(&format!("a header of {claimed} bytes")),
                "{text}"
            );
        }
        let long = vec![b' '; 65536];
        let text = message(&file(3, long.len(), &long)).unwrap_err();
        assert!(text.contains("at most 65535"), "{text}");
        // The parser's recursion: by depth, and by what it tries again.
        let deep = vec![b'['; 65535];
        let again = [[b'['; 40], [b']'; 40]].concat();
        for header in [deep, again] {
            for version in [1, 2] {
                let text = message(&file(version, header.len(), &header)).unwrap_err();
                assert!(text.contains("too many brackets"), "{text}");
            }
        }
        // As many as are let through: the worst of each kind.
        for (open, close) in ["[]", "{}", "()"].map(|pair| pair.split_at(1)) {
            let header = open.repeat(MAX_BRACKETS) + &close.repeat(MAX_BRACKETS);
            assert!(message(&file(1, header.len(), header.as_bytes())).is_err());
        }
    }
}
