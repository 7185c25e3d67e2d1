//! Safetensors files that are damaged, or made to damage: an error each time, never a panic.

use gatestream::model::{Cell, LoadError, Model, SafetensorsOptions, Tensors};

/// A file of this header and so many bytes of data.
fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0x3c);
    bytes
}

/// A two-layer LSTM of one unit, in f16, with metadata; 64 bytes of data.
fn small() -> Vec<u8> {
    let mut header = String::from(
        r#"{"__metadata__":{"gatestream.cell":"lstm","gatestream.batch_first":"true"}"#,
    );
    let mut end = 0;
    for layer in 0..2 {
        for (part, shape) in [
            ("weight_ih", "[4,1]"),
            ("weight_hh", "[4,1]"),
            ("bias_ih", "[4]"),
            ("bias_hh", "[4]"),
        ] {
            header += &format!(
                r#","r.{part}_l{layer}":{{"dtype":"F16","shape":{shape},"data_offsets":{:?}}}"#,
                [end, end + 8]
            );
            end += 8;
        }
    }
    file(&(header + "}"), end)
}

/// Reads `bytes` in every way there is; whether it is a model.
fn read_all(bytes: &[u8]) -> bool {
    if let Ok(tensors) = Tensors::from_bytes(bytes) {
        for name in tensors.names() {
            let _ = (tensors.matrix(name), tensors.vector(name));
        }
    }
    let plain = SafetensorsOptions::new();
    let _ = Model::from_safetensors(bytes, &plain.clone().prefix("r."));
    let _ = Model::from_safetensors(bytes, &plain.clone().cell(Cell::RNN));
    match Model::from_safetensors(bytes, &plain) {
        Ok(model) => {
            assert!(model.weight_bytes() <= 4 * bytes.len());
            true
        }
        Err(error) => {
            assert!(!error.to_string().contains('\n'));
            false
        }
    }
}

/// Sums of int8 that could overflow are refused by their shape: of two faults the later matrix's is
/// found, since the earlier one's is in its data.
#[test]
fn too_deep_for_int8_is_known_from_the_header() {
    use gatestream_kernels::INT8_DEPTH;
    for (hidden, refused) in [
        (INT8_DEPTH, "weight_ih_l0"),
        (INT8_DEPTH + 1, "weight_hr_l0"),
    ] {
        let rows = 4 * hidden;
        let mut header = String::new();
        let mut end = 0;
        for (name, dtype, shape, bytes) in [
            ("weight_ih_l0", "I8", format!("[{rows},1]"), rows),
            ("weight_ih_l0_scale", "F32", format!("[{rows}]"), 4 * rows),
            ("weight_hh_l0", "F16", format!("[{rows},1]"), 2 * rows),
            ("weight_hr_l0", "I8", format!("[1,{hidden}]"), hidden),
            ("weight_hr_l0_scale", "F32", "[1]".into(), 4),
        ] {
            let comma = if header.is_empty() { "" } else { "," };
            header += &format!(
                r#"{comma}"{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{:?}}}"#,
                [end, end + bytes]
            );
            end += bytes;
        }
        let header = format!("{{{header}}}");
        let mut bytes = file(&header, end);
        // -128, which no int8 matrix holds.
        bytes[8 + header.len()] = 0x80;
        match Model::from_safetensors(&bytes, &SafetensorsOptions::new()) {
            Err(LoadError::Tensor { name, .. }) => assert_eq!(name, refused),
            other => panic!("{:?}", other.err()),
        }
    }
}

#[test]
fn cut_anywhere() {
    let whole = small();
    assert!(read_all(&whole));
    for length in 0..whole.len() {
        let error = Tensors::from_bytes(&whole[..length]).expect_err("cut");
        assert!(matches!(error, LoadError::Malformed { .. }), "{error}");
        assert!(!read_all(&whole[..length]));
    }
    let longer = [&whole[..], &[0]].concat();
    assert!(Tensors::from_bytes(&longer).is_err());
}

/// Read from every alignment, since nothing in the format promises one.
#[test]
fn unaligned() {
    let whole = small();
    let expected = Model::from_safetensors(&whole, &SafetensorsOptions::new()).expect("loads");
    for shift in 0..8 {
        let shifted = [&vec![0; shift][..], &whole].concat();
        let model = Model::from_safetensors(&shifted[shift..], &SafetensorsOptions::new());
        assert_eq!(model.expect("loads"), expected);
    }
}

#[test]
fn flipped_bits_and_bytes() {
    let whole = small();
    let mut random = fastrand::Rng::with_seed(11);
    let mut models = 0;
    for _ in 0..20_000 {
        let mut bytes = whole.clone();
        for _ in 0..random.usize(1..4) {
            let at = random.usize(0..bytes.len());
            if random.bool() {
                bytes[at] ^= 1 << random.u32(0..8);
            } else {
                bytes[at] = random.u8(..);
            }
        }
        models += usize::from(read_all(&bytes));
    }
    // Both ends of the loader were reached: what is damaged in its data only is still a model.
    assert!((100..19_000).contains(&models), "{models} models");
}

