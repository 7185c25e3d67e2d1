use std::ops::ControlFlow;
use std::time::Duration;

use super::super::TreeChild::{self, Leaf, Node};
use super::super::{
    BinaryTree, BinaryTreeLstm, BinaryTreeWeights, ChildSumTreeLstm, ChildSumWeights, Dependencies,
    NetworkError, Outputs,
};
use super::{Request, alone, bits, random, together};
use crate::cell_graph::{Cells, WorkerEnv};
use gatestream::execute::team::{SharedTeam, Team};
use gatestream::kernels::Numbers;
use gatestream::model::{Activation, Matrix, Precision, TreeWeights};
use gatestream::reference::{TINY_STATE, activate, quantize};
use gatestream::tune;

/// `z + row · values`, of any precision.
fn chain(z: f32, matrix: &Matrix, row: usize, values: &[f32]) -> f32 {
    if let Numbers::Int8 { whole, scales } = matrix.row_numbers(row) {
        let (q, scale) = quantize(values);
        let terms = q.iter().zip(whole);
        let sum: i64 = terms.map(|(q, w)| q * i64::from(*w)).sum();
        return (sum as f32).mul_add(scale * scales[0], z);
    }
    let weights = matrix.row(row);
    let terms = values.iter().zip(weights.iter());
    terms.fold(z, |z, (value, weight)| value.mul_add(*weight, z))
}

fn sigmoid(z: f32) -> f32 {
    activate(Activation::Sigmoid, z)
}

fn tanh(z: f32) -> f32 {
    activate(Activation::Tanh, z)
}

fn flush(state: f32) -> f32 {
    if state.abs() < TINY_STATE { 0.0 } else { state }
}

/// `h` and `c`.
type State = (Vec<f32>, Vec<f32>);

fn finish(o: f32, c: f32) -> (f32, f32) {
    let c = flush(c);
    (flush(sigmoid(o) * tanh(c)), c)
}

fn leaf(w: &BinaryTreeWeights, x: &[f32]) -> State {
    let hidden = w.hidden();
    let unit = |j: usize| {
        let [i, o, u] = [0, 1, 2].map(|g| {
            let row = g * hidden + j;
            chain(w.leaf_bias[row], &w.leaf, row, x)
        });
        finish(o, sigmoid(i) * tanh(u))
    };
    (0..hidden).map(unit).unzip()
}

fn internal(w: &BinaryTreeWeights, left: &State, right: &State) -> State {
    let hidden = w.hidden();
    let unit = |j: usize| {
        let [i, o, u, fl, fr] = [0, 1, 2, 3, 4].map(|g| {
            let row = g * hidden + j;
            let z = chain(w.bias[row], &w.left, row, &left.0);
            chain(z, &w.right, row, &right.0)
        });
        let c = sigmoid(fl).mul_add(left.1[j], sigmoid(i) * tanh(u));
        finish(o, sigmoid(fr).mul_add(right.1[j], c))
    };
    (0..hidden).map(unit).unzip()
}

/// States of all leaves, and then of all nodes.
fn binary(w: &BinaryTreeWeights, tree: &BinaryTree, xs: &[f32]) -> Vec<State> {
    let mut states: Vec<State> = xs.chunks(w.input()).map(|x| leaf(w, x)).collect();
    let at = |child: TreeChild| match child {
        Leaf(leaf) => leaf,
        Node(node) => tree.leaves() + node,
    };
    for &[left, right] in tree.nodes() {
        states.push(internal(w, &states[at(left)], &states[at(right)]));
    }
    states
}

/// The state of a word, from its heads alone.
fn child_sum(w: &ChildSumWeights, heads: &[usize], xs: &[f32], word: usize) -> State {
    let (input, hidden) = (w.input(), w.hidden());
    let x = &xs[word * input..][..input];
    let (mut s, mut t) = (vec![0.0f32; hidden], vec![0.0f32; hidden]);
    for child in (0..heads.len()).filter(|child| heads[*child] == word + 1) {
        let (h, c) = child_sum(w, heads, xs, child);
        for j in 0..hidden {
            let f = chain(w.forget_bias[j], &w.forget_input, j, x);
            let f = sigmoid(chain(f, &w.forget_state, j, &h));
            s[j] += h[j];
            t[j] = f.mul_add(c[j], t[j]);
        }
    }
    let unit = |j: usize| {
        let [i, o, u] = [0, 1, 2].map(|g| {
            let row = g * hidden + j;
            chain(chain(w.bias[row], &w.input, row, x), &w.sum, row, &s)
        });
        finish(o, sigmoid(i).mul_add(tanh(u), t[j]))
    };
    (0..hidden).map(unit).unzip()
}

