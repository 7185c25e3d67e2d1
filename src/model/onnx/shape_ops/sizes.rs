//! Operators on sizes: they read shapes, compute with them, and make zeros or target shapes of
//! them.

use super::super::extent::Extent;
use super::super::tensor;
use super::super::value::Value;
use super::super::view::{ReshapeSize, check_rank};
use super::{ShapeOp, ValueResult};
use crate::model::LoadError;

impl ShapeOp<'_> {
    pub(super) fn shape(&mut self) -> ValueResult {
        let attributes = self.attributes(&["start", "end"])?;
        let shape = self.first(1, 1)?.shape();
        let rank = shape.len() as i64;
        let place = |at: i64| {
            let at = if at < 0 { at.saturating_add(rank) } else { at };
            at.clamp(0, rank) as usize
        };
        let start = place(attributes.int("start")?.unwrap_or(0));
        let end = place(attributes.int("end")?.unwrap_or(rank));
        Ok(Value::Sizes {
            scalar: false,
            items: shape[start..end.max(start)].to_vec(),
        })
    }

    /// An input that is a shape.
    pub(super) fn shape_input(&self, index: usize) -> Result<Vec<Option<Extent>>, LoadError> {
        match self.input(index)?.as_sizes() {
            Some((false, sizes)) => {
                check_rank(sizes.len()).map_err(|e| self.error(e))?;
                Ok(sizes)
            }
            _ => Err(self.error(format!(
                "input {index} must be a list of sizes, constant or computed from Shape"
            ))),
        }
    }

    pub(super) fn constant_of_shape(&mut self) -> ValueResult {
        let attributes = self.attributes(&["value"])?;
        self.first(1, 1)?;
        if let Some(tensor) = attributes.tensor("value")? {
            let tensor = tensor::decode(self.node.name(), tensor)?;
            if !tensor.is_zero() {
                return Err(self.error("fills with a value other than 0; supported: 0"));
            }
        }
        Ok(Value::Zeros(self.shape_input(0)?))
    }

    pub(super) fn expand(&mut self) -> ValueResult {
        self.attributes(&[])?;
        let value = self.first(2, 2)?;
        let target = self.shape_input(1)?;
        let from = value.shape();
        let zero = match value {
            Value::Zeros(_) => true,
            Value::Constant(t) => t.is_zero(),
            _ => false,
        };
        // Broadcasting aligns the last axes and replaces sizes of 1.
        let rank = from.len().max(target.len());
        let at = |list: &[Option<Extent>], axis: usize| {
            let missing = rank - list.len();
            match axis.checked_sub(missing) {
                Some(axis) => list[axis].clone(),
                None => Some(Extent::known(1)),
            }
        };
        let shape: Vec<Option<Extent>> = (0..rank)
            .map(|axis| match (at(&from, axis), at(&target, axis)) {
                (Some(a), b) if a.is(1) => b,
                (a, Some(b)) if b.is(1) => a,
                (Some(a), Some(b)) if a == b => Some(a),
                _ => None,
            })
            .collect();
        if zero {
            return Ok(Value::Zeros(shape));
        }
        if shape == from && shape.iter().all(Option::is_some) {
            return Ok(value.clone());
        }
        Err(self.error(format!(
            "repeats {} along an axis; supported: zeros",
            value.kind()
        )))
    }

    pub(super) fn mul(&mut self) -> ValueResult {
        self.attributes(&[])?;
        let (a, b) = (self.first(2, 2)?, self.input(1)?);
        let (Some((a_scalar, a)), Some((b_scalar, b))) = (a.as_sizes(), b.as_sizes()) else {
            return Err(self.error(format!(
                "multiplies {} by {}; supported: products of sizes",
                a.kind(),
                b.kind()
            )));
        };
        let length = match (a.len(), b.len()) {
            (n, m) if n == m => n,
            (1, n) | (n, 1) => n,
            (n, m) => return Err(self.error(format!("multiplies {n} sizes by {m}"))),
        };
        let items = (0..length)
            .map(|i| {
                let pick = |list: &[Option<Extent>]| list[i.min(list.len() - 1)].clone();
                pick(&a)?.times(&pick(&b)?)
            })
            .collect();
        Ok(Value::Sizes {
            scalar: a_scalar && b_scalar,
            items,
        })
    }

    /// The shape that `targets` describes, with the inferred size if it can be computed.
    pub(super) fn target_shape(
        &self,
        from: &[Option<Extent>],
        targets: &[ReshapeSize],
    ) -> Result<Vec<Option<Extent>>, LoadError> {
        let mut shape = Vec::with_capacity(targets.len());
        for (place, target) in targets.iter().enumerate() {
            shape.push(match target {
                ReshapeSize::Exact(size) => Some(size.clone()),
                ReshapeSize::Infer => None,
                ReshapeSize::Copy => match from.get(place) {
                    Some(size) => size.clone(),
                    None => return Err(self.error("copies an axis that its input does not have")),
                },
            });
        }
        if let Some(at) = targets.iter().position(|t| matches!(t, ReshapeSize::Infer)) {
            let known = |list: &mut dyn Iterator<Item = &Option<Extent>>| {
                let sizes: Option<Vec<&Extent>> = list.map(Option::as_ref).collect();
                Extent::product(sizes?)?.as_known()
            };
            let total = known(&mut from.iter());
            let others = shape.iter().enumerate().filter(|(i, _)| *i != at);
            let rest = known(&mut others.map(|(_, e)| e));
            if let (Some(total), Some(rest)) = (total, rest)
                && rest > 0
                && total % rest == 0
            {
                shape[at] = Some(Extent::known(total / rest));
            }
        }
        Ok(shape)
    }

    /// The length of an axis, if it is known.
    pub(super) fn length(value: &Value, axis: usize) -> Option<usize> {
        let size = value.shape().get(axis)?.as_ref()?.as_known()?;
        usize::try_from(size).ok()
    }
}
