//! Checkpoints of PyTorch, with the outputs of their modules
//! (`tests/fixtures/checkpoints/make.py`).

use std::io::Write;
use std::path::PathBuf;

use gatestream::model::{
    Cell, Input, Layout, LoadError, Matrix, Model, Output, SafetensorsOptions, TensorFile,
};
use gatestream::reference;
use serde_json::Value;

fn file(name: &str) -> PathBuf {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/checkpoints");
    PathBuf::from(folder).join(name)
}

struct Expected(Value);

impl Expected {
    fn read() -> Expected {
        let text = std::fs::read_to_string(file("expected.json")).unwrap();
        Expected(serde_json::from_str(&text).unwrap())
    }

    fn floats(value: &Value) -> Vec<f32> {
        let values = value.as_array().unwrap().iter();
        values.map(|value| value.as_f64().unwrap() as f32).collect()
    }

    fn options(&self, name: &str) -> SafetensorsOptions {
        let options = SafetensorsOptions::new();
        match self.0["cases"][name]["prefix"].as_str() {
            Some(prefix) => options.prefix(prefix),
            None => options,
        }
    }

    fn model(&self, name: &str) -> Result<Model, LoadError> {
        Model::from_pytorch(file(&format!("{name}.pt")), &self.options(name))
    }

    fn check(&self, name: &str) {
        let model = self
            .model(name)
            .unwrap_or_else(|why| panic!("{name}: {why}"));
        let x = Expected::floats(&self.0["x"]);
        let size = |what: &str| self.0[what].as_u64().unwrap() as usize;
        let (steps, batch) = (size("steps"), size("batch"));
        let expected = Expected::floats(&self.0["cases"][name]["output"]);
        let mut found = vec![0.0; expected.len()];
        let input = Input::new(&x, steps, batch);
        reference::run(&model, &input, &mut Output::new(&mut found)).unwrap();
        for (found, expected) in found.iter().zip(&expected) {
            assert!(
                (found - expected).abs() < 1e-6,
                "{name}: {found}, {expected}"
            );
        }
    }
}

#[test]
fn checkpoints_have_the_outputs_of_their_modules() {
    let expected = Expected::read();
    for name in ["module", "legacy", "training", "double", "cell"] {
        expected.check(name);
    }
}

#[test]
fn parametrisations_are_computed() {
    let expected = Expected::read();
    for name in ["weight_norm", "parametrized", "pruned"] {
        expected.check(name);
    }
}

/// The plain recurrent weight of each module is not the trained one.
#[test]
fn weight_drop_reads_the_raw_weights_of_a_list_of_modules() {
    Expected::read().check("weight_drop");
    // Without a prefix, the list is offered.
    let without = Model::open(file("weight_drop.pt")).unwrap_err().to_string();
    assert!(
        without.contains("or \"rnns.\" for the modules"),
        "{without}"
    );
}

