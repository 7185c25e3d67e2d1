//! The contents of a file, and its recurrent core, with the values of ONNX Runtime
//! (`tests/cores/make.py`).

#[path = "common/npz.rs"]
mod npz;

use std::path::{Path, PathBuf};

use gatestream_network::{
    Core, Inspection, Network, NetworkError, NetworkOptions, NodeName, Origin, Tensor,
};
use npz::{Case, difference};

fn file(ending: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cores");
    folder.join(format!("among_others.{ending}"))
}

fn named(operator: &str, name: &str) -> NodeName {
    NodeName {
        name: name.into(),
        operator: operator.into(),
    }
}

#[test]
fn a_file_is_inspected() {
    let inspection = Inspection::open(file("onnx")).unwrap();
    assert_eq!(inspection.opset, 17);
    let inputs: Vec<&str> = inspection.inputs.iter().map(|i| i.name.as_str()).collect();
    assert_eq!(inputs, ["x", "chosen"]);
    assert_eq!(inspection.operators["Reshape"], 2);
    assert!(inspection.unsupported.is_empty());
    let [lstm, gru, other, then] = inspection.recurrent.as_slice() else {
        panic!("{:?}", inspection.recurrent);
    };
    assert_eq!(
        (lstm.operator.as_str(), lstm.direction.as_str()),
        ("LSTM", "bidirectional")
    );
    // Its weights are reshaped: the file does not tell their size.
    assert_eq!((lstm.input_size, lstm.hidden_size), (None, Some(4)));
    assert_eq!(
        (&lstm.initial_h, &lstm.initial_c),
        (&Origin::Zeros, &Origin::Zeros)
    );
    assert_eq!(
        (&lstm.weights, &lstm.lengths),
        (&Origin::Constant, &Origin::Constant)
    );
    assert_eq!(lstm.before, Some(named("Relu", "relu_node")));
    assert_eq!(lstm.after, [named("Transpose", "y1_major_node")]);
    assert_eq!((gru.input_size, gru.hidden_size), (Some(8), Some(4)));
    assert_eq!(
        (&gru.initial_h, &gru.lengths),
        (&Origin::Constant, &Origin::Constant)
    );
    assert_eq!(gru.attributes, [("linear_before_reset".into(), "1".into())]);
    for (branch, activation) in [(then, "Relu"), (other, "Tanh")] {
        assert_eq!(branch.within, Some(named("If", "end_node")));
        assert_eq!(
            branch.attributes,
            [("activations".into(), activation.into())]
        );
    }
}

#[test]
fn cores_have_the_values_of_the_whole_graph() {
    let case = Case::open(&file("npz"));
    let value = |name: &str| -> &Tensor {
        let mut outputs = case.outputs.iter();
        &outputs.find(|output| output.name == name).unwrap().tensor
    };
    let cases = [
        // The stack: states of zeros are gone, other constants are inside.
        (
            None,
            vec!["y1_node", "y2_node"],
            ["relu", "lengths", "h2"].as_slice(),
            "y2",
        ),
        (Some("y1_node"), vec!["y1_node"], &["relu", "lengths"], "y1"),
        (
            Some("y2_node"),
            vec!["y2_node"],
            &["x2", "lengths", "h2"],
            "y2",
        ),
    ];
    for (node, nodes, inputs, output) in cases {
        let core = Core::cut(file("onnx"), node).unwrap();
        assert_eq!(core.nodes, nodes);
        assert_eq!(core.nodes.len() + core.others.len(), 4);
        assert_eq!(core.model.layers().len(), nodes.len());
        let names: Vec<&str> = core
            .inputs
            .iter()
            .map(|input| input.name.as_str())
            .collect();
        assert_eq!(names, inputs);
        let network = Network::from_bytes(&core.bytes, NetworkOptions::default()).unwrap();
        let given: Vec<_> = names.iter().map(|name| (*name, value(name))).collect();
        let outputs = network.run(&given).unwrap();
        let [found] = outputs.as_slice() else {
            panic!("{outputs:?}");
        };
        assert_eq!(found.name, output);
        let apart = difference(&found.tensor, value(output));
        assert!(apart < 2e-6, "{node:?} differs by {apart}");
    }
}

#[test]
fn a_node_of_a_branch_is_cut_out() {
    let case = Case::open(&file("npz"));
    let inspection = Inspection::open(file("onnx")).unwrap();
    let node = &inspection.recurrent[3].name;
    let core = Core::cut(file("onnx"), Some(node)).unwrap();
    let find = |name: &str| {
        &case
            .outputs
            .iter()
            .find(|one| one.name == name)
            .unwrap()
            .tensor
    };
    // One step.
    let last = find("last");
    let network = Network::from_bytes(&core.bytes, NetworkOptions::default()).unwrap();
    let outputs = network.run(&[("last", last)]).unwrap();
    let of_branch = outputs
        .iter()
        .find(|output| output.tensor.shape() == [1, 3, 4]);
    let apart = difference(&of_branch.unwrap().tensor, find("end"));
    assert!(apart < 2e-6, "differs by {apart}");
}

#[test]
fn a_node_that_is_not_there_is_refused() {
    match Core::cut(file("onnx"), Some("none")) {
        Err(NetworkError::Cut { why }) => assert!(why.contains("y1_node"), "{why}"),
        other => panic!("{other:?}"),
    }
}
