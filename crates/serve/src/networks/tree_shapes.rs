//! The shapes of trees.

use std::str::FromStr;

use super::NetworkError;

/// A child of a node of a [`BinaryTree`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TreeChild {
    /// The index of a leaf, from 0.
    Leaf(usize),
    /// The index of an internal node, from 0.
    Node(usize),
}

/// A binary tree: leaves, and internal nodes of two children each.
///
/// ```
/// use gatestream_serve::networks::{BinaryTree, TreeChild::{Leaf, Node}};
/// // ((0 1) 2)
/// let tree = BinaryTree::new(3, vec![[Leaf(0), Leaf(1)], [Node(0), Leaf(2)]])?;
/// assert_eq!(tree, BinaryTree::complete(3)?);
/// # Ok::<(), gatestream_serve::networks::NetworkError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BinaryTree {
    leaves: usize,
    nodes: Vec<[TreeChild; 2]>,
}

impl BinaryTree {
    /// A tree of `leaves` leaves; `nodes[n]` are the left and the right child of internal node `n`:
    /// leaves, or nodes before it. The last node is the root.
    ///
    /// # Errors
    /// [`NetworkError::Empty`] without leaves, [`NetworkError::Child`], [`NetworkError::Roots`].
    pub fn new(leaves: usize, nodes: Vec<[TreeChild; 2]>) -> Result<BinaryTree, NetworkError> {
        if leaves == 0 {
            return Err(NetworkError::Empty { what: "leaf" });
        }
        if leaves > nodes.len() + 1 {
            let roots = leaves - nodes.len();
            return Err(NetworkError::Roots { roots });
        }
        let mut has_parent = [vec![false; leaves], vec![false; nodes.len()]];
        for (node, children) in nodes.iter().enumerate() {
            for &child in children {
                let (kind, at, is_there) = match child {
                    TreeChild::Leaf(leaf) => (0, leaf, leaf < leaves),
                    TreeChild::Node(before) => (1, before, before < node),
                };
                if !is_there || std::mem::replace(&mut has_parent[kind][at], true) {
                    let child = match child {
                        TreeChild::Leaf(leaf) => format!("leaf {leaf}"),
                        TreeChild::Node(node) => format!("node {node}"),
                    };
                    return Err(NetworkError::Child { node, child });
                }
            }
        }
        // With two children for each node and no child twice, too few leaves were refused above.
        Ok(BinaryTree { leaves, nodes })
    }

    /// The complete tree: neighbours are joined level by level; the last of an odd number moves up.
    ///
    /// # Errors
    /// [`NetworkError::Empty`] without leaves.
    pub fn complete(leaves: usize) -> Result<BinaryTree, NetworkError> {
        let mut level: Vec<TreeChild> = (0..leaves).map(TreeChild::Leaf).collect();
        let mut nodes = Vec::with_capacity(leaves.saturating_sub(1));
        while level.len() > 1 {
            let join = |pair: &[TreeChild]| match *pair {
                [left, right] => {
                    nodes.push([left, right]);
                    TreeChild::Node(nodes.len() - 1)
                }
                _ => pair[0],
            };
            level = level.chunks(2).map(join).collect();
        }
        BinaryTree::new(leaves, nodes)
    }

    /// A tree with a leaf for each word: a head is joined with its dependents to the right, the
    /// nearest first, and then with those to the left. If no two dependences cross, the leaves keep
    /// the order of the words.
    pub fn of_dependencies(words: &Dependencies) -> BinaryTree {
        let mut nodes = Vec::with_capacity(words.len() - 1);
        let mut of_word: Vec<TreeChild> = (0..words.len()).map(TreeChild::Leaf).collect();
        for &word in words.bottom_up() {
            let children = words.children(word);
            let (left, right) = children.split_at(children.partition_point(|child| *child < word));
            let mut join = |pair: [TreeChild; 2]| {
                nodes.push(pair);
                TreeChild::Node(nodes.len() - 1)
            };
            for &child in right {
                of_word[word] = join([of_word[word], of_word[child]]);
            }
            for &child in left.iter().rev() {
                of_word[word] = join([of_word[child], of_word[word]]);
            }
        }
        BinaryTree {
            leaves: words.len(),
            nodes,
        }
    }

    /// Number of leaves.
    pub fn leaves(&self) -> usize {
        self.leaves
    }

    /// The left and right children of the internal nodes. Each node follows its children; the root
    /// is last.
    pub fn nodes(&self) -> &[[TreeChild; 2]] {
        &self.nodes
    }
}

