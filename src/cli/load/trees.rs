//! Trees of requests: of a file of dependency heads, or complete.

use std::fmt;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use super::request::Network;

/// A rooted tree. Nodes are numbered so that each comes after its children; the last is the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// Children of node n are `children[starts[n]..starts[n + 1]]`.
    children: Vec<u32>,
    starts: Vec<u32>,
}

impl Tree {
    /// Of the children of each node.
    fn new(nodes: impl IntoIterator<Item = Vec<u32>>) -> Tree {
        let (mut children, mut starts) = (Vec::new(), vec![0]);
        for node in nodes {
            children.extend(node);
            starts.push(children.len() as u32);
        }
        Tree { children, starts }
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// The children of a node, from left to right.
    pub fn children(&self, node: usize) -> &[u32] {
        &self.children[self.starts[node] as usize..self.starts[node + 1] as usize]
    }

    /// The complete binary tree of so many leaves.
    ///
    /// # Errors
    /// Not a power of two, or above 2^15.
    pub fn complete(leaves: usize) -> Result<Tree, String> {
        if !leaves.is_power_of_two() || leaves > 1 << 15 {
            return Err(format!(
                "complete:{leaves} is none of 1, 2, 4, … 32768 leaves"
            ));
        }
        // Level after level, leaves first.
        let mut nodes = vec![Vec::new(); leaves];
        let mut below = 0;
        while nodes.len() < 2 * leaves - 1 {
            nodes.push(vec![below, below + 1]);
            below += 2;
        }
        Ok(Tree::new(nodes))
    }

    /// The dependency tree itself: a node for each word.
    ///
    /// # Errors
    /// As [`Heads::new`].
    pub fn dependencies(heads: &[usize]) -> Result<Tree, HeadsError> {
        let heads = Heads::new(heads)?;
        let mut number = vec![0; heads.below.len()];
        let nodes: Vec<Vec<u32>> = (heads.order.iter().enumerate())
            .map(|(index, &word)| {
                number[word] = index as u32;
                heads.below[word].iter().map(|&w| number[w]).collect()
            })
            .collect();
        Ok(Tree::new(nodes))
    }

    /// A binary tree over the same words, as a treebank of phrases has it: a leaf for each word; a word's phrase takes
    /// in the phrases of its dependants one by one, those to its right first, the nearer first.
    ///
    /// # Errors
    /// As [`Heads::new`].
    pub fn phrases(heads: &[usize]) -> Result<Tree, HeadsError> {
        let heads = Heads::new(heads)?;
        let mut nodes: Vec<Vec<u32>> = vec![Vec::new(); heads.below.len()];
        // The node of each word's phrase as far as it has come: its leaf.
        let mut phrase: Vec<u32> = (0..heads.below.len() as u32).collect();
        for &word in &heads.order {
            let (left, right): (Vec<usize>, Vec<usize>) =
                heads.below[word].iter().partition(|&&w| w < word);
            let joins = right.iter().map(|&w| [word, w]);
            let joins = joins.chain(left.iter().rev().map(|&w| [w, word]));
            for join in joins {
                nodes.push(join.map(|w| phrase[w]).into());
                phrase[word] = nodes.len() as u32 - 1;
            }
        }
        Ok(Tree::new(nodes))
    }
}

/// Heads that have been checked: words counted from 0.
struct Heads {
    /// Dependants of each word, from left to right.
    below: Vec<Vec<usize>>,
    /// All words, each after its dependants.
    order: Vec<usize>,
}

impl Heads {
    /// The head of each word, words counted from 1, 0 for the root.
    fn new(heads: &[usize]) -> Result<Heads, HeadsError> {
        let words = heads.len();
        let mut below = vec![Vec::new(); words];
        let mut roots = Vec::new();
        for (word, &head) in heads.iter().enumerate() {
            match head {
                0 => roots.push(word),
                head if head <= words => below[head - 1].push(word),
                head => {
                    return Err(HeadsError::Beyond {
                        word: word + 1,
                        head,
                        words,
                    });
                }
            }
        }
        let &[root] = &roots[..] else {
            return Err(HeadsError::Roots { found: roots.len() });
        };
        // Heads before dependants; what the root does not reach hangs in a circle.
        let mut order = vec![root];
        let mut next = 0;
        while next < order.len() {
            order.extend(&below[order[next]]);
            next += 1;
        }
        if order.len() < words {
            let mut reached = vec![false; words];
            order.iter().for_each(|&word| reached[word] = true);
            let word = reached.iter().position(|r| !r).unwrap_or(0) + 1;
            return Err(HeadsError::Circle { word });
        }
        order.reverse();
        Ok(Heads { below, order })
    }
}

/// Why heads are no tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadsError {
    /// A head that is no word.
    #[error("word {word} has head {head}; expected 0..={words}, 0 for the root")]
    Beyond {
        /// Counted from 1.
        word: usize,
        /// Its head.
        head: usize,
        /// Words of the sentence.
        words: usize,
    },
    /// Not one root.
    #[error("{found} words have head 0; expected one, the root")]
    Roots {
        /// How many.
        found: usize,
    },
    /// Words whose heads lead in a circle.
    #[error("the heads above word {word} lead in a circle; expected the root in the end")]
    Circle {
        /// Counted from 1.
        word: usize,
    },
}

