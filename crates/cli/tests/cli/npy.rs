//! NumPy's `.npy` files, version 1.0, written and read here from the format's description, so that
//! the program's own reader and writer are held to something else.

use std::path::Path;

/// Magic, version, length of the header, header padded to a multiple of 64 bytes, elements.
pub fn bytes(kind: &str, shape: &[usize], elements: &[u8]) -> Vec<u8> {
    let axes: String = shape.iter().map(|length| format!("{length}, ")).collect();
    let mut header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({axes}), }}");
    while !(10 + header.len() + 1).is_multiple_of(64) {
        header.push(' ');
    }
    header.push('\n');
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.as_bytes());
    file.extend(elements);
    file
}

pub fn floats(shape: &[usize], values: &[f32]) -> Vec<u8> {
    let elements: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    bytes("<f4", shape, &elements)
}

/// The shape and values of a file of float32.
pub fn read_floats(path: &Path) -> (Vec<usize>, Vec<f32>) {
    let file = std::fs::read(path).unwrap();
    assert_eq!(&file[..8], b"\x93NUMPY\x01\x00");
    let end = 10 + usize::from(u16::from_le_bytes([file[8], file[9]]));
    assert!(end.is_multiple_of(64), "elements must be aligned");
    let header = std::str::from_utf8(&file[10..end]).unwrap();
    assert!(header.contains("'<f4'"), "{header}");
    assert!(header.contains("'fortran_order': False"), "{header}");
    let (_, shape) = header.split_once('(').unwrap();
    let (shape, _) = shape.split_once(')').unwrap();
    let axes = shape.split(',').map(str::trim).filter(|a| !a.is_empty());
    let shape: Vec<usize> = axes.map(|a| a.parse().unwrap()).collect();
    let values = file[end..].as_chunks().0;
    let values: Vec<f32> = values.iter().map(|b| f32::from_le_bytes(*b)).collect();
    assert_eq!(values.len(), shape.iter().product::<usize>());
    assert_eq!(file.len(), end + 4 * values.len());
    (shape, values)
}
