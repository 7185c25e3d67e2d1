//! Large tables that stay in their file: vectors of words, of which `Gather` nodes read the rows
//! that they need, and matrices of products, which are packed from there.
//!
//! ```text
//! Gather(table, indices)          gatestream.GatherRows(indices)
//! MatMul(x, table)                gatestream.Dense(x)
//! ```
//!
//! A row is read at its place in the file, which stays open; there is no map. So a file that
//! another one replaces changes nothing, one that is cut off ends a run with an error, and one that
//! is written in place gives the new rows (of a matrix until it is packed, with the first plan).

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tract_onnx::model::ParsingContext;
use tract_onnx::pb::{GraphProto, NodeProto, TensorProto};
use tract_onnx::tract_hir::internal::*;

use super::attributes::{float, integer, is_standard};
use super::constants::table;
use crate::ElementType;
use crate::control_flow::readers;
use crate::operators::computed::{Computed, computed, wires_itself};
use crate::operators::{Parsed, integers, place};

/// Fewest bytes of a table that stays in its file. A row of it is read in about a microsecond.
pub(super) const MIN_BYTES: u64 = 64 << 20;

/// The operator that reads rows.
pub(super) const GATHER_ROWS: &str = "gatestream.GatherRows";

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Table {
    pub file: File,
    pub path: PathBuf,
    /// Where it begins, in bytes.
    pub offset: u64,
    pub datum: DatumType,
    /// The axis of the rows first.
    pub shape: Vec<usize>,
}

/// The file of a table could not be read: no fault of the inputs of a run.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", path.display())]
pub(crate) struct TableRead {
    pub path: PathBuf,
    pub why: io::Error,
}

impl Table {
    /// The bytes of a row.
    fn row(&self) -> usize {
        self.shape[1..].iter().product::<usize>() * self.datum.size_of()
    }

    /// All rows.
    pub fn read(&self) -> TractResult<Tensor> {
        let mut values = Tensor::zero_dt(self.datum, &self.shape)?;
        let mut plain = values.try_as_plain_ram_mut()?;
        self.read_at(plain.as_bytes_mut(), 0)?;
        Ok(values)
    }

    /// Reads the bytes from this one on.
    fn read_at(&self, into: &mut [u8], from: usize) -> Result<(), TableRead> {
        let read = read_at(&self.file, into, self.offset + from as u64);
        read.map_err(|why| TableRead {
            path: self.path.clone(),
            why,
        })
    }

    /// The elements of a matrix from this one on.
    ///
    /// # Errors
    /// Of the file.
    pub fn read_floats(&self, into: &mut [f32], from: usize) -> Result<(), TableRead> {
        const FLOATS: usize = 1024;
        const BYTES: usize = size_of::<f32>();
        let mut bytes = [0; FLOATS * BYTES];
        for (index, floats) in into.chunks_mut(FLOATS).enumerate() {
            let bytes = &mut bytes[..floats.len() * BYTES];
            self.read_at(bytes, (from + index * FLOATS) * BYTES)?;
            for (float, bytes) in floats.iter_mut().zip(bytes.as_chunks().0) {
                *float = f32::from_le_bytes(*bytes);
            }
        }
        Ok(())
    }

    fn gather(&self, indices: &Tensor) -> TractResult<Tensor> {
        let (rows, size) = (self.shape[0], self.row());
        let shape = [indices.shape(), &self.shape[1..]].concat();
        let mut values = Tensor::zero_dt(self.datum, &shape)?;
        let mut plain = values.try_as_plain_ram_mut()?;
        let values_of_rows = plain.as_bytes_mut().chunks_exact_mut(size.max(1));
        for (index, row) in integers(indices)?.into_iter().zip(values_of_rows) {
            self.read_at(row, place(index, rows)? * size)?;
        }
        Ok(values)
    }
}

#[cfg(unix)]
fn read_at(file: &File, into: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, into, offset)
}

#[cfg(windows)]
fn read_at(file: &File, mut into: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !into.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, into, offset)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                into = &mut into[count..];
                offset += count as u64;
            }
        }
    }
    Ok(())
}

/// Whether a node reads rows of its first input.
pub(super) fn reads_rows(node: &NodeProto) -> bool {
    let is_gather = node.op_type == "Gather" && is_standard(&node.domain);
    is_gather && integer(node, "axis", 0) == 0 && node.input.len() == 2
}

/// Whether a node is the product of its first input and the matrix that is its second one, which
/// may be transposed; a `Gemm` adds its third input.
pub(crate) fn is_plain_product(node: &NodeProto) -> bool {
    if !is_standard(&node.domain) || node.output.len() != 1 {
        return false;
    }
    match (node.op_type.as_str(), node.input.len()) {
        ("MatMul", 2) => true,
        ("Gemm", 2 | 3) => {
            integer(node, "transA", 0) == 0
                && float(node, "alpha", 1.0) == 1.0
                && float(node, "beta", 1.0) == 1.0
        }
        _ => false,
    }
}

/// The constants of a graph that nodes read as tables alone.
pub(super) fn names(graph: &GraphProto) -> Vec<String> {
    let readers = readers(graph);
    let is_table_of = |constant: &TensorProto, node: &NodeProto| {
        let is_matrix =
            constant.data_type == ElementType::F32.to_onnx() && constant.dims.len() == 2;
        let at = if reads_rows(node) {
            0
        } else if is_matrix && is_plain_product(node) {
            1
        } else {
            return false;
        };
        let mut inputs = node.input.iter().enumerate();
        inputs.all(|(index, input)| (input == &constant.name) == (index == at))
    };
    let tables = graph.initializer.iter().filter(|constant| {
        let nodes = graph.node.iter();
        let count = nodes.filter(|node| is_table_of(constant, node)).count();
        count > 0 && readers.get(constant.name.as_str()) == Some(&count)
    });
    tables.map(|constant| constant.name.clone()).collect()
}

pub(super) fn parse(_: &ParsingContext<'_>, node: &NodeProto) -> TractResult<Parsed> {
    let table = table(node)?;
    Ok((expand(Gather(table)), Vec::new()))
}

#[derive(Clone, Debug)]
struct Gather(Arc<Table>);

impl PartialEq for Gather {
    fn eq(&self, other: &Gather) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Gather {}

impl Expansion for Gather {
    wires_itself!();

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        solver: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        check_input_arity(inputs, 1)?;
        check_output_arity(outputs, 1)?;
        let row = &self.0.shape[1..];
        solver.equals(&outputs[0].datum_type, self.0.datum)?;
        solver.equals(&outputs[0].rank, inputs[0].rank.bex() + row.len() as i64)?;
        solver.given(&inputs[0].rank, move |solver, rank| {
            let rank = usize::try_from(rank)?;
            for axis in 0..rank {
                solver.equals(&outputs[0].shape[axis], &inputs[0].shape[axis])?;
            }
            for (axis, size) in row.iter().enumerate() {
                solver.equals(&outputs[0].shape[rank + axis], size.to_dim())?;
            }
            Ok(())
        })
    }
}

computed!(Gather);

impl Computed for Gather {
    const NAME: &'static str = "GatherRows";

    fn facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let indices = inputs.first().context("the indices are missing")?;
        let mut shape = indices.shape.to_tvec();
        shape.extend(self.0.shape[1..].iter().map(|size| size.to_dim()));
        Ok(tvec!(self.0.datum.fact(&*shape)))
    }

    fn compute(&self, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let indices = args_1!(inputs);
        Ok(tvec!(self.0.gather(&indices)?.into_tvalue()))
    }
}