/// A tree of random shape: two random ones of those left are joined, until one is left.
fn random_tree(rng: &mut fastrand::Rng) -> BinaryTree {
    let leaves = 1 + rng.usize(..9);
    let mut left: Vec<TreeChild> = (0..leaves).map(Leaf).collect();
    let mut nodes = Vec::new();
    while left.len() > 1 {
        rng.shuffle(&mut left);
        let pair = [left.pop().unwrap(), left.pop().unwrap()];
        left.push(Node(nodes.len()));
        nodes.push(pair);
    }
    BinaryTree::new(leaves, nodes).unwrap()
}

/// Every word hangs on one that was there before it, in random order.
fn random_heads(rng: &mut fastrand::Rng) -> Vec<usize> {
    let words = 1 + rng.usize(..9);
    let mut order: Vec<usize> = (0..words).collect();
    rng.shuffle(&mut order);
    let mut heads = vec![0; words];
    for at in 1..words {
        heads[order[at]] = order[rng.usize(..at)] + 1;
    }
    heads
}

const SIZES: [(usize, usize); 6] = [(1, 1), (3, 7), (5, 16), (16, 17), (9, 40), (20, 64)];

fn requests(graphs: &[crate::cell_graph::Graph]) -> Vec<Request> {
    graphs.iter().map(|graph| (graph.clone(), None)).collect()
}

#[test]
fn binary_trees_alone_or_in_any_batches_are_those_of_plain_loops() {
    let mut rng = fastrand::Rng::with_seed(1);
    for (index, (input, hidden)) in SIZES.into_iter().enumerate() {
        let mut weights = BinaryTreeWeights::random(input, hidden, index as u64).unwrap();
        let precision = Precision::ALL[index % 3];
        for matrix in [&mut weights.leaf, &mut weights.left, &mut weights.right] {
            *matrix = matrix.in_precision(precision).unwrap();
        }
        let mut cells = Cells::new();
        let network = BinaryTreeLstm::add(&mut cells, weights.clone()).unwrap();
        let (mut graphs, mut expected) = (Vec::new(), Vec::new());
        for _ in 0..8 {
            let tree = random_tree(&mut rng);
            let xs = random(&mut rng, tree.leaves() * input);
            let states = binary(&weights, &tree, &xs);
            graphs.push(network.unfold(&tree, &xs, Outputs::Last).unwrap());
            expected.push(states.last().unwrap().0.clone());
            graphs.push(network.unfold(&tree, &xs, Outputs::Each).unwrap());
            expected.push(states.into_iter().flat_map(|(h, _)| h).collect());
        }
        for answers in [
            alone(&cells, requests(&graphs)),
            together(&cells, requests(&graphs), &mut rng),
            together(&cells, requests(&graphs), &mut rng),
        ] {
            for (answer, expected) in answers.into_iter().zip(&expected) {
                assert_eq!(bits(&answer.unwrap()), bits(expected), "{input}, {hidden}");
            }
        }
    }
}

#[test]
fn child_sum_trees_alone_or_in_any_batches_are_those_of_plain_loops() {
    let mut rng = fastrand::Rng::with_seed(2);
    for (index, (input, hidden)) in SIZES.into_iter().enumerate() {
        let mut weights = ChildSumWeights::random(input, hidden, index as u64).unwrap();
        let precision = Precision::ALL[index % 3];
        let w = &mut weights;
        for matrix in [
            &mut w.input,
            &mut w.sum,
            &mut w.forget_input,
            &mut w.forget_state,
        ] {
            *matrix = matrix.in_precision(precision).unwrap();
        }
        let mut cells = Cells::new();
        let network = ChildSumTreeLstm::add(&mut cells, weights.clone()).unwrap();
        let (mut graphs, mut expected) = (Vec::new(), Vec::new());
        for _ in 0..8 {
            let heads = random_heads(&mut rng);
            let tree = Dependencies::new(&heads).unwrap();
            let xs = random(&mut rng, heads.len() * input);
            let word = |word| child_sum(&weights, &heads, &xs, word).0;
            let root = heads.iter().position(|head| *head == 0).unwrap();
            graphs.push(network.unfold(&tree, &xs, Outputs::Last).unwrap());
            expected.push(word(root));
            graphs.push(network.unfold(&tree, &xs, Outputs::Each).unwrap());
            expected.push((0..heads.len()).flat_map(word).collect());
        }
        for answers in [
            alone(&cells, requests(&graphs)),
            together(&cells, requests(&graphs), &mut rng),
            together(&cells, requests(&graphs), &mut rng),
        ] {
            for (answer, expected) in answers.into_iter().zip(&expected) {
                assert_eq!(bits(&answer.unwrap()), bits(expected), "{input}, {hidden}");
            }
        }
    }
}

