//! `cellstream inspect`: the contents of a model file.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;

use super::model::{FileOptions, open};
use super::network::is_candidate;
use cellstream::model::Model;
use cellstream_command::Failure;
use cellstream_network::{InspectedNode, Inspection, NetworkPort, NodeName, Origin};
use serde_json::{Value, json};

/// Prints the contents of a model file, whether it runs or not.
///
/// Of an ONNX file: its inputs and outputs; the recurrent nodes with their sizes and attributes, the
/// origin of their states and lengths, and the nodes around them; the other operators; and which
/// commands take the file. `cut` writes the recurrent part to a file of its own.
///
/// With --json, one object: producer, opset, inputs and outputs (name, type, shape with null for
/// any size), nodes, constants (elements), recurrent (name, operator, direction, input, hidden,
/// attributes, lengths, initial_h, initial_c, weights, before, after, within), operators (numbers of
/// nodes), unsupported (operators), stack (null, or why the file is no stack of layers).
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Model file: .onnx or .safetensors
    model: PathBuf,
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
        let model = open(path, &arguments.file, None)?;
        out.write_all(layers(&model)?.as_bytes())?;
        return Ok(());
    }
    let inspection = Inspection::open(path);
    let inspection =
        inspection.map_err(|why| Failure::new(format!("{}: {why}", path.display())))?;
    let stack = open(path, &arguments.file, None).map_err(|failure| {
        // The file is known.
        let (line, file) = (failure.to_string(), format!("{}: ", path.display()));
        Failure::new(line.strip_prefix(&file).unwrap_or(&line))
    });
    if arguments.json {
        let stack = stack.err().map(|failure| failure.to_string());
        writeln!(out, "{}", object(&inspection, stack))?;
    } else {
        out.write_all(text(&inspection, &stack)?.as_bytes())?;
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
fn text(inspection: &Inspection, stack: &Result<Model, Failure>) -> Result<String, Failure> {
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
            match inspection.unsupported.as_slice() {
                [] => writeln!(text, "run: yes, if tract computes its other nodes")?,
                missing => writeln!(text, "run: no: {} not supported", missing.join(", "))?,
            }
            writeln!(text, "tune, bench, explain: as a graph, with --array")?;
            writeln!(text, "quantize: recurrent weights, to an .onnx file")?;
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
    let kind = port
        .element_type
        .map_or("?".to_owned(), |kind| kind.to_string());
    let shape = port.shape.as_ref().map_or("[...]".to_owned(), |axes| {
        let axes = axes.iter();
        let axes = axes.map(|axis| axis.map_or("?".to_owned(), |size| size.to_string()));
        format!("[{}]", axes.collect::<Vec<_>>().join(", "))
    });
    format!("{:?} {kind} {shape}", port.name)
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
fn object(inspection: &Inspection, stack: Option<String>) -> Value {
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
    })
}
