//! `gatestream machine`: the topology of this machine and its measured ceilings.

use std::io::Write;

use gatestream::machine::{
    Bytes, CacheKind, CpuList, Machine, Rate, Source, TeamCeilings, Topology,
};
use gatestream_command::Failure;

/// Prints the topology of this machine and its measured ceilings (takes one to two seconds).
///
/// With --json, one object: topology (cpu_model; cores: cpus, package, numa_node; caches: level,
/// kind, bytes, line_bytes, cpus, sharing_cores; numa_nodes: id, cpus; cpu_quota: whole CPUs
/// granted to the container, or null; source: "sysfs", "hwloc" or {"count_only": {"why"}}), isas
/// (best first), isa (the one in use), ceilings (isa; one and all, for one core and for all
/// together: threads, pinned, fma_f32_gflops, dot_int8_gops, read_gbps: l1, l2, l3, memory). A
/// measured rate is an object: value (10^9 operations or bytes per second, the team together) and
/// spread ((best - median round) / best).
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// Measures and prints.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut machine = Machine::detect()?;
    machine.measure()?;
    let mut out = std::io::stdout().lock();
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string(&machine)?)?;
    } else {
        out.write_all(text(&machine).as_bytes())?;
    }
    Ok(())
}

/// One screen for a person.
fn text(machine: &Machine) -> String {
    let topology = &machine.topology;
    let mut lines = vec![format!("cpu      {}", topology.cpu_model)];
    let isas = machine.isas.iter().map(|&isa| {
        let used = if isa == machine.isa { " (used)" } else { "" };
        format!("{isa}{used}")
    });
    lines.push(format!("isa      {}", isas.collect::<Vec<_>>().join(", ")));
    lines.push(format!("cores    {}", cores(topology)));
    for (count, cache) in distinct_caches(topology) {
        lines.push(format!("cache    {cache}{}", times(count)));
    }
    for node in &topology.numa_nodes {
        lines.push(format!("node {:<3} CPU {}", node.id, CpuList(&node.cpus)));
    }
    if let Source::CountOnly { why } = &topology.source {
        lines.push(format!("note     CPUs counted, caches guessed: {why}"));
    }
    if let Some(ceilings) = &machine.ceilings {
        let (one, all) = (&ceilings.one, &ceilings.all);
        lines.push(String::new());
        lines.push(format!(
            "ceilings            {:>20}  {:>20}",
            "1 core",
            format!("{} cores at once", all.threads)
        ));
        let mut row = |name: &str, of: fn(&TeamCeilings) -> Option<Rate>| {
            if let (Some(one), Some(all)) = (of(one), of(all)) {
                lines.push(format!("{name:<20}{:>20}  {:>20}", rate(one), rate(all)));
            }
        };
        row("f32 FMA     GFLOP/s", |t| Some(t.fma_f32_gflops));
        row("int8 dot      GOP/s", |t| Some(t.dot_int8_gops));
        row("read L1        GB/s", |t| t.read_gbps.l1);
        row("read L2        GB/s", |t| t.read_gbps.l2);
        row("read L3        GB/s", |t| t.read_gbps.l3);
        row("read memory    GB/s", |t| Some(t.read_gbps.memory));
        lines.push("(the best round; in brackets how far the median round fell short)".into());
        if !(one.pinned && all.pinned) {
            lines.push("note     threads could not be pinned: rates may be too low".into());
        }
    }
    lines.join("\n") + "\n"
}

fn cores(topology: &Topology) -> String {
    let packages: std::collections::BTreeSet<_> =
        topology.cores.iter().map(|core| core.package).collect();
    let (cores, cpus) = (topology.cores.len(), topology.cpus());
    let smt = if cpus > cores { "SMT" } else { "no SMT" };
    let mut line = format!(
        "{cores} in {} package(s), {cpus} logical CPU(s), {smt}",
        packages.len()
    );
    if let Some(quota) = topology.cpu_quota {
        line += &format!(", of which a quota grants the time of {quota}");
    }
    line
}

/// Caches that differ only in where they are, counted.
fn distinct_caches(topology: &Topology) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    for cache in &topology.caches {
        let kind = match cache.kind {
            CacheKind::Data => "d",
            CacheKind::Instruction => "i",
            CacheKind::Unified => " ",
        };
        let shared = match cache.sharing_cores {
            1 => "private".to_string(),
            n => format!("shared by {n} cores"),
        };
        let line = format!(
            "L{}{kind} {:>9}  {shared}",
            cache.level,
            Bytes(cache.bytes).to_string()
        );
        match found.iter_mut().find(|(_, other)| *other == line) {
            Some((count, _)) => *count += 1,
            None => found.push((1, line)),
        }
    }
    found
}

fn times(count: usize) -> String {
    if count == 1 {
        String::new()
    } else {
        format!(", {count} of them")
    }
}

fn rate(rate: Rate) -> String {
    format!("{:.1} [-{:.0}%]", rate.value, rate.spread * 100.0)
}
