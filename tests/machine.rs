//! Reading a machine's topology: recorded and made-up machines, broken ones, and the one this runs
//! on.

use std::path::Path;

use gatestream::execute::PackedModel;
use gatestream::execute::team::Team;
use gatestream::kernels::Isa;
use gatestream::machine::{
    Cache, CacheKind, Core, Level, NumaNode, Source, Topology, TopologyError, allowed_cpus, sysfs,
};
use gatestream::model::Lstm;
use gatestream::plan::{Plan, Stamp};
use gatestream::{Input, Output, Session, reference};

const CPU: &str = "sys/devices/system/cpu";

/// Unpacks a fixture of `path: content` lines; `edit` may change the lines first.
fn machine(name: &str, edit: impl Fn(&str) -> Option<String>) -> tempfile::TempDir {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/sysfs");
    let lines = std::fs::read_to_string(fixtures.join(name)).unwrap();
    let root = tempfile::tempdir().unwrap();
    for line in lines.lines().filter_map(edit) {
        let (path, content) = line.split_once(": ").unwrap();
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, format!("{content}\n")).unwrap();
    }
    root
}

fn unchanged(line: &str) -> Option<String> {
    Some(line.to_string())
}

fn read(name: &str, allowed: &[usize]) -> Topology {
    sysfs::read(machine(name, unchanged).path(), allowed).unwrap()
}

/// Reads the two-core machine with one file's content replaced (`None`: the file is missing).
fn read_with(file: &str, content: Option<&str>) -> Result<Topology, TopologyError> {
    let root = machine("virtual-2-cores.txt", |line| {
        if line
            .strip_prefix(file)
            .is_some_and(|rest| rest.starts_with(": "))
        {
            content.map(|content| format!("{file}: {content}"))
        } else {
            Some(line.to_string())
        }
    });
    sysfs::read(root.path(), &[0, 1])
}

fn core(cpus: &[usize], package: usize, numa_node: usize) -> Core {
    Core {
        cpus: cpus.to_vec(),
        package,
        numa_node,
    }
}

fn cache(level: u8, kind: CacheKind, kib: usize, cpus: &[usize], sharing_cores: usize) -> Cache {
    Cache {
        level,
        kind,
        bytes: kib * 1024,
        line_bytes: 64,
        cpus: cpus.to_vec(),
        sharing_cores,
    }
}

use CacheKind::{Data, Instruction, Unified};

#[test]
fn two_virtual_cores() {
    let expected = Topology {
        cpu_model: "AMD EPYC".to_string(),
        cores: vec![core(&[0], 0, 0), core(&[1], 0, 0)],
        caches: vec![
            cache(1, Data, 48, &[0], 1),
            cache(1, Data, 48, &[1], 1),
            cache(1, Instruction, 32, &[0], 1),
            cache(1, Instruction, 32, &[1], 1),
            cache(2, Unified, 1024, &[0], 1),
            cache(2, Unified, 1024, &[1], 1),
            cache(3, Unified, 32 * 1024, &[0, 1], 2),
        ],
        numa_nodes: vec![NumaNode {
            id: 0,
            cpus: vec![0, 1],
        }],
        cpu_quota: None,
        source: Source::Sysfs,
    };
    assert_eq!(read("virtual-2-cores.txt", &[0, 1]), expected);
}

#[test]
fn two_sockets_with_smt() {
    let all: Vec<usize> = (0..8).collect();
    let t = read("two-sockets-smt.txt", &all);
    assert_eq!(
        t.cores,
        [
            core(&[0, 4], 0, 0),
            core(&[1, 5], 0, 0),
            core(&[2, 6], 1, 2),
            core(&[3, 7], 1, 2)
        ]
    );
    let l3: Vec<&Cache> = t.caches.iter().filter(|c| c.level == 3).collect();
    assert_eq!(
        l3,
        [
            &cache(3, Unified, 60 * 1024, &[0, 1, 4, 5], 2),
            &cache(3, Unified, 60 * 1024, &[2, 3, 6, 7], 2)
        ]
    );
    assert_eq!(
        t.numa_nodes.iter().map(|n| n.id).collect::<Vec<_>>(),
        [0, 2]
    );
    // Shared by two threads of one core, so still private to the core.
    assert_eq!(t.private_cache_bytes(&t.cores[0]), 2 << 20);
    assert_eq!(t.shared_cache(&t.cores[3]).unwrap().cpus, [2, 3, 6, 7]);
    assert_eq!((t.cpus(), t.team_size()), (8, 4));

    assert_eq!(t.cpus_for_team(0), [0usize; 0]);
    assert_eq!(t.cpus_for_team(2), [0, 1], "one socket");
    assert_eq!(t.cpus_for_team(4), [0, 1, 2, 3], "a CPU of each core");
    assert_eq!(
        t.cpus_for_team(9),
        [0, 1, 2, 3, 4, 5, 6, 7, 0],
        "siblings, then again"
    );
}