/// Leaves of a subtree, left to right.
fn leaves_of(tree: &BinaryTree, child: TreeChild) -> Vec<usize> {
    match child {
        Leaf(leaf) => vec![leaf],
        Node(node) => {
            let children = tree.nodes()[node];
            children
                .iter()
                .flat_map(|child| leaves_of(tree, *child))
                .collect()
        }
    }
}

#[test]
fn complete_trees_are_as_low_as_can_be() {
    let height = |tree: &BinaryTree| {
        let mut heights: Vec<u32> = Vec::new();
        for children in tree.nodes() {
            let of = children.map(|child| match child {
                Leaf(_) => 0,
                Node(node) => heights[node],
            });
            heights.push(1 + of[0].max(of[1]));
        }
        heights.last().copied().unwrap_or(0)
    };
    for leaves in 1usize..40 {
        let tree = BinaryTree::complete(leaves).unwrap();
        assert_eq!(tree.nodes().len(), leaves - 1);
        assert_eq!(height(&tree), leaves.next_power_of_two().ilog2());
        let root = match leaves {
            1 => Leaf(0),
            _ => Node(leaves - 2),
        };
        assert!(leaves_of(&tree, root).into_iter().eq(0..leaves));
    }
}

#[test]
fn a_head_is_joined_with_its_right_words_and_then_with_its_left_ones() {
    // the(2) cat(3) sat(0) on(6) the(6) mat(3), counted from 1
    let words: Dependencies = " [2, 3,0,6,6,3]\n".parse().unwrap();
    assert_eq!((words.len(), words.children(2)), (6, &[1, 5][..]));
    let tree = BinaryTree::of_dependencies(&words);
    assert_eq!(tree, BinaryTree::new(6, tree.nodes().to_vec()).unwrap());
    assert!(leaves_of(&tree, Node(4)).into_iter().eq(0..6));
    let subtrees: Vec<_> = (0..5).map(|node| leaves_of(&tree, Node(node))).collect();
    for expected in [
        vec![0, 1],
        vec![4, 5],
        vec![3, 4, 5],
        vec![2, 3, 4, 5],
        vec![0, 1, 2, 3, 4, 5],
    ] {
        assert!(subtrees.contains(&expected), "{expected:?}");
    }
    // Any others, crossing or not, make a tree too.
    let mut rng = fastrand::Rng::with_seed(3);
    for _ in 0..50 {
        let words = Dependencies::new(&random_heads(&mut rng)).unwrap();
        let tree = BinaryTree::of_dependencies(&words);
        assert_eq!(
            Ok(&tree),
            BinaryTree::new(words.len(), tree.nodes().to_vec()).as_ref()
        );
    }
}

#[test]
fn a_deep_tree_needs_no_deep_stack() {
    let words = 100_000;
    let heads: Vec<usize> = (0..words).collect();
    let tree = Dependencies::new(&heads).unwrap();
    assert!(tree.bottom_up().iter().copied().eq((0..words).rev()));
    assert_eq!(BinaryTree::of_dependencies(&tree).nodes().len(), words - 1);
}

#[test]
fn what_is_no_tree_is_refused() {
    let binary = |leaves, nodes: &[[TreeChild; 2]]| BinaryTree::new(leaves, nodes.to_vec()).err();
    let child = |node, child: &str| {
        let child = child.into();
        Some(NetworkError::Child { node, child })
    };
    assert_eq!(binary(0, &[]), Some(NetworkError::Empty { what: "leaf" }));
    assert_eq!(binary(2, &[]), Some(NetworkError::Roots { roots: 2 }));
    assert_eq!(
        binary(usize::MAX, &[[Leaf(0), Leaf(1)]]).map(|e| e.to_string().lines().count()),
        Some(1)
    );
    assert_eq!(binary(2, &[[Leaf(0), Leaf(0)]]), child(0, "leaf 0"));
    assert_eq!(binary(2, &[[Leaf(0), Leaf(2)]]), child(0, "leaf 2"));
    assert_eq!(binary(2, &[[Leaf(0), Node(0)]]), child(0, "node 0"));
    let twice = [[Leaf(0), Leaf(1)], [Node(0), Node(0)]];
    assert_eq!(binary(3, &twice), child(1, "node 0"));
    let heads = |heads: &[usize]| Dependencies::new(heads).err();
    assert_eq!(heads(&[]), Some(NetworkError::Empty { what: "word" }));
    assert_eq!(heads(&[0, 0]), Some(NetworkError::Roots { roots: 2 }));
    assert_eq!(heads(&[2, 1]), Some(NetworkError::Roots { roots: 0 }));
    let head = |word, head, words| Some(NetworkError::Head { word, head, words });
    assert_eq!(heads(&[0, 3]), head(2, 3, 2));
    assert_eq!(heads(&[0, 2]), head(2, 2, 2));
    // The second hangs on the circle of the third and the fourth.
    let circle = heads(&[0, 3, 4, 3]);
    let of = |word| Some(NetworkError::Cycle { word });
    assert!(circle == of(3) || circle == of(4), "{circle:?}");
    for text in ["", "2,0", "[1,-1]", "[0;1]", "[0,]"] {
        let error = text.parse::<Dependencies>().unwrap_err();
        assert!(matches!(error, NetworkError::InvalidHeads { .. }), "{text}");
    }
    assert_eq!("[]".parse::<Dependencies>().err(), heads(&[]));
}

