//! What the README shows is what the compiler and the checks see.

/// The lines of the first block of `language` in the README.
fn block(language: &str) -> Vec<&'static str> {
    let readme = include_str!("../README.md");
    let start = format!("```{language}");
    let lines = readme.lines().skip_while(|line| *line != start).skip(1);
    lines.take_while(|line| *line != "```").collect()
}

/// The crate's documentation holds the same example, and `cargo test` compiles it.
#[test]
fn the_example_is_the_one_that_is_compiled() {
    let documentation = include_str!("../src/lib.rs");
    let lines = block("rust");
    assert!(lines.len() >= 5, "{lines:?}");
    for line in lines.into_iter().filter(|line| !line.is_empty()) {
        assert!(documentation.contains(&format!("//! {line}\n")), "{line}");
    }
}

/// The main job's command is the one that the checks run.
#[test]
fn the_main_command_is_the_one_that_is_checked() {
    let checks = include_str!("../.ci/run").replace("--quiet ", "");
    let lines = block("sh");
    assert!(!lines.is_empty());
    for line in lines {
        assert!(checks.contains(line), "{line}");
    }
}