#[test]
fn only_cpus_that_may_be_used_are_listed() {
    // One thread of a core in socket 0; both cores of socket 1, one of them with both threads.
    let t = read("two-sockets-smt.txt", &[5, 2, 3, 7, 99]);
    assert_eq!(
        t.cores,
        [core(&[2], 1, 2), core(&[3, 7], 1, 2), core(&[5], 0, 0)]
    );
    // CPU 5 is alone with its L3 here, but another core takes its part of it.
    assert_eq!(
        t.cache_at(&t.cores[2], 3),
        Some(&cache(3, Unified, 60 * 1024, &[5], 2))
    );
    assert_eq!(t.private_cache_bytes(&t.cores[2]), 2 << 20);
    assert_eq!(t.cpus_for_team(4), [2, 3, 5, 7], "the fuller socket first");

    let root = machine("two-sockets-smt.txt", unchanged);
    assert_eq!(
        sysfs::read(root.path(), &[8, 9]),
        Err(TopologyError::NoUsableCpu {
            allowed: vec![8, 9]
        })
    );
}

#[test]
fn hybrid_processor() {
    let all: Vec<usize> = (0..8).collect();
    let t = read("hybrid.txt", &all);
    let small = &t.cores[0];
    let large = &t.cores[4];
    assert_eq!((&small.cpus[..], &large.cpus[..]), (&[0][..], &[4, 5][..]));
    assert_eq!(t.cores.len(), 6);
    // The small cores' L2 is shared by four, so only L1d is a small core's own.
    assert_eq!(t.private_cache_bytes(small), 32 << 10);
    assert_eq!(t.private_cache_bytes(large), 1280 << 10);
    assert_eq!(t.cache_at(small, 2).unwrap().sharing_cores, 4);
    assert_eq!(t.cache_at(small, 3).unwrap().sharing_cores, 6);
    assert_eq!(
        t.cpus_for_team(8),
        [4, 6, 0, 1, 2, 3, 5, 7],
        "large cores first"
    );

    // A small core's part of the cluster's 2 MiB is 512 KiB, of the 12 MiB 2 MiB.
    assert_eq!(t.level_holding(small, 32 << 10), Level::L1);
    assert_eq!(t.level_holding(small, 512 << 10), Level::L2);
    assert_eq!(t.level_holding(small, (512 << 10) + 1), Level::L3);
    assert_eq!(t.level_holding(large, 1280 << 10), Level::L2);
    assert_eq!(t.level_holding(large, (2 << 20) + 1), Level::Memory);
}