/// `--trees`, before any file is read.
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
        let leaves = leaves.parse().map_err(|_| {
            format!("complete:{leaves} needs a number of leaves, as in complete:16")
        })?;
        Tree::complete(leaves)?;
        Ok(TreesOption::Complete(leaves))
    }
}

impl TreesOption {
    /// The trees that `network` takes, which is one of trees.
    ///
    /// # Errors
    /// See [`TreesError`].
    pub fn read(&self, network: Network) -> Result<Arc<[Arc<Tree>]>, TreesError> {
        match self {
            TreesOption::Complete(leaves) => {
                let tree = Tree::complete(*leaves).map_err(TreesError::Complete)?;
                Ok([Arc::new(tree)].into())
            }
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

/// As it is typed, a file without its folder: results go to other machines.
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
    /// The number of leaves.
    #[error("{0}")]
    Complete(String),
    /// The file cannot be read.
    #[error("{}: cannot be read", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line is no list of numbers.
    #[error("{}: line {line}: expected the head of each word, as in [2,0,2]", path.display())]
    Line {
        /// Which file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// The heads of a line are no tree.
    #[error("{}: line {line}: {source}", path.display())]
    Heads {
        /// Which file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        source: HeadsError,
    },
    /// No tree at all.
    #[error("{}: has no lines; expected the head of each word of a sentence in each, as in [2,0,2]", path.display())]
    Empty {
        /// Which file.
        path: PathBuf,
    },
}

fn read(file: impl BufRead, path: &Path, network: Network) -> Result<Arc<[Arc<Tree>]>, TreesError> {
    let mut trees = Vec::new();
    for (index, text) in file.lines().enumerate() {
        let (path, line) = (path.to_path_buf(), index + 1);
        let text = match text {
            Ok(text) => text,
            Err(source) => return Err(TreesError::Read { path, source }),
        };
        let heads: Vec<usize> = match serde_json::from_str(&text) {
            Ok(heads) => heads,
            Err(source) => return Err(TreesError::Line { path, line, source }),
        };
        let tree = match network {
            Network::Treelstm => Tree::phrases(&heads),
            _ => Tree::dependencies(&heads),
        };
        match tree {
            Ok(tree) => trees.push(Arc::new(tree)),
            Err(source) => return Err(TreesError::Heads { path, line, source }),
        }
    }
    match trees.is_empty() {
        true => Err(TreesError::Empty { path: path.into() }),
        false => Ok(trees.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree in brackets, a leaf being a dot; checks the numbering on the way.
    fn brackets(tree: &Tree) -> String {
        fn of(tree: &Tree, node: usize) -> String {
            let below = tree.children(node).iter();
            let below = below.map(|&child| {
                assert!((child as usize) < node, "{child} comes after {node}");
                of(tree, child as usize)
            });
            match below.collect::<String>() {
                below if below.is_empty() => ".".into(),
                below => format!("({below})"),
            }
        }
        of(tree, tree.len() - 1)
    }

    #[test]
    fn a_complete_tree_has_its_levels() {
        assert_eq!(brackets(&Tree::complete(1).unwrap()), ".");
        assert_eq!(brackets(&Tree::complete(4).unwrap()), "((..)(..))");
        // The paper's: 16 leaves, 31 nodes.
        assert_eq!(Tree::complete(16).unwrap().len(), 31);
        assert!(Tree::complete(0).is_err() && Tree::complete(12).is_err());
    }

    #[test]
    fn heads_become_dependencies_and_phrases() {
        // "the dog barks loudly today": the <- dog <- barks -> loudly, barks -> today.
        let heads = [2, 3, 0, 3, 3];
        assert_eq!(brackets(&Tree::dependencies(&heads).unwrap()), "((.)..)");
        // ((the dog) ((barks loudly) today))
        let phrases = Tree::phrases(&heads).unwrap();
        assert_eq!(brackets(&phrases), "((..)((..).))");
        let root = phrases.children(phrases.len() - 1);
        let the_dog = phrases.children(root[0] as usize);
        assert_eq!(the_dog, [0, 1], "leaves are numbered as the words are");
        // The farther dependant, the fifth word, joins last.
        assert_eq!(phrases.children(root[1] as usize)[1], 4);
        assert_eq!(brackets(&Tree::phrases(&[0]).unwrap()), ".");
    }

    #[test]
    fn every_word_is_in_the_tree_once() {
        // A long chain, each word under the next, and a wide one.
        let words = 5000;
        let chain: Vec<usize> = (2..=words).chain([0]).collect();
        let wide: Vec<usize> = [0]
            .into_iter()
            .chain(std::iter::repeat_n(1, words - 1))
            .collect();
        for heads in [chain, wide] {
            let (tree, phrases) = (
                Tree::dependencies(&heads).unwrap(),
                Tree::phrases(&heads).unwrap(),
            );
            assert_eq!((tree.len(), phrases.len()), (words, 2 * words - 1));
            for tree in [tree, phrases] {
                let mut seen: Vec<u32> = (0..tree.len())
                    .flat_map(|n| tree.children(n).to_vec())
                    .collect();
                seen.sort_unstable();
                assert!(
                    seen.into_iter().eq(0..tree.len() as u32 - 1),
                    "each but the root, once"
                );
            }
        }
    }

    #[test]
    fn what_is_no_tree_is_refused_with_its_line() {
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
            "line 2: expected the head of each word, as in [2,0,2]",
        );
        refused("[0]\n\n", "line 2: expected");
        refused("[-1]\n", "line 1: expected");
        refused("[0,3]\n", "line 1: word 2 has head 3; expected 0..=2");
        refused("[0]\n[0,0]\n", "line 2: 2 words have head 0; expected one");
        refused("[]\n", "line 1: 0 words have head 0");
        refused(
            "[0,3,2]\n",
            "line 1: the heads above word 2 lead in a circle",
        );
        refused("", "has no lines");
    }

    #[test]
    fn options_are_told_apart() {
        let parse = |text: &str| text.parse::<TreesOption>();
        assert_eq!(parse("complete:16"), Ok(TreesOption::Complete(16)));
        assert_eq!(
            parse("a/b.jsonl"),
            Ok(TreesOption::File("a/b.jsonl".into()))
        );
        assert_eq!(parse("a/b.jsonl").unwrap().to_string(), "b.jsonl");
        assert_eq!(parse("complete:16").unwrap().to_string(), "complete:16");
        assert!(parse("complete:6").is_err() && parse("complete:x").is_err());
    }

    #[test]
    fn a_network_gets_its_kind_of_tree() {
        let sizes = |network| {
            let trees = read("[2,0,2]\n[0]\n".as_bytes(), Path::new("t"), network).unwrap();
            trees.iter().map(|t| t.len()).collect::<Vec<_>>()
        };
        assert_eq!(sizes(Network::Treelstm), [5, 1]);
        assert_eq!(sizes(Network::TreeChildSum), [3, 1]);
    }
}
