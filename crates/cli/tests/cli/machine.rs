//! `gatestream machine` as a user sees it: its text, its JSON, its exit codes.

use std::process::Output;

use crate::{program, text};

fn gatestream(arguments: &[&str], isa: Option<&str>) -> Output {
    let mut command = program(arguments);
    command.envs(isa.map(|isa| ("GATESTREAM_ISA", isa)));
    command.output().unwrap()
}

#[test]
fn json_fields() {
    let out = gatestream(&["machine", "--json"], None);
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let text = text(&out.stdout);
    assert_eq!(text.lines().count(), 1);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let cpus = json["topology"]["cores"][0]["cpus"].as_array().unwrap();
    assert!(!cpus.is_empty());
    for field in ["cpu_model", "caches", "numa_nodes", "cpu_quota", "source"] {
        assert!(json["topology"].get(field).is_some(), "{field}");
    }
    assert_eq!(json["isas"].as_array().unwrap().last().unwrap(), "portable");
    assert_eq!(json["isa"], json["isas"][0]);
    assert_eq!(json["ceilings"]["isa"], json["isa"]);
    assert_eq!(json["ceilings"]["one"]["threads"], 1);
    for team in ["one", "all"] {
        let team = &json["ceilings"][team];
        assert!(team["pinned"].is_boolean());
        let (fma, dot) = (&team["fma_f32_gflops"], &team["dot_int8_gops"]);
        for rate in [fma, dot, &team["read_gbps"]["memory"]] {
            assert!(rate["value"].as_f64().unwrap() > 0.0);
            assert!(rate["spread"].as_f64().is_some());
        }
        for level in ["l1", "l2", "l3"] {
            assert!(team["read_gbps"].get(level).is_some(), "{level}");
        }
    }
}

#[test]
fn page() {
    let out = gatestream(&["machine"], Some("portable"));
    let text = text(&out.stdout);
    assert!(text.contains("portable (used)"), "{text}");
    for part in ["cpu ", "cores ", "f32 FMA", "int8 dot", "read memory"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(text.lines().all(|line| line.len() <= 100), "{text}");
}

#[test]
fn invalid_instruction_set() {
    let out = gatestream(&["machine"], Some("sse9"));
    let line = text(&out.stderr);
    assert_eq!(out.status.code(), Some(1));
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(line.contains("sse9"), "{line}");
    assert!(
        line.contains("use avx512, avx2, neon or portable"),
        "{line}"
    );
    assert!(out.stdout.is_empty());
}

#[test]
fn usage_errors() {
    assert_eq!(gatestream(&["mach1ne"], None).status.code(), Some(2));
    assert_eq!(
        gatestream(&["machine", "--xml"], None).status.code(),
        Some(2)
    );
}