#[test]
fn what_a_kernel_leaves_out_is_left_out() {
    // No NUMA support: one node.
    let t = read_with("sys/devices/system/node/online", None).unwrap();
    assert_eq!(t.numa_nodes.len(), 1);
    assert_eq!(t.numa_nodes[0].cpus, [0, 1]);
    // A kernel before 5.3: the old name of the sibling list.
    let t = read_with(&format!("{CPU}/cpu0/topology/core_cpus_list"), None).unwrap();
    assert_eq!(t.cores.len(), 2);
    // A cache without a size, a line without a length, a package that is not known.
    let t = read_with(&format!("{CPU}/cpu0/cache/index2/size"), None).unwrap();
    assert_eq!(t.cache_at(&t.cores[0], 2), None);
    assert_eq!(t.private_cache_bytes(&t.cores[0]), 48 << 10);
    let t = read_with(
        &format!("{CPU}/cpu0/cache/index0/coherency_line_size"),
        None,
    )
    .unwrap();
    assert_eq!(t.cache_at(&t.cores[0], 1).unwrap().line_bytes, 0);
    let t = read_with(
        &format!("{CPU}/cpu0/topology/physical_package_id"),
        Some("-1"),
    )
    .unwrap();
    assert_eq!(t.cores[0].package, 0);
    // No caches at all, no processor name.
    let root = machine("virtual-2-cores.txt", |line| {
        (!line.contains("/cache/") && !line.starts_with("proc")).then(|| line.to_string())
    });
    let t = sysfs::read(root.path(), &[0, 1]).unwrap();
    assert_eq!((t.caches.len(), &t.cpu_model[..]), (0, "unknown"));
    assert_eq!(t.private_cache_bytes(&t.cores[0]), 0);
    assert_eq!(t.level_holding(&t.cores[0], 1), Level::Memory);
    assert_eq!(t.cpus_for_team(2), [0, 1]);
}

#[test]
fn an_arm_processor_is_named_by_numbers() {
    let t = read_with(
        "proc/cpuinfo",
        Some("CPU implementer : 0x41\nCPU part : 0xd0c"),
    )
    .unwrap();
    assert_eq!(t.cpu_model, "implementer 0x41 part 0xd0c");
}

#[test]
fn broken_files_are_refused_by_name() {
    let cases = [
        ("online", None, "no such file"),
        ("online", Some("0-x"), "a list of CPUs"),
        ("online", Some("3-1"), "a list of CPUs"),
        ("online", Some("0-99999999999"), "a list of CPUs"),
        ("online", Some("7"), "none of the CPUs"),
        ("cpu1/topology/physical_package_id", None, "no such file"),
        (
            "cpu1/topology/physical_package_id",
            Some("two"),
            "a whole number",
        ),
        (
            "cpu1/topology/core_cpus_list",
            Some("0"),
            "does not list CPU 1",
        ),
        ("cpu1/topology/core_cpus_list", Some("0-1"), "two cores"),
        ("cpu0/cache/index0/level", Some("first"), "a cache level"),
        ("cpu0/cache/index0/level", Some("0"), "no level"),
        (
            "cpu0/cache/index0/type",
            Some("Magic"),
            "Data, Instruction or Unified",
        ),
        ("cpu0/cache/index0/type", None, "no such file"),
        ("cpu0/cache/index2/size", Some("1Q"), "a size such as"),
        (
            "cpu0/cache/index2/size",
            Some("99999999999999999999K"),
            "a size such as",
        ),
        (
            "cpu0/cache/index2/size",
            Some("18446744073709551615G"),
            "a size such as",
        ),
        (
            "cpu0/cache/index3/shared_cpu_list",
            Some("1"),
            "does not list CPU 0",
        ),
        ("cpu0/cache/index3/shared_cpu_list", Some("0"), "overlap"),
        ("cpu0/cache/index3/size", Some("16384K"), "overlap"),
    ];
    for (file, content, wanted) in cases {
        let path = format!("{CPU}/{file}");
        let error = match read_with(&path, content) {
            Ok(topology) => panic!("{file} = {content:?} was accepted: {topology:?}"),
            Err(error) => error,
        };
        let line = error.to_string();
        assert!(line.contains(wanted), "{file} = {content:?}: {line}");
        assert!(!line.contains('\n'), "{line}");
        let names_file = matches!(
            error,
            TopologyError::Unreadable { .. } | TopologyError::Malformed { .. }
        );
        assert!(!names_file || line.contains(file), "{line}");
    }
}

#[test]
fn a_machine_that_tells_nothing_is_counted() {
    let empty = tempfile::tempdir().unwrap();
    let error = sysfs::read(empty.path(), &[0]).unwrap_err();
    assert!(matches!(error, TopologyError::Unreadable { .. }), "{error}");

    let t = Topology::count_only(&[2, 0], "no /sys".to_string());
    t.validate().unwrap();
    assert_eq!(t.cores, [core(&[0], 0, 0), core(&[2], 0, 0)]);
    assert_eq!(t.private_cache_bytes(&t.cores[1]), 256 << 10);
    assert_eq!(t.cpus_for_team(3), [0, 2, 0]);
    assert_eq!(
        t.source,
        Source::CountOnly {
            why: "no /sys".to_string()
        }
    );
}

