//! Reading the attributes of a node so that none is silently ignored.

use super::node::Node;
use super::proto::{AttributeProto, TensorProto, attribute_type as kind};
use crate::model::LoadError;

/// The attributes of one node, all of them known by name to its operator.
pub(super) struct Attributes<'a> {
    node: Node<'a>,
}

impl<'a> Attributes<'a> {
    /// Refuses attributes that are not among `known`, duplicates, and references to a function's
    /// attributes.
    pub(super) fn new(node: Node<'a>, known: &[&str]) -> Result<Attributes<'a>, LoadError> {
        let all = &node.proto.attribute;
        for (index, attribute) in all.iter().enumerate() {
            let name = attribute.name.as_str();
            if !known.contains(&name) {
                let supported = match known {
                    [] => "none".to_string(),
                    _ => known.join(", "),
                };
                return Err(node.error(format!(
                    "attribute {name:?} is not supported; supported: {supported}"
                )));
            }
            if all[..index].iter().any(|a| a.name == name) {
                return Err(node.error(format!("attribute {name:?} is given twice")));
            }
            if !attribute.ref_attr_name.is_empty() {
                return Err(node.error(format!(
                    "attribute {name:?} refers to a function's attribute; inline functions before \
                     exporting"
                )));
            }
        }
        Ok(Attributes { node })
    }

    fn find(
        &self,
        name: &str,
        wanted: i32,
        what: &str,
    ) -> Result<Option<&'a AttributeProto>, LoadError> {
        let found = self.node.proto.attribute.iter().find(|a| a.name == name);
        match found {
            Some(a) if a.r#type != wanted => Err(self.node.error(format!(
                "attribute {name:?} has type {}; it must be {what}",
                a.r#type
            ))),
            found => Ok(found),
        }
    }

    /// An integer, if given.
    pub(super) fn int(&self, name: &str) -> Result<Option<i64>, LoadError> {
        Ok(self.find(name, kind::INT, "an integer")?.map(|a| a.i))
    }

    /// An integer that is 0 or 1; 0 if not given.
    pub(super) fn flag(&self, name: &str) -> Result<bool, LoadError> {
        self.flag_or(name, false)
    }

    /// An integer that is 0 or 1, with what it means if not given.
    pub(super) fn flag_or(&self, name: &str, default: bool) -> Result<bool, LoadError> {
        match self.int(name)?.unwrap_or(i64::from(default)) {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(self
                .node
                .error(format!("attribute {name:?} is {other}; supported: 0 and 1"))),
        }
    }

    /// An integer the operator cannot do without.
    pub(super) fn required_int(&self, name: &str) -> Result<i64, LoadError> {
        self.int(name)?.ok_or_else(|| {
            self.node
                .error(format!("attribute {name:?} (an integer) is missing"))
        })
    }

    /// A float, if given.
    pub(super) fn float(&self, name: &str) -> Result<Option<f32>, LoadError> {
        Ok(self.find(name, kind::FLOAT, "a float")?.map(|a| a.f))
    }

    /// A list of integers, if given.
    pub(super) fn ints(&self, name: &str) -> Result<Option<&'a [i64]>, LoadError> {
        let found = self.find(name, kind::INTS, "a list of integers")?;
        Ok(found.map(|a| a.ints.as_slice()))
    }

    /// A list of floats, if given.
    pub(super) fn floats(&self, name: &str) -> Result<Option<&'a [f32]>, LoadError> {
        let found = self.find(name, kind::FLOATS, "a list of floats")?;
        Ok(found.map(|a| a.floats.as_slice()))
    }

    /// A string, if given.
    pub(super) fn string(&self, name: &str) -> Result<Option<&'a str>, LoadError> {
        let found = self.find(name, kind::STRING, "a string")?;
        found.map(|a| self.text(name, &a.s)).transpose()
    }

    /// A list of strings, if given.
    pub(super) fn strings(&self, name: &str) -> Result<Option<Vec<&'a str>>, LoadError> {
        let found = self.find(name, kind::STRINGS, "a list of strings")?;
        found
            .map(|a| a.strings.iter().map(|s| self.text(name, s)).collect())
            .transpose()
    }

    /// A tensor, if given.
    pub(super) fn tensor(&self, name: &str) -> Result<Option<&'a TensorProto>, LoadError> {
        match self.find(name, kind::TENSOR, "a tensor")? {
            None => Ok(None),
            Some(a) => match &a.t {
                Some(tensor) => Ok(Some(tensor)),
                None => Err(self
                    .node
                    .error(format!("attribute {name:?} holds no tensor"))),
            },
        }
    }

    fn text(&self, name: &str, bytes: &'a [u8]) -> Result<&'a str, LoadError> {
        std::str::from_utf8(bytes)
            .map_err(|_| self.node.error(format!("attribute {name:?} is not UTF-8")))
    }
}
