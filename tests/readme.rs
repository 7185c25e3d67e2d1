//! What the README shows is what the compiler and the checks see.

/// The lines of the README's block of `language` number `index`, from 0.
fn block(language: &str, index: usize) -> Vec<&'static str> {
    let readme = include_str!("../README.md");
    let start = format!("```{language}");
    let mut starts = readme
        .lines()
        .enumerate()
        .filter(|(_, line)| *line == start);
    let (start, _) = starts.nth(index).expect("so many blocks");
    let lines = readme.lines().skip(start + 1);
    lines.take_while(|line| *line != "```").collect()
}

/// The crate's documentation holds the same examples, and `cargo test` compiles them.
#[test]
fn the_examples_are_those_that_are_compiled() {
    let documentations = [
        include_str!("../src/lib.rs"),
        include_str!("../src/serve/mod.rs"),
    ];
    for (index, documentation) in documentations.into_iter().enumerate() {
        let lines = block("rust", index);
        assert!(lines.len() >= 5, "{lines:?}");
        for line in lines.into_iter().filter(|line| !line.is_empty()) {
            assert!(documentation.contains(&format!("//! {line}\n")), "{line}");
        }
    }
}

/// The main job's command is the one that the checks run.
#[test]
fn the_main_command_is_the_one_that_is_checked() {
    let checks = include_str!("../.ci/run").replace("--quiet ", "");
    let lines = block("sh", 0);
    assert!(!lines.is_empty());
    for line in lines {
        assert!(checks.contains(line), "{line}");
    }
}