#[test]
fn parametrisations_that_are_not_known_are_refused() {
    let expected = Expected::read();
    for (name, tensor) in [
        ("spectral_norm", "parametrizations.weight_hh_l0."),
        ("half", "weight_hh_l0_g"),
    ] {
        match expected.model(name) {
            Err(LoadError::Tensor { name, reason }) => {
                assert!(name.starts_with(tensor), "{name}");
                assert!(reason.contains("remove_parametrizations"), "{reason}");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

/// The same weights in other containers and objects (`make_variants.py`).
#[test]
fn other_forms_of_a_checkpoint_have_the_same_weights() {
    let expected = Model::open(file("module.pt")).unwrap();
    for (name, prefix) in [
        ("numpy.pt", None),
        ("numpy5.pt", None),
        ("numpy_fortran.pt", None),
        ("numpy.pkl", None),
        ("numpy2.pkl", None),
        ("tensors.pkl", None),
        ("tensors2.pkl", None),
        ("default.pt", None),
        ("parameters.pt", None),
        ("transposed.pt", None),
        ("list.pt", Some("0")),
        ("whole.pt", Some("lstm.")),
        ("whole_legacy.pt", Some("lstm.")),
        ("holder.pt", Some("weights")),
        ("slots.pt", Some("weights.")),
        ("namespace.pt", Some("weights.")),
        ("tied.pt", Some("again.")),
    ] {
        let mut options = SafetensorsOptions::new();
        if let Some(prefix) = prefix {
            options = options.prefix(prefix);
        }
        let found = Model::open_with(file(name), &options);
        assert_eq!(found.as_ref().ok(), Some(&expected), "{name}: {found:?}");
    }
}

/// Tensors of bfloat16, and modules whose nonlinearity or order of axes is not the default.
#[test]
fn variants_have_the_outputs_of_their_modules() {
    let text = std::fs::read_to_string(file("variants.json")).unwrap();
    let variants: Value = serde_json::from_str(&text).unwrap();
    let mut expected = Expected::read();
    for (name, prefix) in [
        ("bfloat16", None),
        ("relu", None),
        ("relu_cell", Some("cell.")),
        ("batch_first", None),
    ] {
        let case = serde_json::json!({"output": variants[name], "prefix": prefix});
        expected.0["cases"][name] = case;
        expected.check(name);
    }
}

/// Options come before what a module says.
#[test]
fn options_of_a_whole_module_can_be_set() {
    let options = SafetensorsOptions::new();
    let open = |name, options| Model::open_with(file(name), &options).unwrap();
    let batch_first = open("batch_first.pt", options.clone());
    assert_eq!(batch_first.layout(), Layout::BatchMajor);
    let time_first = open("batch_first.pt", options.clone().batch_first(false));
    assert_eq!(time_first.batch_first(), batch_first);
    let tanh = open("relu.pt", options.cell(Cell::RNN));
    assert_eq!(*tanh.layers()[0].directions()[0].cell(), Cell::RNN);
}

#[test]
fn int8_weights_of_a_state_dict_stay_int8() {
    let model = Model::open(file("int8.pt")).unwrap();
    let matrix = |cols: usize| {
        let place = |row: usize| (0..cols).map(move |col| (31 * row + 17 * col) % 255);
        let integers = (0..64).flat_map(place).map(|n| (n as i16 - 127) as i8);
        let scales = (1..65).map(|row| row as f32 / 1024.0);
        Matrix::from_int8(64, cols, &integers.collect::<Vec<_>>(), scales.collect()).unwrap()
    };
    let weights = model.layers()[0].directions()[0].weights();
    assert_eq!(
        (&weights.input, &weights.recurrent),
        (&matrix(32), &matrix(64))
    );
}

#[test]
fn the_tensors_of_a_module_are_those_of_its_state_dict() {
    let checkpoint = TensorFile::read(file("whole.pt")).unwrap();
    let tensors = checkpoint.tensors().unwrap();
    let others = tensors.names().filter(|name| !name.starts_with("lstm."));
    assert_eq!(others.collect::<Vec<_>>(), ["head.bias", "head.weight"]);
    assert_eq!(tensors.shape("head.weight"), Some(&[2, 8][..]));
    assert_eq!(tensors.dtype("head.weight").as_deref(), Some("F32"));
}

#[test]
fn a_tensor_that_is_not_plain_is_named_with_its_type_and_the_way_out() {
    for (file_name, of, is_plain_before) in [
        ("quantised.pt", "_rebuild_qtensor", true),
        ("negated.pt", "a negated or conjugated view", false),
    ] {
        match Model::open(file(file_name)) {
            Err(LoadError::Tensor { name, reason }) => {
                assert_eq!(name, "weight_hh_l1");
                assert!(reason.contains(of), "{reason}");
                assert!(reason.contains("state_dict()"), "{reason}");
                assert_eq!(reason.contains("quantised"), is_plain_before, "{reason}");
                assert_eq!(reason.contains("resolve_neg"), !is_plain_before, "{reason}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_torchscript_archive_is_named_with_the_way_out() {
    for open in [
        Model::open(file("scripted.pt")),
        Model::from_pytorch(file("scripted.pt"), &SafetensorsOptions::new()),
    ] {
        let told = open.unwrap_err().to_string();
        assert!(told.contains("TorchScript"), "{told}");
        assert!(told.contains("model.state_dict()"), "{told}");
    }
}

/// An expanded tensor of 2⁴⁰ values, of one that is stored.
#[test]
fn a_tensor_larger_than_its_file_is_not_read() {
    let checkpoint = TensorFile::read(file("tied.pt")).unwrap();
    let tensors = checkpoint.tensors().unwrap();
    assert_eq!(tensors.shape("wide"), Some(&[1 << 40][..]));
    let refused = tensors.vector("wide").unwrap_err().to_string();
    assert!(refused.contains("strides"), "{refused}");
}

/// The pickle of an array of NumPy, of the pickles of its bytes and its shape.
fn array(bytes: &[u8], dtype: &[u8], shape: &[u8]) -> Vec<u8> {
    [
        &b"cnumpy.core.numeric\n_frombuffer\n("[..],
        bytes,
        b"cnumpy\ndtype\n(U",
        &[dtype.len() as u8],
        dtype,
        b"tR",
        shape,
        b"U\x01CtR",
    ]
    .concat()
}

/// Pickles that grow without bounds in a reader that follows every reference, or every copy.
#[test]
fn hostile_pickles_are_refused_at_once() {
    let mut doubled = b"\x80\x02]q\0".to_vec();
    for level in 0..60u8 {
        // [[…], […]]: the list before, twice.
        doubled.extend([b']', b'q', level + 1, b'h', level, b'a', b'h', level, b'a']);
    }
    doubled.push(b'.');
    let deep = [
        &b"\x80\x02"[..],
        &b"]".repeat(1 << 20),
        &b"a".repeat((1 << 20) - 1),
        b".",
    ];
    let cyclic = b"\x80\x02]q\0h\0a.".to_vec();
    let values = [&b"\x80\x02"[..], &b")".repeat(5 << 20), b"."].concat();
    let copies = [&b"\x80\x02)"[..], &b"2".repeat(5 << 20), b"."].concat();
    let marks = [&b"\x80\x02"[..], &b"(".repeat(5 << 20), b"N."].concat();
    let long = b"\x80\x02X\xff\xff\xff\xffab.".to_vec();
    // A key of 1 KB before many arrays.
    let small = array(b"C\x04abcd", b"f4", b")");
    let mut named = [&b"\x80\x02"[..], &small, b"q\x000}(X\0\x04\0\0"].concat();
    named.extend(b"k".repeat(1 << 10));
    named.extend(b"}(");
    for index in 0..60000u16 {
        named.push(b'M');
        named.extend(index.to_le_bytes());
        named.extend(b"h\0");
    }
    named.extend(b"uu.");
    // The states of an object: pairs of the one before, and tuples within each other.
    let object = b"\x80\x02ca\nb\n)R)";
    let pairs = [&object[..], &b"2\x86".repeat(60), b"b."].concat();
    let nested = [&object[..], &b"\x85".repeat(200_000), b"b."].concat();
    let rebuilt = [
        &b"\x80\x02ctorch._tensor\n_rebuild_from_type_v2\nq\0"[..],
        &b"h\0N".repeat(200_000),
        b")",
        &b"\x87".repeat(200_000),
        b"R.",
    ];
    // Many references to a value that takes long to read, but is no tensor.
    let repeated = |value: &[u8]| {
        let references = b"h\x01".repeat(200_000);
        [&b"\x80\x02"[..], value, b"q\x010(", &references, b"l."].concat()
    };
    let ones = [&b"("[..], &b"K\x01".repeat(1 << 20), b"t"].concat();
    let axes = repeated(&array(b"C\x04abcd", b"f4", &ones));
    let text = [&b"X\0\0\x10\0"[..], &b"k".repeat(1 << 20)].concat();
    let latin = [&b"c_codecs\nencode\n("[..], &text, b"X\x06\0\0\0latin1tR"].concat();
    let decoded = repeated(&array(&latin, b"f4", b"(J\0\0\0\x70t"));
    let reversed = repeated(&array(&text, b">f4", b"(J\0\0\0\x70t"));
    let storage = b"(X\x07\0\0\0storagectorch\nQInt8Storage\nU\x010U\x03cpuK\x01tQ.";
    let file = [&b"\x80\x02"[..], &b"N0".repeat(1 << 19), storage].concat();
    let file = [&b"B"[..], &(file.len() as u32).to_le_bytes(), &file].concat();
    let parsed = repeated(
        &[
            &b"ctorch._utils\n_rebuild_tensor_v2\n(ctorch.storage\n_load_from_bytes\n("[..],
            &file,
            b"tRK\x00(K\x01t(K\x01ttR",
        ]
        .concat(),
    );
    // Lists of sixteen times the one before, as the arguments of a call.
    let level = [&b"q\0("[..], &b"h\0".repeat(16), b"l"].concat();
    let wide = repeated(&[&b"ca\nb\n(N"[..], &level.repeat(4), b"tR"].concat());
    // Keys that are no UTF-8 at their end.
    let key = [&b"B\0\0\x10\0"[..], &b"k".repeat((1 << 20) - 1), b"\xff"].concat();
    let items = b"h\x01N".repeat(1 << 20);
    let keys = [&b"\x80\x02"[..], &key, b"q\x010}(", &items, b"u."].concat();
    let held = "its objects hold each other too often or too deeply";
    let many = "its pickle has more than 4194304 values";
    let none = "no recurrent stack";
    for (name, pickle, told) in [
        ("doubled", doubled, held),
        ("deep", deep.concat(), held),
        ("cyclic", cyclic, none),
        ("values", values, many),
        ("copies", copies, many),
        ("marks", marks, many),
        ("long", long, "it is cut short (at byte 2 of its pickle)"),
        ("named", named, held),
        ("pairs", pairs, none),
        ("nested", nested, none),
        ("rebuilt", rebuilt.concat(), none),
        ("axes", axes, held),
        ("decoded", decoded, held),
        ("reversed", reversed, held),
        ("parsed", parsed, held),
        ("wide", wide, held),
        ("keys", keys, none),
        ("empty", b"\x80\x02.".to_vec(), "a value is missing"),
    ] {
        let mut hostile = tempfile::NamedTempFile::new().unwrap();
        hostile.write_all(&pickle).unwrap();
        let refused = Model::open(hostile.path()).unwrap_err().to_string();
        assert!(refused.contains(told), "{name}: {refused}");
        assert!(
            !refused.contains('\n') && refused.len() < 300,
            "{name}: {refused}"
        );
    }
}

/// Matrices of the same bytes and different shapes, as the parts of pruned weights of many layers.
#[test]
fn computed_tensors_are_not_larger_than_their_file() {
    let bytes = [&b"B\0\0\x10\0"[..], &[0; 1 << 20]].concat();
    let mut pickle = [&bytes[..], b"q\x010}("].concat();
    for rows in 100..500u16 {
        let shape = [&b"(M"[..], &rows.to_le_bytes(), b"M\0\x02t"].concat();
        for part in ["orig", "mask"] {
            pickle.extend(text(&format!("{rows}.weight_ih_l0_{part}")));
            pickle.extend(array(b"h\x01", b"f4", &shape));
        }
    }
    pickle.push(b'u');
    let refused = open(&pickle, &SafetensorsOptions::new()).unwrap_err();
    let refused = refused.to_string();
    assert!(refused.contains("larger than the file"), "{refused}");
}

/// A text, a dictionary and an object in a pickle.
fn text(value: &str) -> Vec<u8> {
    [&[b'U', value.len() as u8], value.as_bytes()].concat()
}

fn dictionary(items: &[(&str, &[u8])]) -> Vec<u8> {
    let items = items
        .iter()
        .map(|(key, value)| [&text(key), *value].concat());
    let items: Vec<Vec<u8>> = items.collect();
    [&b"}("[..], &items.concat(), b"u"].concat()
}

fn object(attributes: &[(&str, &[u8])]) -> Vec<u8> {
    [&b"ca\nb\n)R"[..], &dictionary(attributes), b"b"].concat()
}

/// A module of one layer without biases: two inputs, two hidden units.
fn module(options: &[(&str, &[u8])]) -> Vec<u8> {
    let ones = [&b"C\x10"[..], &1f32.to_le_bytes().repeat(4)].concat();
    let matrix = array(&ones, b"f4", b"(K\x02K\x02t");
    let parameters = dictionary(&[("weight_ih_l0", &matrix), ("weight_hh_l0", &matrix)]);
    let tables: [(&str, &[u8]); 3] = [
        ("_parameters", &parameters),
        ("_buffers", b"}"),
        ("_modules", b"}"),
    ];
    object(&[&tables, options].concat())
}

fn open(pickle: &[u8], options: &SafetensorsOptions) -> Result<Model, LoadError> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"\x80\x02").unwrap();
    file.write_all(pickle).unwrap();
    file.write_all(b".").unwrap();
    Model::open_with(file.path(), options)
}

const YES: &[u8] = b"\x88";
const NO: &[u8] = b"\x89";

#[test]
fn modules_of_a_list_agree_unless_an_option_says_it() {
    let (relu, tanh) = (text("RNN_RELU"), text("RNN_TANH"));
    let list = |first: [&[u8]; 2], second: [&[u8]; 2]| {
        let of = |[mode, batch_first]: [&[u8]; 2]| {
            module(&[("mode", mode), ("batch_first", batch_first)])
        };
        let modules = dictionary(&[("0", &of(first)), ("1", &of(second))]);
        dictionary(&[("rnns", &modules)])
    };
    let options = SafetensorsOptions::new().prefix("rnns.");
    let (with_cell, with_order) = (
        options.clone().cell(Cell::RNN),
        options.clone().batch_first(false),
    );
    for (file, refused, name, option, accepted) in [
        (
            list([&relu, NO], [&tanh, NO]),
            [&options, &with_order],
            "nonlinearity",
            "SafetensorsOptions::cell (--cell)",
            &with_cell,
        ),
        (
            list([&tanh, YES], [&tanh, NO]),
            [&options, &with_cell],
            "batch_first",
            "SafetensorsOptions::batch_first (--batch-first)",
            &with_order,
        ),
    ] {
        for options in refused {
            match open(&file, options) {
                Err(LoadError::Tensor {
                    name: tensor,
                    reason,
                }) => {
                    assert_eq!(tensor, "rnns.1.weight_ih_l0");
                    assert!(reason.contains(name), "{reason}");
                    assert!(reason.contains(option), "{reason}");
                }
                other => panic!("{other:?}"),
            }
        }
        let model = open(&file, accepted).unwrap();
        assert_eq!(model.layout(), Layout::TimeMajor);
        for layer in model.layers() {
            assert_eq!(*layer.directions()[0].cell(), Cell::RNN);
        }
    }
    let both = list([&relu, YES], [&tanh, NO]);
    assert!(open(&both, &with_cell).is_err());
    assert!(open(&both, &with_cell.batch_first(true)).is_ok());
}

#[test]
fn values_of_options_of_a_module() {
    let options = SafetensorsOptions::new();
    let (relu, tanh) = (text("relu"), text("tanh"));
    let batch_major = |value: &[u8]| {
        let model = open(&module(&[("batch_first", value)]), &options);
        model.map(|model| model.layout() == Layout::BatchMajor)
    };
    assert!(batch_major(YES).unwrap() && batch_major(b"K\x01").unwrap());
    assert!(!batch_major(NO).unwrap() && !batch_major(b"K\x00").unwrap());
    let is_relu = |value: &[u8]| {
        let model = open(&module(&[("nonlinearity", value)]), &options);
        model.map(|model| *model.layers()[0].directions()[0].cell() != Cell::RNN)
    };
    assert!(is_relu(&relu).unwrap() && !is_relu(&tanh).unwrap());
    for (name, value) in [
        ("batch_first", &b"K\x02"[..]),
        ("batch_first", &text("yes")),
        ("nonlinearity", &text("gelu")),
        ("nonlinearity", b"ctorch\nrelu\n"),
    ] {
        let file = module(&[(name, value)]);
        let refused = open(&file, &options).unwrap_err().to_string();
        assert!(refused.contains(name), "{refused}");
        assert!(refused.contains("unknown value"), "{refused}");
        let given = match name {
            "batch_first" => options.clone().batch_first(true),
            _ => options.clone().cell(Cell::RNN),
        };
        assert!(open(&file, &given).is_ok(), "{name}");
    }
}

/// The same tensors, under many names: pruned weights, and weights that a pickle of protocol 2
/// holds as texts.
#[test]
fn shared_weights_are_computed_and_decoded_once() {
    const SIZE: usize = 64;
    let shape = b"(K\x40K\x40t";
    let values = |value: f32| {
        let bytes = value.to_le_bytes().repeat(SIZE * SIZE);
        let length = (bytes.len() as u32).to_le_bytes();
        array(&[&b"B"[..], &length, &bytes].concat(), b"f4", shape)
    };
    let pruned = dictionary(&[
        ("weight_ih_l0_orig", &values(3.0)),
        ("weight_ih_l0_mask", &values(0.5)),
        ("weight_hh_l0", &values(2.0)),
    ]);
    // 1.5 and 2 have bytes of ASCII and Latin 1.
    let texts = |value: f32| {
        let bytes = value.to_le_bytes().repeat(SIZE * SIZE);
        let text: String = bytes.into_iter().map(char::from).collect();
        let length = (text.len() as u32).to_le_bytes();
        let text = [&b"X"[..], &length, text.as_bytes()].concat();
        let call = [&b"c_codecs\nencode\n("[..], &text, b"X\x06\0\0\0latin1tR"];
        array(&call.concat(), b"f4", shape)
    };
    let decoded = dictionary(&[("weight_ih_l0", &texts(1.5)), ("weight_hh_l0", &texts(2.0))]);
    let matrix = |value| Matrix::new(SIZE, SIZE, vec![value; SIZE * SIZE]).unwrap();
    for weights in [pruned, decoded] {
        // The dictionary is kept, and each name but the first repeats it.
        let mut file = [&b"}("[..], &text("model"), &weights, b"q\x05"].concat();
        for copy in 0..8 {
            file.extend(text(&format!("copy{copy}")));
            file.extend(b"h\x05");
        }
        file.push(b'u');
        for prefix in ["model.", "copy7."] {
            let options = SafetensorsOptions::new().prefix(prefix);
            let model = open(&file, &options).unwrap();
            let found = model.layers()[0].directions()[0].weights();
            assert_eq!(found.input, matrix(1.5));
            assert_eq!(found.recurrent, matrix(2.0));
        }
    }
}

#[test]
fn an_archive_that_unpacks_to_more_than_it_has_is_refused() {
    let mut bytes = std::fs::read(file("module.pt")).unwrap();
    // The sizes of each entry in the central directory.
    let signature = b"PK\x01\x02";
    let entries: Vec<usize> = (0..bytes.len() - 4)
        .filter(|&at| &bytes[at..at + 4] == signature)
        .collect();
    assert!(entries.len() > 3);
    for at in entries {
        bytes[at + 24..at + 28].copy_from_slice(&0x7000_0000u32.to_le_bytes());
    }
    let mut broken = tempfile::Builder::new().suffix(".pt").tempfile().unwrap();
    broken.write_all(&bytes).unwrap();
    match Model::open(broken.path()) {
        Err(LoadError::Malformed { reason, .. }) => {
            assert!(reason.contains("bytes"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn files_cut_short_are_refused() {
    for name in [
        "module.pt",
        "legacy.pt",
        "numpy.pkl",
        "tensors.pkl",
        "whole_legacy.pt",
    ] {
        let bytes = std::fs::read(file(name)).unwrap();
        for length in (0..bytes.len()).step_by(97) {
            let mut broken = tempfile::Builder::new().suffix(".pt").tempfile().unwrap();
            broken.write_all(&bytes[..length]).unwrap();
            assert!(
                Model::open(broken.path()).is_err(),
                "{name}: {length} bytes"
            );
        }
    }
}

#[test]
fn changed_bytes_are_models_or_errors() {
    let mut random = fastrand::Rng::with_seed(29);
    let mut read = 0;
    for name in [
        "module.pt",
        "legacy.pt",
        "training.pt",
        "weight_norm.pt",
        "numpy.pkl",
        "numpy2.pkl",
        "tensors2.pkl",
        "whole_legacy.pt",
    ] {
        let bytes = std::fs::read(file(name)).unwrap();
        for _ in 0..300 {
            let mut changed = bytes.clone();
            for _ in 0..random.usize(1..4) {
                let at = random.usize(..changed.len());
                changed[at] = random.u8(..);
            }
            let mut broken = tempfile::Builder::new().suffix(".pt").tempfile().unwrap();
            broken.write_all(&changed).unwrap();
            let options = SafetensorsOptions::new();
            read += usize::from(Model::from_pytorch(broken.path(), &options).is_ok());
        }
    }
    assert!(read > 0);
}

/// The file has line breaks and control characters.
#[test]
fn an_error_has_one_line() {
    let refused = Model::open(file("hostile_legacy.pt")).unwrap_err();
    let told = refused.to_string();
    assert!(told.contains("PyTorch"), "{told}");
    assert!(!told.contains(char::is_control), "{told:?}");
}
