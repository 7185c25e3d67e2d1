//! `gatestream simulate`.

use super::{run_in, stdout, text};

fn words(line: &str) -> Vec<&str> {
    ["simulate"]
        .into_iter()
        .chain(line.split_whitespace())
        .collect()
}

#[test]
fn the_same_seed_gives_the_same_results() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("lengths.txt"), "20\n35\n60\n").unwrap();
    let run = |line: &str| stdout(&run_in(folder.path(), words(line)));
    let line = "--rates 100 --seconds 2 --lengths lengths.txt --csv out.csv --seed";
    let first = run(&format!("{line} 1"));
    assert_eq!(first, run(&format!("{line} 1")));
    assert_ne!(first, run(&format!("{line} 2")));
    for policy in [
        "padding",
        "bucketing:10",
        "cellular:5",
        "ebatch:64",
        "ebatch ",
    ] {
        assert!(first.contains(policy), "{first}");
    }
    let file = std::fs::read_to_string(folder.path().join("out.csv")).unwrap();
    assert_eq!(file.lines().count(), 7);
}

#[test]
fn bad_arguments_are_one_line() {
    let folder = tempfile::tempdir().unwrap();
    for (line, status, part) in [
        ("--lengths absent.txt", 1, "absent.txt"),
        ("--csv no/folder.csv", 1, "existing directory"),
        ("--policies pad", 2, "`pad` is no policy"),
        ("--sustained --rates 5", 2, "cannot be used with"),
        ("--lanes 0", 2, "0 is not in"),
        (
            "--rates 1e9 --seconds 60",
            2,
            "6.0e10 requests in 60 s are too many",
        ),
        ("--lengths normal:60,1e9,20..100", 2, "ten times 20..100"),
    ] {
        let out = run_in(folder.path(), words(line));
        assert_eq!(out.status.code(), Some(status), "{line}: {out:?}");
        let error = text(&out.stderr);
        assert!(error.contains(part), "{line}: {error}");
        assert!(status == 2 || error.lines().count() == 1, "{error}");
    }
}