/// As on a system without `/sys`, and with CPUs that cannot be pinned to.
#[test]
fn models_are_planned_and_run_on_a_counted_machine() {
    let (batch, steps) = (3, 5);
    let topology = Topology::count_only(&[5000, 5001], "no /sys".to_string());
    let model = Lstm::new(7, 40).layers(2).random(1).unwrap();
    let stamp = Stamp::of(&topology, Isa::Portable);
    let plan = Plan::with_threads(&model, batch, steps, topology.team_size());
    let text = plan.to_text(&model, &stamp).unwrap();
    let plan = Plan::from_text(text.as_bytes(), &model, &stamp).unwrap();
    assert_eq!(plan.threads(), 2);
    let configuration = &plan.entries[0].configuration;
    let traffic = configuration.traffic(&model, batch, steps, &topology);
    assert_eq!(traffic.unwrap().len(), 2);

    let mut team = Team::new(&topology.cpus_for_team(plan.threads())).unwrap();
    assert!(!team.pinned());
    let packed = PackedModel::new(&model, &plan, &mut team).unwrap();
    let mut session = Session::with_team(packed, team).unwrap();
    assert!(!session.pin_caller());

    let values: Vec<f32> = (0..batch * steps * 7).map(|i| (i as f32).sin()).collect();
    let input = Input::new(&values, steps, batch);
    let mut expected = vec![0.0; batch * steps * 40];
    let mut found = vec![f32::NAN; expected.len()];
    reference::run(&model, &input, &mut Output::new(&mut expected)).unwrap();
    session.run(&input, &mut Output::new(&mut found)).unwrap();
    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&found), bits(&expected));
}

#[test]
fn a_quota_limits_the_team() {
    let mut t = read("two-sockets-smt.txt", &[0, 1, 2, 3]);
    assert_eq!(t.team_size(), 4);
    t.cpu_quota = Some(3);
    assert_eq!(t.team_size(), 3);
    t.cpu_quota = Some(0);
    assert_eq!(t.team_size(), 1);
}

/// On Linux the machine this runs on is read, not guessed, and lists what may be used.
#[cfg(target_os = "linux")]
#[test]
fn this_machine() {
    let t = Topology::detect();
    t.validate().unwrap();
    assert_eq!(t.source, Source::Sysfs);
    let mut cpus: Vec<usize> = t.cores.iter().flat_map(|c| c.cpus.clone()).collect();
    cpus.sort_unstable();
    assert_eq!(cpus, allowed_cpus());
    let only = allowed_cpus()[0];
    let restricted = sysfs::read(Path::new("/"), &[only]).unwrap();
    assert_eq!(restricted.cores.len(), 1);
    assert_eq!(restricted.cores[0].cpus, [only]);
    // What the process may use is remembered: a thread that has been pinned sees the whole of it.
    let pinned = std::thread::spawn(move || {
        assert!(core_affinity::set_for_current(core_affinity::CoreId {
            id: only
        }));
        Topology::detect()
    });
    assert_eq!(pinned.join().unwrap(), t);
}

#[cfg(all(feature = "hwloc", target_os = "linux"))]
mod hwloc {
    use super::*;
    use gatestream::machine::hwloc;

    /// Two readers that share no code describe this machine alike.
    #[test]
    fn agrees_with_sysfs() {
        for allowed in [allowed_cpus(), vec![allowed_cpus()[0]]] {
            let from_sys = sysfs::read(Path::new("/"), &allowed).unwrap();
            let from_hwloc = hwloc::read(&allowed).unwrap();
            assert_eq!(from_hwloc.source, Source::Hwloc);
            let from_hwloc = Topology {
                source: Source::Sysfs,
                ..from_hwloc
            };
            assert_eq!(from_hwloc, from_sys);
        }
    }

    #[test]
    fn cpus_that_do_not_exist_are_refused() {
        assert!(matches!(
            hwloc::read(&[60_000]),
            Err(TopologyError::NoUsableCpu { .. })
        ));
    }
}
