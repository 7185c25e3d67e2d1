//! Arrays of `.npz` files.

#![allow(dead_code)] // Each program needs some of it.

use std::fs::File;
use std::path::Path;

use gatestream_network::{Data, NamedTensor, Tensor};
use npyz::{DType, Deserialize, NpyFile, TypeChar};
use zip::ZipArchive;

/// The inputs of a case and the expected outputs: the arrays `in:NAME` and `out:NAME`.
pub struct Case {
    pub inputs: Vec<NamedTensor>,
    pub outputs: Vec<NamedTensor>,
}

impl Case {
    pub fn open(path: &Path) -> Case {
        let mut archive = ZipArchive::new(File::open(path).unwrap()).unwrap();
        let names = archive.file_names().map(|name| name.unwrap().into_owned());
        let names: Vec<String> = names.collect();
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for name in names {
            let file = archive.by_name(&name).unwrap();
            let tensor = tensor(NpyFile::new(file).unwrap());
            let name = name.strip_suffix(".npy").unwrap();
            let (list, name) = match (name.strip_prefix("in:"), name.strip_prefix("out:")) {
                (Some(name), _) => (&mut inputs, name),
                (_, Some(name)) => (&mut outputs, name),
                _ => continue,
            };
            let name = name.to_owned();
            list.push(NamedTensor { name, tensor });
        }
        Case { inputs, outputs }
    }

    pub fn borrowed(&self) -> Vec<(&str, &Tensor)> {
        let inputs = self.inputs.iter();
        inputs
            .map(|input| (input.name.as_str(), &input.tensor))
            .collect()
    }
}

fn tensor<R: std::io::Read>(file: NpyFile<R>) -> Tensor {
    fn values<T: Deserialize, R: std::io::Read>(file: NpyFile<R>) -> Vec<T> {
        file.into_vec().unwrap()
    }
    let shape: Vec<usize> = file.shape().iter().map(|&size| size as usize).collect();
    let DType::Plain(kind) = file.dtype() else {
        panic!("an array of records");
    };
    let data: Data = match (kind.type_char(), kind.size_field()) {
        (TypeChar::Float, 4) => values::<f32, _>(file).into(),
        (TypeChar::Float, 8) => values::<f64, _>(file).into(),
        (TypeChar::Float, 2) => values::<half::f16, _>(file).into(),
        (TypeChar::Int, 8) => values::<i64, _>(file).into(),
        (TypeChar::Int, 4) => values::<i32, _>(file).into(),
        (TypeChar::Int, 1) => values::<i8, _>(file).into(),
        (TypeChar::Uint, 1) => values::<u8, _>(file).into(),
        (TypeChar::Bool, _) => values::<bool, _>(file).into(),
        other => panic!("an array of {other:?}"),
    };
    Tensor::new(&shape, data).unwrap()
}

/// The largest difference of two outputs; infinite if their shapes or types differ.
pub fn difference(found: &Tensor, expected: &Tensor) -> f64 {
    if found.shape() != expected.shape() {
        return f64::INFINITY;
    }
    macro_rules! largest {
        ($($variant:ident),*) => {
            match (found.data(), expected.data()) {
                $((Data::$variant(found), Data::$variant(expected)) => {
                    let pairs = found.iter().zip(expected);
                    pairs.map(|(a, b)| apart(f64::from(*a), f64::from(*b))).fold(0.0, f64::max)
                })*
                (Data::I64(found), Data::I64(expected)) if found == expected => 0.0,
                (Data::Bool(found), Data::Bool(expected)) if found == expected => 0.0,
                _ => f64::INFINITY,
            }
        };
    }
    fn apart(a: f64, b: f64) -> f64 {
        if a == b || (a.is_nan() && b.is_nan()) {
            0.0
        } else if (a - b).is_nan() {
            f64::INFINITY
        } else {
            (a - b).abs()
        }
    }
    largest!(F32, F64, F16, I32, I16, I8, U16, U8)
}