/// A dependency tree: each word except the root has a head.
///
/// ```
/// use gatestream_serve::networks::Dependencies;
/// // The second of three words is the root.
/// let words: Dependencies = "[2,0,2]".parse()?;
/// assert_eq!(words.children(1), [0, 2]);
/// assert_eq!(words, Dependencies::new(&[2, 0, 2])?);
/// # Ok::<(), gatestream_serve::networks::NetworkError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dependencies {
    /// All words except the root, ordered by their heads, then by their indices.
    children: Vec<usize>,
    /// Index of the first child of each head; one more entry for the end.
    first_child: Vec<usize>,
    bottom_up: Vec<usize>,
}

impl Dependencies {
    /// The tree in which word `w`, from 1, has head `heads[w - 1]`; that of the root is 0 (as in
    /// CoNLL-U files).
    ///
    /// # Errors
    /// [`NetworkError::Empty`], [`NetworkError::Head`], [`NetworkError::Roots`],
    /// [`NetworkError::Cycle`].
    pub fn new(heads: &[usize]) -> Result<Dependencies, NetworkError> {
        let words = heads.len();
        if words == 0 {
            return Err(NetworkError::Empty { what: "word" });
        }
        let wrong = |(at, head): (usize, &usize)| *head > words || *head == at + 1;
        if let Some(at) = heads.iter().enumerate().position(wrong) {
            let (word, head) = (at + 1, heads[at]);
            return Err(NetworkError::Head { word, head, words });
        }
        let roots = heads.iter().filter(|head| **head == 0).count();
        if roots != 1 {
            return Err(NetworkError::Roots { roots });
        }
        let mut first_child = vec![0; words + 1];
        for &head in heads.iter().filter(|head| **head > 0) {
            first_child[head] += 1;
        }
        for word in 0..words {
            first_child[word + 1] += first_child[word];
        }
        let mut children: Vec<usize> = (0..words).filter(|word| heads[*word] > 0).collect();
        children.sort_by_key(|word| heads[*word]);
        let mut tree = Dependencies {
            children,
            first_child,
            bottom_up: Vec::with_capacity(words),
        };
        // From the root down, the last children first; then reversed.
        let root = heads.iter().position(|head| *head == 0);
        let mut left: Vec<usize> = root.into_iter().collect();
        while let Some(word) = left.pop() {
            tree.bottom_up.push(word);
            left.extend_from_slice(tree.children(word));
        }
        tree.bottom_up.reverse();
        if tree.bottom_up.len() < words {
            return Err(NetworkError::Cycle {
                word: cycle(heads, &tree.bottom_up) + 1,
            });
        }
        Ok(tree)
    }

    /// Number of words.
    pub fn len(&self) -> usize {
        self.bottom_up.len()
    }

    /// Always false: a tree has a root.
    pub fn is_empty(&self) -> bool {
        self.bottom_up.is_empty()
    }

    /// The dependents of `word`, in order; indices from 0.
    ///
    /// # Panics
    /// If the word does not exist.
    pub fn children(&self, word: usize) -> &[usize] {
        &self.children[self.first_child[word]..self.first_child[word + 1]]
    }

    /// The indices of all words, from 0, each after its children.
    pub fn bottom_up(&self) -> &[usize] {
        &self.bottom_up
    }
}

/// A word of a cycle: the heads of any word that the root does not reach lead into one.
fn cycle(heads: &[usize], reached: &[usize]) -> usize {
    let mut seen = vec![false; heads.len()];
    for &word in reached {
        seen[word] = true;
    }
    let mut word = seen.iter().position(|seen| !seen).unwrap_or(0);
    while !std::mem::replace(&mut seen[word], true) {
        word = heads[word] - 1;
    }
    word
}

impl FromStr for Dependencies {
    type Err = NetworkError;

    /// Reads a line such as `[2,0,2]`.
    fn from_str(text: &str) -> Result<Dependencies, NetworkError> {
        let not_heads = || {
            let text = text.chars().take(40).collect();
            NetworkError::InvalidHeads { text }
        };
        let list = text
            .trim()
            .strip_prefix('[')
            .and_then(|t| t.strip_suffix(']'));
        let list = list.ok_or_else(not_heads)?.trim();
        let heads: Result<Vec<usize>, _> = match list {
            "" => Ok(Vec::new()),
            list => list.split(',').map(|head| head.trim().parse()).collect(),
        };
        Dependencies::new(&heads.map_err(|_| not_heads())?)
    }
}