#[test]
fn weights_and_words_that_do_not_fit_are_refused() {
    let wrong = |name, expected, cols, found| {
        Some(NetworkError::Weights {
            name,
            expected,
            cols,
            found,
        })
    };
    let matrix = |rows, cols| Matrix::new(rows, cols, vec![0.0; rows * cols]).unwrap();
    let good = BinaryTreeWeights::random(3, 4, 1).unwrap();
    let add = |change: &dyn Fn(&mut BinaryTreeWeights)| {
        let mut weights = good.clone();
        change(&mut weights);
        BinaryTreeLstm::add(&mut Cells::new(), weights).err()
    };
    assert_eq!(add(&|w| w.leaf = matrix(8, 3)), wrong("leaf", 36, 3, 24));
    assert_eq!(
        add(&|w| w.right = matrix(20, 5)),
        wrong("right", 80, 4, 100)
    );
    assert_eq!(
        add(&|w| w.leaf_bias.truncate(5)),
        wrong("leaf_bias", 12, 1, 5)
    );
    assert_eq!(add(&|w| w.bias.push(0.0)), wrong("bias", 20, 1, 21));
    assert_eq!(add(&|w| w.left = matrix(0, 0)), wrong("left", 1, 1, 0));
    let good = ChildSumWeights::random(3, 4, 1).unwrap();
    let add = |change: &dyn Fn(&mut ChildSumWeights)| {
        let mut weights = good.clone();
        change(&mut weights);
        ChildSumTreeLstm::add(&mut Cells::new(), weights).err()
    };
    assert_eq!(add(&|w| w.input = matrix(9, 3)), wrong("input", 36, 3, 27));
    let wider = wrong("forget_input", 12, 3, 16);
    assert_eq!(add(&|w| w.forget_input = matrix(4, 4)), wider);
    assert_eq!(
        add(&|w| w.forget_state = matrix(3, 4)),
        wrong("forget_state", 16, 4, 12)
    );
    assert_eq!(
        add(&|w| w.forget_bias.clear()),
        wrong("forget_bias", 4, 1, 0)
    );

    let mut cells = Cells::new();
    let network = ChildSumTreeLstm::add(&mut cells, good.clone()).unwrap();
    let tree = Dependencies::new(&[0, 1]).unwrap();
    let refused = |xs| network.unfold(&tree, xs, Outputs::Last).err();
    let values = |expected, found| {
        let name = "xs";
        Some(NetworkError::Values {
            name,
            expected,
            found,
        })
    };
    assert_eq!(refused(&[0.0; 9]), values(2, 3));
    let rows = NetworkError::Rows {
        name: "xs",
        width: 3,
        found: 5,
    };
    assert_eq!(refused(&[0.0; 5]), Some(rows));
    let weights = BinaryTreeWeights::random(3, 4, 1).unwrap();
    let network = BinaryTreeLstm::add(&mut cells, weights).unwrap();
    let tree = BinaryTree::complete(2).unwrap();
    let refused = network.unfold(&tree, &[0.0; 9], Outputs::Last).err();
    assert_eq!(refused, values(6, 9));
}

