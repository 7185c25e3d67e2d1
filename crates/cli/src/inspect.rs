//! `gatestream inspect`: the contents of a model file.

mod tensors;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;

use super::model::{FileOptions, open};
use super::network::{NamedShape, Tried, attempt, is_candidate, type_and_shape, without_file};
use gatestream::model::Model;
use gatestream_command::Failure;
use gatestream_network::{InspectedNode, Inspection, NetworkPort, NodeName, Origin};
use serde_json::{Value, json};

/// Prints the contents of a model file, whether it runs or not.
///
/// Of an ONNX file: its inputs and outputs; the recurrent nodes with their sizes and attributes,
/// the origin of their states and lengths, and the nodes around them; the other operators; and
/// which commands take the file. `cut` writes the recurrent part to a file of its own. A graph is
/// run once on inputs of ones, to learn whether it runs; --shape gives the shapes of inputs whose
/// axes may have any size, of which some are tried otherwise.
///
/// Of a file of tensors: its recurrent stacks, each with its layers, and the other tensors.
///
/// With --json, one object: producer, opset, inputs and outputs (name, type, shape with null for
/// any size), nodes, constants (elements), recurrent (name, operator, direction, input, hidden,
/// attributes, lengths, initial_h, initial_c, weights, before, after, within), operators (numbers
/// of nodes), unsupported (operators), stack (null, or why the file is no stack of layers), run
/// (null if none was tried; shapes, failure).
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Model file: .onnx, .safetensors, or a checkpoint of PyTorch (.pt)
    model: PathBuf,
    /// Shape of an input of a graph for the run that is tried; may be repeated
    #[arg(long = "shape", value_name = "NAME=N,N,…")]
    shapes: Vec<NamedShape>,
    /// Do not try to run a graph
    #[arg(long, conflicts_with = "shapes")]
    no_run: bool,
    /// Print one JSON object instead of text (ONNX files)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    file: FileOptions,
}

/// Reads and prints.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let path = &arguments.model;
    let mut out = std::io::stdout().lock();
    if !is_candidate(path) {
        if arguments.json {
            return Err(Failure::usage("--json is for ONNX files"));
        }
        if !arguments.shapes.is_empty() {
            return Err(Failure::usage("--shape is for ONNX files"));
        }
        out.write_all(tensors::text(path, &arguments.file)?.as_bytes())?;
        return Ok(());
    }
    let inspection = Inspection::open(path);
    let inspection =
        inspection.map_err(|why| Failure::new(format!("{}: {why}", path.display())))?;
    let stack = open(path, &arguments.file, None);
    let stack = stack.map_err(|why| Failure::new(without_file(&why, path)));
    let is_tried = !arguments.no_run && (stack.is_err() || !arguments.shapes.is_empty());
    let tried = is_tried.then(|| attempt(path, &arguments.file, &arguments.shapes));
    if arguments.json {
        let stack = stack.err().map(|failure| failure.to_string());
        writeln!(out, "{}", object(&inspection, stack, tried.as_ref()))?;
    } else {
        out.write_all(text(&inspection, &stack, tried.as_ref())?.as_bytes())?;
    }
    Ok(())
}

/// The layers of a stack, as text.
pub fn layers(model: &Model) -> Result<String, Failure> {
    let mut text = String::new();
    let layers = model.layers();
    writeln!(
        text,
        "stack    {} layers, {} bytes",
        layers.len(),
        model.weight_bytes()
    )?;
    for (index, layer) in layers.iter().enumerate() {
        let directions = match layer.directions() {
            [_, _] => "bidirectional",
            [one] if one.is_reverse() => "reverse",
            _ => "forward",
        };
        writeln!(
            text,
            "layer {:<3} {} {directions}, input {}, hidden {}",
            index + 1,
            layer.kind(),
            layer.input_size(),
            layer.hidden_size()
        )?;
    }
    Ok(text)
}

/// One screen for a person.
fn text(
    inspection: &Inspection,
    stack: &Result<Model, Failure>,
    tried: Option<&Tried>,
) -> Result<String, Failure> {
    let mut text = String::new();
    let producer = match inspection.producer.as_str() {
        "" => "not named",
        producer => producer,
    };
    writeln!(text, "producer {producer}, opset {}", inspection.opset)?;
    writeln!(
        text,
        "size     {} nodes, {} constants",
        inspection.nodes, inspection.constants
    )?;
    for input in &inspection.inputs {
        writeln!(text, "input    {}", port(input))?;
    }
    for output in &inspection.outputs {
        writeln!(text, "output   {}", port(output))?;
    }
    for node in &inspection.recurrent {
        recurrent(&mut text, node)?;
    }
    if !inspection.operators.is_empty() {
        let counts = inspection.operators.iter();
        let counts = counts.map(|(name, count)| match count {
            1 => name.clone(),
            count => format!("{name} {count}"),
        });
        writeln!(text, "\nothers   {}", counts.collect::<Vec<_>>().join(", "))?;
    }
    writeln!(text)?;
    match stack {
        Ok(model) => {
            writeln!(
                text,
                "run, tune, bench, explain, quantize: yes, as a stack of layers"
            )?;
            text.push_str(&layers(model)?);
        }
        Err(why) => {
            match (inspection.unsupported.as_slice(), tried) {
                (missing @ [_, ..], _) => {
                    writeln!(text, "run: no: {} not supported", missing.join(", "))?;
                }
                ([], Some(tried)) => writeln!(text, "run: {tried}")?,
                ([], None) => writeln!(text, "run: not tried")?,
            }
            if inspection.unsupported.is_empty() && tried.is_none_or(|tried| !tried.has_failed()) {
                writeln!(text, "tune, bench, explain: as a graph, with --array")?;
            }
            if !inspection.recurrent.is_empty() {
                writeln!(text, "quantize: recurrent weights, to an .onnx file")?;
            }
            writeln!(text, "no stack of layers: {why}")?;
            if !inspection.recurrent.is_empty() {
                writeln!(
                    text,
                    "cut: writes the recurrent part to a file that they take"
                )?;
            }
        }
    }
    Ok(text)
}

