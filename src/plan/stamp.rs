//! What a plan is for: the shape of the model and the machine, as lines of text that either are the
//! same or are not.

use crate::machine::{Bytes, Topology};
use crate::model::{Cell, Direction, Layer, Merge, Model, Precision, ResetForm};
use gatestream_kernels::{Isa, IsaError};

/// The version of the kernels that plans are measured with.
///
/// Raise it with a change after which a plan that was measured before may no longer be a good
/// choice: other tiles or panels, a kernel that is faster for some schedules or shapes and not for
/// others, another way of waiting. Do not raise it for a change that leaves the ranking of plans as
/// it was: every plan file has to be tuned again.
pub const KERNEL_SET: u32 = 5;

/// The machine that a plan was made on, as far as it decides which plan is the fastest.
///
/// A plan file is used only where every field is the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The version of the kernels: [`KERNEL_SET`].
    pub kernels: u32,
    /// The processor's own name for itself.
    pub cpu: String,
    /// The instruction set in use.
    pub isa: Isa,
    /// Cores that a team can have, within the container's quota ([`Topology::team_size`]).
    pub cores: usize,
    /// Most logical CPUs of a core.
    pub smt: usize,
    /// Memory nodes.
    pub numa_nodes: usize,
    /// Bytes of the data caches that no other core shares, from the nearest. Of several kinds of
    /// core: of that which a team starts with.
    pub private_caches: Vec<usize>,
    /// Bytes of the largest cache that cores share; 0 where there is none.
    pub shared_cache: usize,
}

impl Stamp {
    /// The machine this process runs on, and the instruction set that kernels will use on it.
    ///
    /// Call it before pinning the thread, as [`Topology::detect`].
    ///
    /// # Errors
    /// [`IsaError`] if `GATESTREAM_ISA` names an instruction set that is unknown or absent.
    pub fn detect() -> Result<Stamp, IsaError> {
        Ok(Stamp::of(&Topology::detect(), Isa::select()?))
    }

    /// The stamp of this machine and instruction set.
    pub fn of(topology: &Topology, isa: Isa) -> Stamp {
        let first = topology.cpus_for_team(1);
        let mut cores = topology.cores.iter();
        let first = cores.find(|core| first.iter().all(|cpu| core.cpus.contains(cpu)));
        let caches = || {
            first
                .into_iter()
                .flat_map(|core| topology.data_caches(core))
        };
        let private = caches().filter(|cache| cache.sharing_cores == 1);
        let shared = caches().filter(|cache| cache.sharing_cores > 1);
        Stamp {
            kernels: KERNEL_SET,
            cpu: topology.cpu_model.clone(),
            isa,
            cores: topology.team_size(),
            smt: topology
                .cores
                .iter()
                .map(|c| c.cpus.len())
                .max()
                .unwrap_or(1),
            numa_nodes: topology.numa_nodes.len(),
            private_caches: private.map(|cache| cache.bytes).collect(),
            shared_cache: shared.map(|cache| cache.bytes).max().unwrap_or(0),
        }
    }

    /// Most workers that a plan for this machine may have: one per logical CPU.
    pub fn most_threads(&self) -> usize {
        self.cores.saturating_mul(self.smt)
    }

    /// Everything but the kernels' version, each with its name, in the order of the file.
    pub(super) fn fields(&self) -> [(&'static str, String); 7] {
        let private = self.private_caches.iter();
        let private: Vec<_> = private.map(|&bytes| Bytes(bytes).to_string()).collect();
        [
            ("cpu", escaped(&self.cpu)),
            ("isa", self.isa.to_string()),
            ("cores", self.cores.to_string()),
            ("smt", self.smt.to_string()),
            ("numa_nodes", self.numa_nodes.to_string()),
            ("private_caches", private.join(", ")),
            ("shared_cache", Bytes(self.shared_cache).to_string()),
        ]
    }
}

/// What a field of the stamp says, for a sentence.
pub(super) fn in_words(field: &str) -> &str {
    match field {
        "cpu" => "the processor",
        "isa" => "the instruction set",
        "cores" => "the number of cores",
        "smt" => "the number of threads per core",
        "numa_nodes" => "the number of memory nodes",
        "private_caches" => "the size of a core's own caches",
        "shared_cache" => "the size of the shared cache",
        other => other,
    }
}

/// What a plan means depends on: the lines of the file that say which model it is for.
///
/// Weights, activations and clipping change neither who can own what nor what can be executed when,
/// and next to nothing of the time, so retrained weights keep their plan.
pub(super) fn identity(model: &Model) -> Vec<String> {
    let layers = model.layers().iter().enumerate();
    let mut lines = vec![
        format!("precision {}", precision(model)),
        format!("layers {}", model.layers().len()),
    ];
    lines.extend(layers.map(|(index, layer)| format!("layer {index}: {}", describe(layer))));
    let mut sum = Sum::default();
    lines.iter().for_each(|line| sum.line(line));
    lines.insert(0, format!("model {sum:016x}"));
    lines
}

/// One name where all weights have the same precision, else those of every matrix.
fn precision(model: &Model) -> String {
    if let Some(precision) = model.precision() {
        return precision.to_string();
    }
    let layers = model.layers().iter().map(|layer| {
        let directions = layer.directions().iter().map(|direction| {
            let all = direction.weights().precisions().into_iter().flatten();
            let all: Vec<_> = all.map(Precision::name).collect();
            all.join("/")
        });
        directions.collect::<Vec<_>>().join(" + ")
    });
    layers.collect::<Vec<_>>().join(", ")
}

fn describe(layer: &Layer) -> String {
    let directions: Vec<_> = layer.directions().iter().map(describe_direction).collect();
    let merge = match (directions.len(), layer.merge()) {
        (1, _) => "",
        (_, Merge::Concat) => ", concatenated",
        (_, Merge::Sum) => ", summed",
    };
    directions.join(" + ") + merge
}

fn describe_direction(direction: &Direction) -> String {
    let way = if direction.is_reverse() {
        "reverse"
    } else {
        "forward"
    };
    let mut text = format!(
        "{way} {} input {} hidden {}",
        direction.cell().kind(),
        direction.input_size(),
        direction.hidden_size()
    );
    if let Cell::Gru { reset, .. } = direction.cell() {
        text += match reset {
            ResetForm::Before => " reset before",
            ResetForm::After => " reset after",
        };
    }
    if direction.weights().projection.is_some() {
        text += &format!(" projection {}", direction.output_size());
    }
    if direction.weights().peepholes.is_some() {
        text += " peepholes";
    }
    text
}

/// The text in one line: backslashes and control characters as `\u{…}`.
pub(super) fn escaped(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if c == '\\' || c.is_control() {
            line.extend(c.escape_unicode())
        } else {
            line.push(c)
        }
    }
    line
}