#[test]
fn sizes_beyond_all_memory_are_refused() {
    let half = usize::MAX / 2;
    // The last: the leaves' weights alone may have room, those of all do not.
    let sizes = [
        (half, half),
        (half, 1),
        (half, 3),
        (0, half),
        (1, half),
        (1, usize::MAX / 5),
        (1, usize::MAX),
        (usize::MAX, 1),
        (1, 1 << 31),
    ];
    for (input, hidden) in sizes {
        for error in [
            BinaryTreeWeights::random(input, hidden, 1).err(),
            ChildSumWeights::random(input, hidden, 1).err(),
        ] {
            let is_typed = |error| matches!(error, Some(NetworkError::Weights { found: 0, .. }));
            assert!(is_typed(error), "{input} features, {hidden} states");
        }
    }
    // Without rows a matrix may have any number of columns, which say how many states there are.
    let none = Matrix::new(0, half, Vec::new()).unwrap();
    let wrong = |name| {
        Some(NetworkError::Weights {
            name,
            expected: usize::MAX,
            cols: half,
            found: 0,
        })
    };
    let mut weights = BinaryTreeWeights::random(3, 4, 1).unwrap();
    weights.left = none.clone();
    let error = BinaryTreeLstm::add(&mut Cells::new(), weights).err();
    assert_eq!(error, wrong("left"));
    let mut weights = ChildSumWeights::random(3, 4, 1).unwrap();
    weights.sum = none;
    let error = ChildSumTreeLstm::add(&mut Cells::new(), weights).err();
    assert_eq!(error, wrong("sum"));
}

#[test]
fn tuned_plans_of_trees_keep_the_bits_and_are_used() {
    let mut rng = fastrand::Rng::with_seed(7);
    let weights = BinaryTreeWeights::random(3, 40, 1).unwrap();
    let options = tune::Options::new(vec![(1, 1), (4, 1)], 1, Duration::from_millis(20));
    let tuned = |weights: &TreeWeights<'_>| {
        let tuned = tune::tune_tree(weights, &options, |_| ControlFlow::Continue(()));
        tuned.unwrap().plan
    };
    let [leaf, node] =
        [weights.leaf_weights(), weights.node_weights()].map(|weights| tuned(&weights.unwrap()));
    let sums = ChildSumWeights::random(3, 40, 2).unwrap();
    let [child, sum_node] =
        [sums.child_weights(), sums.node_weights()].map(|weights| tuned(&weights.unwrap()));

    // A plan of another cell.
    let mut cells = Cells::new();
    let refused =
        BinaryTreeLstm::add_with_plans(&mut cells, weights.clone(), Some(child.clone()), None);
    assert!(matches!(refused, Err(NetworkError::Plan(_))), "{refused:?}");
    let refused =
        ChildSumTreeLstm::add_with_plans(&mut cells, sums.clone(), None, Some(node.clone()));
    assert!(matches!(refused, Err(NetworkError::Plan(_))), "{refused:?}");
    assert!(cells.is_empty());

    // The plan decides: this one needs two threads.
    let mut wide = node.clone();
    let measured = (wide.entries.iter()).filter(|entry| entry.measured.is_some());
    let measured = measured.count();
    for entry in &mut wide.entries {
        let configuration = &mut entry.configuration;
        configuration.threads = 2;
        let partition = &mut configuration.layers[0].directions[0].partition;
        (partition.units, partition.projected) = (vec![0..16, 16..40], vec![0..0, 0..0]);
    }
    let network = BinaryTreeLstm::add_with_plans(&mut cells, weights.clone(), None, Some(wide));
    let cell = cells.get(network.unwrap().internal()).unwrap();
    assert_eq!(cell.cost().times.len(), measured);
    let env =
        |threads| WorkerEnv::one_step(SharedTeam::new(Team::with_threads(threads).unwrap()), 9);
    assert!(cell.prepare(&env(1)).is_err());
    assert!(cell.prepare(&env(2)).is_ok());

    let tree = BinaryTree::complete(11).unwrap();
    let words: Dependencies = "[2,0,2,3,3,5,5,5,2,9,9]".parse().unwrap();
    let xs = random(&mut rng, 11 * 3);
    let plans = [Some(leaf), Some(node), Some(child), Some(sum_node)];
    let answers = [[None, None, None, None], plans].map(|[leaf, node, child, sum_node]| {
        let mut cells = Cells::new();
        let binary = BinaryTreeLstm::add_with_plans(&mut cells, weights.clone(), leaf, node);
        let graph = binary.unwrap().unfold(&tree, &xs, Outputs::Each).unwrap();
        let sums = ChildSumTreeLstm::add_with_plans(&mut cells, sums.clone(), child, sum_node);
        let other = sums.unwrap().unfold(&words, &xs, Outputs::Each).unwrap();
        let answers = together(&cells, vec![(graph, None), (other, None)], &mut rng);
        let answers = answers.into_iter().flat_map(|answer| answer.unwrap());
        bits(&answers.collect::<Vec<_>>())
    });
    assert_eq!(answers[0].len(), (11 + 10 + 11) * 40);
    assert_eq!(answers[0], answers[1]);
}
