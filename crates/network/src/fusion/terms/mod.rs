//! Values of a graph as terms over their last axis, the features.
//!
//! A term is expanded one operator at a time, when a pattern asks for it. Operators that only
//! select or rename features are passed: a slice of a product is a product with fewer columns.

mod constants;
mod features;
mod hard_sigmoid;
mod linear;

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

use tract_onnx::pb::{GraphProto, NodeProto};

use self::constants::Constant;
pub(super) use self::constants::Matrix;
use self::features::MAX_DEPTH;
pub(super) use self::linear::Linear;
use super::activation::Activation;
use crate::source::attributes::{float, integer, is_standard};
use crate::tensor::Tensor;

/// Features of a value of the graph.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Value {
    pub name: String,
    /// `None`: all.
    pub columns: Option<Range<usize>>,
}

impl Value {
    pub fn all(name: &str) -> Value {
        Value {
            name: name.to_owned(),
            columns: None,
        }
    }

    /// The same columns of another value.
    fn of(&self, name: &str) -> Value {
        Value {
            name: name.to_owned(),
            columns: self.columns.clone(),
        }
    }

    /// These of its columns, out of `width`.
    fn slice(&self, range: Range<usize>, width: usize) -> Option<Value> {
        let of = self.columns.clone().unwrap_or(0..width);
        let columns = of.start + range.start..of.start + range.end;
        let is_all = self.columns.is_none() && columns == (0..width);
        (range.start <= range.end && columns.end <= of.end).then(|| Value {
            name: self.name.clone(),
            columns: (!is_all).then_some(columns),
        })
    }
}

/// One operator.
#[derive(Clone, Debug)]
pub(super) enum Term {
    /// A value that is not looked into.
    Source,
    /// The same for all rows: one element, or one for each feature.
    Constant(Vec<f32>),
    /// A value times a constant matrix, plus a constant row.
    Product {
        of: Value,
        matrix: Matrix,
        bias: Option<Vec<f32>>,
    },
    Activation(Activation, Value),
    Sum(Value, Value),
    Difference(Value, Value),
    Multiply(Value, Value),
    /// The first value where the mask is true, the second elsewhere.
    Select(Mask, Value, Value),
}

/// A value of type bool, or its negation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Mask {
    pub name: String,
    pub is_negated: bool,
}

impl Mask {
    fn negated(&self) -> Mask {
        Mask {
            name: self.name.clone(),
            is_negated: !self.is_negated,
        }
    }
}

type ReadConstant<'a> = Box<dyn Fn(&str) -> Option<Tensor> + 'a>;

/// A graph whose values are looked at as terms.
pub(super) struct Terms<'a> {
    /// By the name of a value: the node that gives it, and the index among its outputs.
    producers: HashMap<&'a str, (&'a NodeProto, usize)>,
    /// The value of a constant; `None` if the name is none.
    constant: ReadConstant<'a>,
    constants: RefCell<HashMap<String, Option<Rc<Constant>>>>,
    /// Values of type bool.
    is_bool: Box<dyn Fn(&str) -> bool + 'a>,
    /// The number of features of values, where it is known.
    widths: RefCell<HashMap<String, Option<usize>>>,
}