/// A sum over lines: FNV-1a, 64 bits (Fowler, Noll and Vo; offset and prime from RFC 9923). It
/// finds accidents, not intent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sum(u64);

impl Default for Sum {
    fn default() -> Sum {
        Sum(0xcbf2_9ce4_8422_2325)
    }
}

impl Sum {
    /// Adds a line without its end.
    pub fn line(&mut self, line: &str) {
        for byte in line.bytes().chain([b'\n']) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

impl std::fmt::LowerHex for Sum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::LowerHex::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Gru, Lstm, Rnn};

    /// The sum of "foobar" as published by its authors, before the end of the line is added.
    #[test]
    fn the_sum_is_fnv_1a() {
        let mut sum = Sum::default();
        sum.line("foobar");
        let published: u64 = 0x8594_4171_f739_67e8;
        let expected = (published ^ 10).wrapping_mul(0x0100_0000_01b3);
        assert_eq!(sum, Sum(expected));
    }

    #[test]
    fn every_part_of_a_shape_is_told_apart() {
        let gru = |reset| Gru::new(8, 16).reset(reset);
        let two = Lstm::new(8, 16).layers(2).random(1).unwrap();
        let models = [
            Lstm::new(8, 16).random(1),
            Lstm::new(9, 16).random(1),
            Lstm::new(8, 17).random(1),
            Lstm::new(8, 16).layers(2).random(1),
            Lstm::new(8, 16).projection(5).random(1),
            Lstm::new(8, 16).projection(6).random(1),
            Lstm::new(8, 16).bidirectional(Merge::Concat).random(1),
            Lstm::new(8, 16).bidirectional(Merge::Sum).random(1),
            gru(ResetForm::Before).random(1),
            gru(ResetForm::After).random(1),
            Rnn::new(8, 16).random(1),
            Rnn::new(8, 16)
                .random(1)
                .unwrap()
                .in_precision(Precision::Bf16),
            Rnn::new(8, 16)
                .random(1)
                .unwrap()
                .in_precision(Precision::Int8),
            two.in_precisions(&[Precision::Bf16, Precision::Int8]),
            two.in_precisions(&[Precision::Int8, Precision::Bf16]),
        ];
        let mut seen = std::collections::BTreeSet::new();
        for model in models {
            let lines = identity(&model.unwrap());
            assert!(seen.insert(lines[0].clone()), "{lines:?}");
            assert!(seen.insert(lines[1..].join("\n")), "{lines:?}");
        }
        let retrained = Lstm::new(8, 16).random(2).unwrap();
        assert!(seen.contains(&identity(&retrained)[0]));
    }

    #[test]
    fn a_stamp_is_read_from_the_topology() {
        let mut topology = Topology::count_only(&[0, 1, 2], "test".into());
        let stamp = Stamp::of(&topology, Isa::Portable);
        assert_eq!((stamp.cores, stamp.smt, stamp.numa_nodes), (3, 1, 1));
        assert_eq!(stamp.private_caches, [32 << 10, 256 << 10]);
        assert_eq!((stamp.shared_cache, stamp.most_threads()), (0, 3));
        topology.caches.retain(|cache| cache.cpus == [1]);
        topology.caches[1].sharing_cores = 4;
        topology.cores.retain(|core| core.cpus == [1]);
        topology.cores[0].cpus.push(2);
        let stamp = Stamp::of(&topology, Isa::Portable);
        assert_eq!((stamp.cores, stamp.smt, stamp.most_threads()), (1, 2, 2));
        assert_eq!(
            (stamp.private_caches, stamp.shared_cache),
            (vec![32 << 10], 256 << 10)
        );
    }
}
