//! The operators that have been compared with ONNX's own test cases, by domain, name and version.

use std::collections::HashMap;
use std::sync::OnceLock;

use tract_onnx::pb::{NodeProto, OperatorSetIdProto};

use crate::source::attributes::is_standard;

/// A line for each operator: its domain, its name, the versions that passed and the other versions.
/// `tests/node_cases/table.py` writes it.
const TABLE: &str = include_str!("verified.csv");

/// The versions of an operator, each with the question whether it passed.
type Versions = Vec<(i64, bool)>;

/// A version of an operator: that of the operator set that changed it last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub since: i64,
    pub is_verified: bool,
}

/// The version of the operator of a node under these imports; `None`: the operator, or a version
/// that is as old, is not in the table.
pub(crate) fn version(node: &NodeProto, imports: &[OperatorSetIdProto]) -> Option<Version> {
    let domain = normal(&node.domain);
    let versions = table().get(&(domain, node.op_type.as_str()))?;
    let mut of_domain = imports.iter().filter(|set| normal(&set.domain) == domain);
    // Other domains are often not imported by those that write files.
    let imported = of_domain.next().map_or(i64::MAX, |set| set.version);
    let older = versions.iter().filter(|(since, _)| *since <= imported);
    let newest = older.max_by_key(|(since, _)| *since);
    newest.map(|&(since, is_verified)| Version { since, is_verified })
}

/// Whether the operator of a node is the same under both imports, as far as the table knows.
pub(crate) fn has_one_version(
    node: &NodeProto,
    one: &[OperatorSetIdProto],
    other: &[OperatorSetIdProto],
) -> bool {
    let domain = normal(&node.domain);
    let has_domain =
        |sets: &[OperatorSetIdProto]| sets.iter().any(|set| normal(&set.domain) == domain);
    !has_domain(one) || !has_domain(other) || version(node, one) == version(node, other)
}

/// Whether the table has an operator.
pub(crate) fn has(domain: &str, operator: &str) -> bool {
    table().contains_key(&(normal(domain), operator))
}

/// The name of a domain: that of ONNX's own operators has two.
fn normal(domain: &str) -> &str {
    if is_standard(domain) { "" } else { domain }
}

/// The name of the operator of a node, with the domain if it is not ONNX's own.
pub(crate) fn qualified(node: &NodeProto) -> String {
    match normal(&node.domain) {
        "" => node.op_type.clone(),
        domain => format!("{domain}::{}", node.op_type),
    }
}

fn table() -> &'static HashMap<(&'static str, &'static str), Versions> {
    static READ: OnceLock<HashMap<(&str, &str), Versions>> = OnceLock::new();
    READ.get_or_init(|| TABLE.lines().skip(1).filter_map(line).collect())
}

fn line(line: &'static str) -> Option<((&'static str, &'static str), Versions)> {
    let mut fields = line.split(',');
    let operator = (fields.next()?, fields.next()?);
    let mut versions = Versions::new();
    for is_verified in [true, false] {
        let numbers = fields
            .next()?
            .split(' ')
            .filter(|number| !number.is_empty());
        versions.extend(numbers.filter_map(|number| Some((number.parse().ok()?, is_verified))));
    }
    Some((operator, versions))
}