impl<'a> Terms<'a> {
    pub fn new(
        graph: &'a GraphProto,
        widths: HashMap<String, usize>,
        constant: impl Fn(&str) -> Option<Tensor> + 'a,
        is_bool: impl Fn(&str) -> bool + 'a,
    ) -> Terms<'a> {
        let nodes = graph.node.iter();
        let nodes = nodes.filter(|node| is_standard(&node.domain));
        let outputs = nodes.flat_map(|node| {
            let names = node.output.iter().enumerate();
            names.map(move |(index, name)| (name.as_str(), (node, index)))
        });
        Terms {
            producers: outputs.filter(|(name, _)| !name.is_empty()).collect(),
            constant: Box::new(constant),
            constants: RefCell::default(),
            is_bool: Box::new(is_bool),
            widths: RefCell::new(
                widths
                    .into_iter()
                    .map(|(name, width)| (name, Some(width)))
                    .collect(),
            ),
        }
    }

    /// Expands one operator.
    pub fn term(&self, value: &Value) -> Term {
        self.expand(&self.resolve(value)).unwrap_or(Term::Source)
    }

    fn expand(&self, value: &Value) -> Option<Term> {
        let Some((node, _)) = self.producers.get(value.name.as_str()).copied() else {
            return self.constant_term(value);
        };
        let input = |index: usize| {
            let name = node.input.get(index)?;
            // A row of one element is broadcast.
            let is_scalar = || self.row(name).is_some_and(|row| row.len() == 1);
            Some(if value.columns.is_some() && is_scalar() {
                Value::all(name)
            } else {
                value.of(name)
            })
        };
        if let Some(activation) = Activation::of(node) {
            return Some(Term::Activation(activation, input(0)?));
        }
        if let Some(term) = self.hard_sigmoid(node, value) {
            return Some(term);
        }
        match node.op_type.as_str() {
            "MatMul" => {
                let matrix = self.matrix(node.input.get(1)?, false)?;
                Some(Term::Product {
                    of: Value::all(node.input.first()?),
                    matrix: matrix.columns_of(value.columns.clone())?,
                    bias: None,
                })
            }
            "Gemm" => self.gemm(node, value),
            "Add" => {
                let (a, b) = (input(0)?, input(1)?);
                Some(self.select(&a, &b).unwrap_or(Term::Sum(a, b)))
            }
            "Sub" => Some(Term::Difference(input(0)?, input(1)?)),
            "Mul" => Some(Term::Multiply(input(0)?, input(1)?)),
            "Where" => {
                let mask = self.mask(node.input.first()?)?;
                Some(Term::Select(mask, input(1)?, input(2)?))
            }
            _ => self.constant_term(value),
        }
    }

    fn constant_term(&self, value: &Value) -> Option<Term> {
        let row = self.row(&value.name)?;
        let row = match &value.columns {
            Some(columns) if row.len() > 1 => row.get(columns.clone())?.to_vec(),
            _ => row,
        };
        Some(Term::Constant(row))
    }

    fn gemm(&self, node: &NodeProto, value: &Value) -> Option<Term> {
        let factors = [float(node, "alpha", 1.0), float(node, "beta", 1.0)];
        if integer(node, "transA", 0) != 0 || factors != [1.0, 1.0] {
            return None;
        }
        let matrix = self.matrix(node.input.get(1)?, integer(node, "transB", 0) != 0)?;
        let bias = match node.input.get(2).filter(|name| !name.is_empty()) {
            None => None,
            Some(name) => match self.constant_term(&value.of(name))? {
                Term::Constant(row) => Some(row),
                _ => return None,
            },
        };
        Some(Term::Product {
            of: Value::all(node.input.first()?),
            matrix: matrix.columns_of(value.columns.clone())?,
            bias,
        })
    }

    /// A sum of two products with a mask and its negation.
    fn select(&self, a: &Value, b: &Value) -> Option<Term> {
        let masked = |value: &Value| {
            let (node, _) = *self.producers.get(self.resolve(value).name.as_str())?;
            let [first, second] = node.input.as_slice() else {
                return None;
            };
            let is_product = node.op_type == "Mul";
            let pair = |mask: &str, other: &str| Some((self.mask(mask)?, value.of(other)));
            is_product.then(|| pair(first, second).or_else(|| pair(second, first)))?
        };
        let ((mask, when), (other, otherwise)) = (masked(a)?, masked(b)?);
        (other == mask.negated()).then_some(Term::Select(mask, when, otherwise))
    }

    /// A mask, also one that a cast makes 0 and 1.
    pub fn mask(&self, name: &str) -> Option<Mask> {
        let mut mask = Mask {
            name: name.to_owned(),
            is_negated: false,
        };
        for _ in 0..MAX_DEPTH {
            let Some((node, _)) = self.producers.get(mask.name.as_str()) else {
                break;
            };
            match node.op_type.as_str() {
                "Not" => mask.is_negated = !mask.is_negated,
                "Cast" | "Identity" => {}
                _ => break,
            }
            mask.name.clone_from(node.input.first()?);
        }
        (self.is_bool)(&mask.name).then_some(mask)
    }
}
