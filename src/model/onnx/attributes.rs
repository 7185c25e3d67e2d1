//! Reads the attributes of a node and refuses unknown ones.

use super::node::Node;
use super::proto::{AttributeProto, TensorProto, attribute_type as kind};
use crate::model::LoadError;

/// The attributes of one node. Its operator knows all of their names.
pub(super) struct Attributes<'a> {
    node: Node<'a>,
}

impl<'a> Attributes<'a> {
    /// Refuses attributes that are not in `known`, duplicates, and references to the attributes of
    /// functions.
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
                return Err(node.error(format!("attribute {name:?} is given twice; give it once")));
            }
            if !attribute.ref_attr_name.is_empty() {
                return Err(node.error(format!(
                    "attribute {name:?} refers to an attribute of a function; inline functions \
                     before exporting"
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

    /// An optional integer.
    pub(super) fn int(&self, name: &str) -> Result<Option<i64>, LoadError> {
        Ok(self.find(name, kind::INT, "an integer")?.map(|a| a.i))
    }

    /// An optional 0 or 1; the default is 0.
    pub(super) fn flag(&self, name: &str) -> Result<bool, LoadError> {
        self.flag_or(name, false)
    }

    /// An optional 0 or 1 with a default.
    pub(super) fn flag_or(&self, name: &str, default: bool) -> Result<bool, LoadError> {
        match self.int(name)?.unwrap_or(i64::from(default)) {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(self
                .node
                .error(format!("attribute {name:?} is {other}; supported: 0 and 1"))),
        }
    }

    /// A required integer.
    pub(super) fn required_int(&self, name: &str) -> Result<i64, LoadError> {
        self.int(name)?.ok_or_else(|| {
            self.node
                .error(format!("attribute {name:?} (an integer) is missing"))
        })
    }

    /// An optional float.
    pub(super) fn float(&self, name: &str) -> Result<Option<f32>, LoadError> {
        Ok(self.find(name, kind::FLOAT, "a float")?.map(|a| a.f))
    }

    /// An optional list of integers.
    pub(super) fn ints(&self, name: &str) -> Result<Option<&'a [i64]>, LoadError> {
        let found = self.find(name, kind::INTS, "a list of integers")?;
        Ok(found.map(|a| a.ints.as_slice()))
    }

    /// An optional list of floats.
    pub(super) fn floats(&self, name: &str) -> Result<Option<&'a [f32]>, LoadError> {
        let found = self.find(name, kind::FLOATS, "a list of floats")?;
        Ok(found.map(|a| a.floats.as_slice()))
    }

    /// An optional string.
    pub(super) fn string(&self, name: &str) -> Result<Option<&'a str>, LoadError> {
        let found = self.find(name, kind::STRING, "a string")?;
        found.map(|a| self.text(name, &a.s)).transpose()
    }

    /// An optional list of strings.
    pub(super) fn strings(&self, name: &str) -> Result<Option<Vec<&'a str>>, LoadError> {
        let found = self.find(name, kind::STRINGS, "a list of strings")?;
        found
            .map(|a| a.strings.iter().map(|s| self.text(name, s)).collect())
            .transpose()
    }

    /// An optional tensor.
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