/// Each is refused, with a reason that names what is wrong.
#[test]
fn contradictions() {
    let one = |dtype: &str, shape: &str, range: &str| {
        format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{range}}}}}"#)
    };
    let deep = format!(r#"{{"a":{}1{}}}"#, "[".repeat(5000), "]".repeat(5000));
    let cases: Vec<(String, usize, &str)> = vec![
        ("".into(), 0, "header"),
        ("[]".into(), 0, "an object of tensors"),
        ("{".into(), 0, "EOF"),
        (deep, 0, "tensor \"a\""),
        (
            one("F32", "[1]", "[0,4]"),
            3,
            "3 bytes of data, but the header describes 4",
        ),
        (
            one("F32", "[1]", "[0,4]"),
            5,
            "5 bytes of data, but the header describes 4",
        ),
        (one("F32", "[2]", "[0,4]"), 4, "shape"),
        (one("F32", "[1]", "[4,8]"), 8, "`a`"),
        (one("F32", "[1]", "[8,4]"), 8, "`a`"),
        (one("F32", "[-1]", "[0,4]"), 4, "tensor \"a\""),
        (one("F32", "[1.5]", "[0,6]"), 6, "tensor \"a\""),
        (one("F99", "[1]", "[0,4]"), 4, "F99"),
        (
            one("F32", r#"[1],"shape":[1]"#, "[0,4]"),
            4,
            "duplicate field `shape`",
        ),
        (
            one("F32", "[4294967296,4294967296,4]", "[0,0]"),
            0,
            "overflow",
        ),
        (one("F32", "[4611686018427387904]", "[0,0]"), 0, "overflow"),
        (
            one("F32", "[18446744073709551616]", "[0,0]"),
            0,
            "tensor \"a\"",
        ),
        // The last of two equal names would win, in silence.
        (
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                "a":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}}"#
                .into(),
            4,
            "two tensors are named \"a\"",
        ),
        (
            r#"{"__metadata__":{},"__metadata__":{}}"#.into(),
            0,
            "__metadata__ is given twice",
        ),
        (
            r#"{"__metadata__":{"k":"1","k":"2"}}"#.into(),
            0,
            "metadata \"k\" is given twice",
        ),
        (r#"{"__metadata__":{"k":NaN}}"#.into(), 0, "header"),
        (r#"{"__metadata__":{"k":1}}"#.into(), 0, "string"),
        (r#"{"__metadata__":"k"}"#.into(), 0, "an object of strings"),
        // Overlap, and a gap.
        (
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                "b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}}"#
                .into(),
            6,
            "`b`",
        ),
        (
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                "b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}}"#
                .into(),
            12,
            "`b`",
        ),
    ];
    for (header, data, expected) in cases {
        let error = Tensors::from_bytes(&file(&header, data)).expect_err(&header);
        assert!(matches!(error, LoadError::Malformed { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(expected), "{text:?} lacks {expected:?}");
        assert!(!read_all(&file(&header, data)));
    }
}

/// Ranges that follow each other to just below 2⁶⁴, where adding the header's length overflows.
#[test]
fn ranges_up_to_the_largest_number() {
    // A tensor cannot have 2⁶¹ bytes, since its bits are counted too; nine smaller ones reach far.
    let step = (1u64 << 61) - 1024;
    for end in [u64::MAX, u64::MAX - 8, u64::MAX - 2000] {
        let ends: Vec<u64> = (1..=8).map(|i| i * step).chain([end]).collect();
        let mut from = 0;
        let mut entries = Vec::new();
        for to in ends {
            entries.push(format!(
                r#""t{}":{{"dtype":"U8","shape":[{}],"data_offsets":[{from},{to}]}}"#,
                entries.len(),
                to - from
            ));
            from = to;
        }
        let bytes = file(&format!("{{{}}}", entries.join(",")), 4);
        let error = Tensors::from_bytes(&bytes).expect_err("too large");
        let text = error.to_string();
        assert!(text.contains(&end.to_string()), "{text}");
    }
}

#[test]
fn header_lengths_beyond_the_file() {
    let whole = small();
    for length in [
        whole.len() as u64 - 7,
        4 << 20,
        (4 << 20) + 1,
        100_000_000,
        u64::from(u32::MAX),
        u64::MAX - 8,
        u64::MAX,
    ] {
        let mut bytes = whole.clone();
        bytes[..8].copy_from_slice(&length.to_le_bytes());
        let error = Tensors::from_bytes(&bytes).expect_err("too long");
        let text = error.to_string();
        assert!(text.contains(&length.to_string()), "{text}");
    }
}

#[test]
fn a_file_without_tensors() {
    let tensors = file("{}", 0);
    assert_eq!(
        Tensors::from_bytes(&tensors)
            .expect("reads")
            .names()
            .count(),
        0
    );
    let error = Model::from_safetensors(&tensors, &SafetensorsOptions::new()).expect_err("empty");
    assert!(matches!(error, LoadError::NoStack { .. }), "{error}");
}

/// A header is padded with spaces, so a small one can be made as long as any.
#[test]
fn headers_up_to_four_mebibytes() {
    let start = r#"{"__metadata__":{"k":"v"}}"#;
    let header = |length: usize| format!("{start}{}", " ".repeat(length - start.len()));
    let longest = file(&header(4 << 20), 0);
    let tensors = Tensors::from_bytes(&longest).expect("reads");
    assert_eq!(tensors.metadata("k"), Some("v"));
    assert_eq!(tensors.metadata("w"), None);
    let error = Tensors::from_bytes(&file(&header((4 << 20) + 1), 0)).expect_err("too long");
    assert!(error.to_string().contains("at most 4194304"), "{error}");
}

/// The header may name tensors in another order than that of their bytes.
#[test]
fn header_in_another_order_than_the_data() {
    let mut bytes = file(
        r#"{"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]},
            "a":{"dtype":"BF16","shape":[4],"data_offsets":[0,8]}}"#,
        0,
    );
    bytes.extend([0x80, 0x3f].repeat(4));
    bytes.extend(2.5f32.to_le_bytes());
    let tensors = Tensors::from_bytes(&bytes).expect("reads");
    assert_eq!(tensors.vector("a").expect("reads"), [1.0; 4]);
    assert_eq!(tensors.vector("b").expect("reads"), [2.5]);
}
