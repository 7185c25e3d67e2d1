//! `--machines`: measures this machine, then simulates several.

use std::io::Write;
use std::ops::ControlFlow;
use std::time::Duration;

use super::progress::Progress;
use super::{Arguments, CALIBRATION, measure};
use crate::candidate::{Candidate, Launch};
use crate::in_process::Engines;
use crate::machines::Machines;
use crate::report::{Context, PLAUSIBLE, calibration};
use crate::sweep::{Conditions, NextRun, compare};
use crate::workload::Arrivals;
use gatestream_command::{Failure, interrupt};

/// Simulates each number of machines, with the same measured times.
///
/// # Errors
/// As those of a measurement; nothing was answered in the time in which the peak is measured.
pub fn run(arguments: &Arguments, engines: &Engines, out: &mut impl Write) -> Result<(), Failure> {
    let (mut machines, factor) = measured(arguments, engines, out)?;
    if !PLAUSIBLE.contains(&factor) {
        writeln!(
            std::io::stderr(),
            "gatestream: batches take {factor:.2} times as long under load as alone, so that the \
             measured times do not describe this machine: the results are doubtful; repeat on an \
             idle machine, or with a larger network"
        )?;
    }
    for &count in &arguments.machines {
        let count = count as usize;
        machines = machines.of(count);
        let context = Context {
            machines: Some(count),
            stretch: Some(factor),
            ..arguments.context()
        };
        measure(arguments, &context, &machines, interrupt::flow, out)?;
    }
    Ok(())
}

/// One machine, which has the peak of an engine of this process: copies of values, and cores that
/// slow each other down, lengthen its batches by the factor that is returned.
fn measured(
    arguments: &Arguments,
    engines: &Engines,
    out: &mut impl Write,
) -> Result<(Machines, f64), Failure> {
    let grid = arguments.grid()?;
    let mut progress = Progress::new(2);
    progress.say(CALIBRATION);
    let calibrated = engines.calibrate(&grid.calibration_rows())?;
    progress.suspend(|| calibration::print(&calibrated, arguments.json, out))?;
    let machine = Machines::one(arguments.engine_spec(), arguments.routing, calibrated);
    let workload = arguments.workload()?;
    let policies = arguments.policies(&workload)?;
    let largest = grid.candidates(&policies[..1]).pop().unwrap_or_default();
    // Simulated runs may be long; this machine's peak needs some seconds.
    let given = arguments.conditions(workload);
    let conditions = Conditions {
        warm_up: given.warm_up.min(Duration::from_secs(1)),
        window: given.window.min(Duration::from_secs(5)),
        deadline: None,
        rounds: 1,
        ..given
    };
    let closed = arguments.saturation(&grid, 1);
    let mut measure = |next: NextRun<'_>| {
        interrupt::flow()?;
        progress.show(next);
        ControlFlow::Continue(())
    };
    let measured = peak(engines, &largest, &closed, &conditions, &mut measure)?;
    let simulated = peak(&machine, &largest, &closed, &conditions, &mut measure)?;
    drop(progress);
    if measured == 0.0 || simulated == 0.0 {
        return Err(Failure::new(format!(
            "nothing was answered in {} s, in which the peak of this machine is measured; give \
             shorter --lengths or longer --seconds",
            conditions.window.as_secs_f64()
        )));
    }
    let factor = simulated / measured;
    if !arguments.json {
        writeln!(
            out,
            "peak of this machine: {measured:.0} a second, simulated: {simulated:.0}; batches take \
             {factor:.2} times as long as measured\n"
        )?;
    }
    Ok((machine.stretched(factor), factor))
}

fn peak<L: Launch>(
    launch: &L,
    candidate: &Candidate,
    closed: &Arrivals,
    conditions: &Conditions,
    next: &mut dyn FnMut(NextRun<'_>) -> ControlFlow<()>,
) -> Result<f64, Failure> {
    let (candidates, points) = (
        std::slice::from_ref(candidate),
        std::slice::from_ref(closed),
    );
    let found = compare(launch, candidates, points, conditions, next)?;
    let found = found.first().ok_or_else(|| Failure::new("interrupted"))?;
    Ok(found.all().throughput())
}
