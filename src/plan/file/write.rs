//! A plan as text.

use std::fmt::{self, Write};
use std::ops::Range;

use super::lines::MAX_SIZE;
use super::parse::{MAX_BYTES, MAX_ENTRIES, sum};
use super::{FORMAT, PlanFileError, order_name, prefetch_name, stripes_count};
use crate::model::Model;
use crate::plan::stamp::{escaped, identity};
use crate::plan::{Cost, Entry, InputProjectionBy, Plan, Stamp};
use gatestream_kernels::Blocking;

/// Everything that may not be in a file is refused here, so that what is written can be read.
pub(super) fn text(plan: &Plan, model: &Model, stamp: &Stamp) -> Result<String, PlanFileError> {
    plan.check(model)?;
    let most = stamp.most_threads();
    if plan.threads() > most {
        let planned = plan.threads();
        return Err(PlanFileError::Threads { planned, most });
    }
    let limit = |what, found: usize, most: u64| {
        if found as u64 > most {
            Err(PlanFileError::TooLarge { what, most })
        } else {
            Ok(())
        }
    };
    limit("entries", plan.entries.len(), MAX_ENTRIES)?;
    for entry in &plan.entries {
        limit("sequences of an entry", entry.batch, MAX_SIZE)?;
        limit("steps of an entry", entry.steps, MAX_SIZE)?;
        for layer in &entry.configuration.layers {
            limit("steps of a chunk", layer.chunk_steps, MAX_SIZE)?;
        }
    }
    let mut text = String::new();
    // A string takes whatever is written.
    let _ = body(&mut text, plan, model, stamp);
    let sum = sum(&text);
    let _ = writeln!(text, "\nchecksum {sum:016x}");
    limit("bytes", text.len(), MAX_BYTES)?;
    Ok(text)
}

fn body(to: &mut String, plan: &Plan, model: &Model, stamp: &Stamp) -> fmt::Result {
    writeln!(to, "gatestream plan {FORMAT}\n")?;
    for line in identity(model) {
        writeln!(to, "{line}")?;
    }
    writeln!(to, "\nkernels {}", stamp.kernels)?;
    for (name, value) in stamp.fields() {
        writeln!(to, "{name} {value}")?;
    }
    let mut entries: Vec<&Entry> = plan.entries.iter().collect();
    entries.sort_by_key(|entry| (entry.batch, entry.steps));
    entries.into_iter().try_for_each(|e| entry(to, e))
}

fn entry(to: &mut String, entry: &Entry) -> fmt::Result {
    let configuration = &entry.configuration;
    writeln!(to, "\nbatch {} steps {}", entry.batch, entry.steps)?;
    let (threads, row_groups) = (configuration.threads, configuration.row_groups);
    writeln!(to, "  threads {threads} row_groups {row_groups}")?;
    if let Some(measured) = &entry.measured {
        writeln!(to, "  {}", cost(measured.cost))?;
        if let Some((words, time)) = &measured.runner_up {
            writeln!(to, "  runner_up {}: {}", cost(*time), escaped(words))?;
        }
    }
    for (index, layer) in configuration.layers.iter().enumerate() {
        let ahead = match layer.ahead {
            InputProjectionBy::Owners => "owners".to_string(),
            InputProjectionBy::Rows {
                workers,
                owners_share,
            } => format!("rows {workers} owners_share {}/8", owners_share.eighths()),
        };
        let (chunk, order) = (layer.chunk_steps, order_name(layer.order));
        writeln!(
            to,
            "  layer {index} chunk {chunk} ahead {ahead} order {order}"
        )?;
        for (index, direction) in layer.directions.iter().enumerate() {
            let partition = &direction.partition;
            write!(to, "    direction {index} {}", direction.schedule)?;
            let Blocking {
                stripes,
                tile_rows,
                prefetch,
            } = direction.blocking;
            let (stripes, prefetch) = (stripes_count(stripes), prefetch_name(prefetch));
            write!(
                to,
                " stripes {stripes} tile_rows {tile_rows} prefetch {prefetch} units"
            )?;
            ranges(to, &partition.units)?;
            if partition.projected.iter().any(|rows| *rows != (0..0)) {
                write!(to, " projection")?;
                ranges(to, &partition.projected)?;
            }
            writeln!(to)?;
        }
    }
    Ok(())
}

fn cost(cost: Cost) -> String {
    format!("cost_ns {} spread_ns {}", cost.median_ns, cost.spread_ns)
}

fn ranges(to: &mut String, ranges: &[Range<usize>]) -> fmt::Result {
    ranges
        .iter()
        .try_for_each(|range| write!(to, " {}..{}", range.start, range.end))
}
