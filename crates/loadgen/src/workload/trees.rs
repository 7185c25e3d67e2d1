//! Trees of requests: complete, or from a file of dependency heads.

use std::fmt;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use super::network::Network;
use gatestream_serve::networks::{BinaryTree, Dependencies, NetworkError, TreeChild};

/// The tree of a request, in the form that its network reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tree {
    /// Of a TreeLSTM with leaves and internal nodes.
    Binary(Arc<BinaryTree>),
    /// Of a child-sum TreeLSTM: a word at every node.
    Dependencies(Arc<Dependencies>),
}

impl Tree {
    /// The tree of a sentence for `network`: its dependencies, or phrases made of them.
    fn of_sentence(words: Dependencies, network: Network) -> Tree {
        match network {
            Network::Treelstm => Tree::Binary(Arc::new(BinaryTree::of_dependencies(&words))),
            _ => Tree::Dependencies(Arc::new(words)),
        }
    }

    /// A complete binary tree. As dependencies, its words are the leaves and then the nodes.
    ///
    /// # Errors
    /// [`NetworkError::Empty`] without leaves.
    pub fn complete(leaves: usize, network: Network) -> Result<Tree, NetworkError> {
        let tree = BinaryTree::complete(leaves)?;
        if network == Network::Treelstm {
            return Ok(Tree::Binary(Arc::new(tree)));
        }
        let mut heads = vec![0; leaves + tree.nodes().len()];
        for (node, &children) in tree.nodes().iter().enumerate() {
            for child in children {
                let word = match child {
                    TreeChild::Leaf(leaf) => leaf,
                    TreeChild::Node(below) => leaves + below,
                };
                heads[word] = leaves + node + 1;
            }
        }
        Ok(Tree::Dependencies(Arc::new(Dependencies::new(&heads)?)))
    }

    /// Number of rows of input values: of leaves, or of words.
    pub fn rows(&self) -> usize {
        match self {
            Tree::Binary(tree) => tree.leaves(),
            Tree::Dependencies(words) => words.len(),
        }
    }
}

/// The largest number of leaves of a complete tree.
const MAX_LEAVES: usize = 1 << 15;

/// A value of `--trees`; its file is not read yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TreesOption {
    /// `complete:LEAVES`.
    Complete(usize),
    /// A file of lists of heads.
    File(PathBuf),
}

impl FromStr for TreesOption {
    type Err = String;

    fn from_str(text: &str) -> Result<TreesOption, String> {
        let Some(leaves) = text.strip_prefix("complete:") else {
            return Ok(TreesOption::File(text.into()));
        };
        let leaves: usize = leaves.parse().map_err(|_| {
            format!("complete:{leaves} needs a number of leaves, as in complete:16")
        })?;
        if !leaves.is_power_of_two() || leaves > MAX_LEAVES {
            return Err(format!(
                "complete:{leaves} is none of 1, 2, 4, … {MAX_LEAVES} leaves"
            ));
        }
        Ok(TreesOption::Complete(leaves))
    }
}

impl TreesOption {
    /// The trees for `network`, which must be one of trees.
    ///
    /// # Errors
    /// See [`TreesError`].
    pub fn read(&self, network: Network) -> Result<Arc<[Tree]>, TreesError> {
        match self {
            TreesOption::Complete(leaves) => Ok([Tree::complete(*leaves, network)?].into()),
            TreesOption::File(path) => {
                let io = |source| TreesError::Read {
                    path: path.clone(),
                    source,
                };
                let file = std::fs::File::open(path).map_err(io)?;
                read(std::io::BufReader::new(file), path, network)
            }
        }
    }

    /// The file, if there is one.
    pub fn file(&self) -> Option<&Path> {
        match self {
            TreesOption::File(path) => Some(path),
            TreesOption::Complete(_) => None,
        }
    }
}

/// As typed, but without folders, which mean nothing on other machines.
impl fmt::Display for TreesOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TreesOption::Complete(leaves) => write!(f, "complete:{leaves}"),
            TreesOption::File(path) => {
                f.write_str(&path.file_name().unwrap_or_default().to_string_lossy())
            }
        }
    }
}

/// Why trees are refused.
#[derive(Debug, thiserror::Error)]
pub enum TreesError {
    /// The number of leaves is refused.
    #[error(transparent)]
    Complete(#[from] NetworkError),
    /// The file cannot be read.
    #[error("{}: cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error.
        source: std::io::Error,
    },
    /// A line is no list of heads, or its heads form no tree.
    #[error("{}: line {line}: {source}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// The error.
        source: NetworkError,
    },
    /// It has no lines.
    #[error(
        "{}: has no lines; expected the head of each word of a sentence in each, as in [2,0,2]",
        path.display()
    )]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