fn recurrent(text: &mut String, node: &InspectedNode) -> Result<(), Failure> {
    let size = |size: Option<usize>| size.map_or("?".to_owned(), |size| size.to_string());
    writeln!(
        text,
        "\n{:<8} {:?}: {}, input {}, hidden {}",
        node.operator,
        node.name,
        node.direction,
        size(node.input_size),
        size(node.hidden_size)
    )?;
    if let Some(holder) = &node.within {
        writeln!(text, "  within    {}", name(holder))?;
    }
    if !node.attributes.is_empty() {
        let all = node
            .attributes
            .iter()
            .map(|(name, value)| format!("{name} = {value}"));
        writeln!(text, "  set       {}", all.collect::<Vec<_>>().join("; "))?;
    }
    let origins = [
        ("lengths", &node.lengths),
        ("h0", &node.initial_h),
        ("c0", &node.initial_c),
    ];
    let given = origins.iter().filter(|(_, from)| **from != Origin::Absent);
    let given: Vec<String> = given
        .map(|(what, from)| format!("{what} {}", origin(from)))
        .collect();
    if !given.is_empty() {
        writeln!(text, "  given     {}", given.join("; "))?;
    }
    if node.weights != Origin::Constant {
        writeln!(text, "  weights   {}", origin(&node.weights))?;
    }
    let before = node
        .before
        .as_ref()
        .map_or("an input of the graph".to_owned(), name);
    writeln!(text, "  behind    {before}")?;
    let after: Vec<String> = node.after.iter().map(name).collect();
    if !after.is_empty() {
        writeln!(text, "  before    {}", after.join(", "))?;
    }
    Ok(())
}

/// An input or output, as text.
pub fn port(port: &NetworkPort) -> String {
    format!("{:?} {}", port.name, type_and_shape(port))
}

fn name(node: &NodeName) -> String {
    format!("{} {:?}", node.operator, node.name)
}

fn origin(origin: &Origin) -> String {
    match origin {
        Origin::Absent => "none".into(),
        Origin::Zeros => "zeros".into(),
        Origin::Constant => "constant".into(),
        Origin::Input(name) => format!("input {name:?}"),
        Origin::Computed(node) => format!("computed by {}", name(node)),
        other => format!("{other:?}"),
    }
}

/// The object of `--json`.
fn object(inspection: &Inspection, stack: Option<String>, tried: Option<&Tried>) -> Value {
    let ports = |ports: &[NetworkPort]| -> Vec<Value> {
        let ports = ports.iter().map(|port| {
            let kind = port.element_type.map(|kind| kind.to_string());
            json!({"name": port.name, "type": kind, "shape": port.shape})
        });
        ports.collect()
    };
    let named = |node: &NodeName| json!({"name": node.name, "operator": node.operator});
    let recurrent = inspection.recurrent.iter().map(|node| {
        let attributes = node.attributes.iter().cloned();
        json!({
            "name": node.name,
            "operator": node.operator,
            "direction": node.direction,
            "input": node.input_size,
            "hidden": node.hidden_size,
            "attributes": attributes.collect::<std::collections::BTreeMap<_, _>>(),
            "lengths": origin(&node.lengths),
            "initial_h": origin(&node.initial_h),
            "initial_c": origin(&node.initial_c),
            "weights": origin(&node.weights),
            "before": node.before.as_ref().map(named),
            "after": node.after.iter().map(named).collect::<Vec<_>>(),
            "within": node.within.as_ref().map(named),
        })
    });
    json!({
        "producer": inspection.producer,
        "opset": inspection.opset,
        "inputs": ports(&inspection.inputs),
        "outputs": ports(&inspection.outputs),
        "nodes": inspection.nodes,
        "constants": inspection.constants,
        "recurrent": recurrent.collect::<Vec<_>>(),
        "operators": inspection.operators,
        "unsupported": inspection.unsupported,
        "stack": stack,
        "run": tried.map(Tried::object),
    })
}