fn read(file: impl BufRead, path: &Path, network: Network) -> Result<Arc<[Tree]>, TreesError> {
    let mut trees = Vec::new();
    for (index, text) in file.lines().enumerate() {
        let (path, line) = (path.to_path_buf(), index + 1);
        let text = match text {
            Ok(text) => text,
            Err(source) => return Err(TreesError::Read { path, source }),
        };
        match text.parse() {
            Ok(words) => trees.push(Tree::of_sentence(words, network)),
            Err(source) => return Err(TreesError::Line { path, line, source }),
        }
    }
    if trees.is_empty() {
        return Err(TreesError::Empty { path: path.into() });
    }
    Ok(trees.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree in brackets; leaves and words are their numbers.
    fn brackets(tree: &Tree) -> String {
        fn phrase(tree: &BinaryTree, child: TreeChild) -> String {
            match child {
                TreeChild::Leaf(leaf) => leaf.to_string(),
                TreeChild::Node(node) => {
                    let [left, right] = tree.nodes()[node].map(|child| phrase(tree, child));
                    format!("({left} {right})")
                }
            }
        }
        fn word(words: &Dependencies, at: usize) -> String {
            let below = words.children(at).iter();
            let below: String = below
                .map(|&child| format!(" {}", word(words, child)))
                .collect();
            format!("({at}{below})")
        }
        match tree {
            Tree::Binary(tree) => match tree.nodes().len() {
                0 => phrase(tree, TreeChild::Leaf(0)),
                nodes => phrase(tree, TreeChild::Node(nodes - 1)),
            },
            Tree::Dependencies(words) => word(words, words.bottom_up()[words.len() - 1]),
        }
    }

    #[test]
    fn a_complete_tree_has_its_levels() {
        let complete = |leaves, network| brackets(&Tree::complete(leaves, network).unwrap());
        assert_eq!(complete(1, Network::Treelstm), "0");
        assert_eq!(complete(4, Network::Treelstm), "((0 1) (2 3))");
        assert_eq!(complete(1, Network::TreeChildSum), "(0)");
        // Four leaves, the two nodes above them, the root.
        let words = complete(4, Network::TreeChildSum);
        assert_eq!(words, "(6 (4 (0) (1)) (5 (2) (3)))");
        // The paper's: 16 leaves, 31 nodes.
        let rows = |network| Tree::complete(16, network).unwrap().rows();
        assert_eq!(rows(Network::Treelstm), 16);
        assert_eq!(rows(Network::TreeChildSum), 31);
        assert!(Tree::complete(0, Network::Treelstm).is_err());
    }

    #[test]
    fn a_network_gets_its_kind_of_tree() {
        // "the dog barks loudly today": the <- dog <- barks -> loudly, barks -> today.
        let read = |network| {
            let trees = read("[2,3,0,3,3]\n[0]\n".as_bytes(), Path::new("t"), network).unwrap();
            trees.iter().map(brackets).collect::<Vec<_>>()
        };
        let words = ["(2 (1 (0)) (3) (4))", "(0)"];
        assert_eq!(read(Network::TreeChildSum), words);
        assert_eq!(read(Network::Treelstm), ["((0 1) ((2 3) 4))", "0"]);
    }

    #[test]
    fn errors_name_the_line() {
        let refused = |text: &str, words: &str| {
            let error = read(text.as_bytes(), Path::new("t.jsonl"), Network::Treelstm);
            let error = error.unwrap_err().to_string();
            assert!(
                error.starts_with("t.jsonl: ") && error.contains(words),
                "{error}"
            );
        };
        refused(
            "[0]\n[2,0\n",
            "line 2: `[2,0` is not a list of heads; expected numbers as in `[2,0,2]`",
        );
        refused("[0]\n\n", "line 2: `` is not a list");
        refused("[-1]\n", "line 1: `[-1]` is not a list");
        refused(
            "[0,3]\n",
            "line 1: word 2 of 2 has head 3; expected another word, from 1, or 0",
        );
        refused("[0]\n[0,0]\n", "line 2: the tree has 2 roots; expected 1");
        refused("[]\n", "line 1: the request has no word");
        refused("[0,3,2]\n", "line 1: word 2 is in a cycle");
        refused("", "has no lines");
    }

    #[test]
    fn options_are_parsed() {
        let parse = |text: &str| text.parse::<TreesOption>();
        assert_eq!(parse("complete:16"), Ok(TreesOption::Complete(16)));
        assert_eq!(
            parse("a/b.jsonl"),
            Ok(TreesOption::File("a/b.jsonl".into()))
        );
        assert_eq!(parse("a/b.jsonl").unwrap().to_string(), "b.jsonl");
        assert_eq!(parse("complete:16").unwrap().to_string(), "complete:16");
        for bad in ["complete:0", "complete:6", "complete:65536", "complete:x"] {
            let error = parse(bad).unwrap_err();
            assert!(error.starts_with(bad), "{bad}: {error}");
        }
        assert_eq!(
            parse("complete:32768"),
            Ok(TreesOption::Complete(MAX_LEAVES))
        );
    }
}
