//! CSV files of results.

use std::io::Write;
use std::path::Path;

use super::row::{Percentiles, Row, ServerPercentiles};
use super::{EngineContext, distributions, fractions};
use crate::record::ErrorKind;
use crate::sweep::Measurement;
use crate::workload::Arrivals;
use gatestream_command::Failure;

/// Writes the curves: a line for each candidate at each point.
///
/// # Errors
/// The file cannot be written.
pub fn write_curves(path: &Path, rows: &[&Row<'_>]) -> Result<(), Failure> {
    let write = || -> Result<(), Failure> { curves(std::fs::File::create(path)?, rows) };
    write().map_err(|failure| failure.of(path))
}

fn curves(to: impl Write, rows: &[&Row<'_>]) -> Result<(), Failure> {
    let mut writer = csv::Writer::from_writer(to);
    writer.write_record(
        [
            "network,input,hidden,layers,precision,requests,workers,threads,tasks_at_once,\
             steps_at_once,batch_steps,cuda,machines,batch_times_factor,seed,best,policy,\
             batch,bucket_width,arrivals,rate,outstanding,rounds,window_s,due,completed,\
             throughput,mean_ms,p50_ms,p90_ms,p99_ms,p999_ms,max_ms,p90_least_ms,p90_greatest_ms,\
             queueing_p50_ms,queueing_p90_ms,queueing_p99_ms,computing_p50_ms,\
             computing_p90_ms,computing_p99_ms,submitted_queueing_p99_ms,late_p99_ms,late_max_ms,\
             overloaded,deadline,failed,unfinished,mean_batch,step_p50_ms,step_p99_ms",
        ]
        .iter()
        .flat_map(|names| names.split(',')),
    )?;
    for row in rows {
        let c = row.context;
        let or_empty = |value: Option<String>| value.unwrap_or_default();
        let engine = |of: fn(&EngineContext) -> String| or_empty(c.engines.as_ref().map(of));
        let mut fields = vec![
            c.network.clone(),
            engine(|of| of.input.to_string()),
            engine(|of| of.hidden.to_string()),
            engine(|of| of.layers.to_string()),
            engine(|of| of.precision.clone()),
            c.requests.clone(),
            engine(|of| of.workers.to_string()),
            engine(|of| of.threads.to_string()),
            engine(|of| of.tasks_at_once.to_string()),
            engine(|of| of.steps_at_once.to_string()),
            engine(|of| of.batch_steps.clone()),
            engine(|of| {
                of.cuda
                    .iter()
                    .map(usize::to_string)
                    .collect::<Vec<_>>()
                    .join(" ")
            }),
            or_empty(c.machines.map(|machines| machines.to_string())),
            or_empty(c.stretch.map(|factor| format!("{factor:.3}"))),
            c.seed.to_string(),
            row.best.to_string(),
            row.target.clone(),
            or_empty(row.candidate.batch.as_ref().map(|rows| rows.to_string())),
            or_empty(row.candidate.bucket_width.map(|w| w.to_string())),
            row.arrivals.to_string(),
            or_empty(row.rate.map(|rate| rate.to_string())),
            or_empty(row.outstanding.map(|users| users.to_string())),
            row.rounds.to_string(),
            row.window_s.to_string(),
            row.due.to_string(),
            row.completed.to_string(),
        ];
        let latency = row.latency_ms;
        let server = |of: fn(&ServerPercentiles) -> f64| row.server.as_ref().map(of);
        let measured = [
            Some(row.throughput),
            Some(latency.mean),
            Some(latency.p50),
            Some(latency.p90),
            Some(latency.p99),
            Some(latency.p999),
            Some(latency.max),
            Some(row.p90_of_rounds_ms[0]),
            Some(row.p90_of_rounds_ms[1]),
            server(|times| times.queueing_ms.p50),
            server(|times| times.queueing_ms.p90),
            server(|times| times.queueing_ms.p99),
            server(|times| times.computing_ms.p50),
            server(|times| times.computing_ms.p90),
            server(|times| times.computing_ms.p99),
            server(|times| times.submitted_queueing_ms.p99),
            Some(row.late_ms.p99),
            Some(row.late_ms.max),
        ];
        // In milliseconds, to the nanosecond.
        fields.extend(measured.map(|value| or_empty(value.map(|value| format!("{value:.6}")))));
        fields.extend(ErrorKind::ALL.map(|kind| row.errors[kind.name()].to_string()));
        let by_cell = |values: &mut dyn Iterator<Item = (&String, String)>| {
            let values: Vec<_> = values.map(|(cell, v)| format!("{cell}:{v}")).collect();
            values.join(" ")
        };
        let steps = |which: fn(&Percentiles) -> f64| {
            let steps = row.step_ms.iter();
            by_cell(&mut steps.map(|(cell, step)| (cell, format!("{:.6}", which(step)))))
        };
        let batches = row.mean_batch.iter();
        fields.push(by_cell(
            &mut batches.map(|(cell, mean)| (cell, format!("{mean:.2}"))),
        ));
        fields.extend([steps(|step| step.p50), steps(|step| step.p99)]);
        writer.write_record(fields)?;
    }
    writer.flush()?;
    Ok(())
}

/// Writes the distributions of latency, queueing and computing: `fraction` of the requests took at
/// most `ms`.
///
/// # Errors
/// The file cannot be written.
pub fn write_distributions(path: &Path, all: &[&Measurement]) -> Result<(), Failure> {
    let write = || -> Result<(), Failure> { cdfs(std::fs::File::create(path)?, all) };
    write().map_err(|failure| failure.of(path))
}

fn cdfs(to: impl Write, all: &[&Measurement]) -> Result<(), Failure> {
    let mut writer = csv::Writer::from_writer(to);
    writer.write_record(["policy", "asked", "time", "fraction", "ms"])?;
    for measured in all {
        let recording = measured.all();
        let asked = match &measured.arrivals {
            Arrivals::Poisson { rate } => rate.to_string(),
            Arrivals::Closed { outstanding } => format!("{outstanding} users"),
            Arrivals::Trace(_) => "trace".into(),
        };
        for (name, times) in distributions(&recording) {
            for fraction in fractions() {
                writer.write_record([
                    &measured.about.name,
                    &asked,
                    name,
                    &fraction.to_string(),
                    &format!("{:.6}", times.quantile(fraction)),
                ])?;
            }
        }
    }
    writer.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::policy::ComparedPolicy;
    use crate::report::row::tests::{context, measured, near};

    #[test]
    fn curves_are_read_back() {
        let context = context();
        let all = [
            measured(ComparedPolicy::Padding, 12.5),
            measured(ComparedPolicy::CELLULAR, 25.0),
        ];
        let rows: Vec<_> = all.iter().map(|m| Row::new(&context, m)).collect();
        let mut file = Vec::new();
        curves(&mut file, &rows.iter().collect::<Vec<_>>()).unwrap();
        let mut reader = csv::Reader::from_reader(&file[..]);
        let lines: Vec<BTreeMap<String, String>> =
            reader.deserialize().map(Result::unwrap).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(
            [&lines[0]["policy"], &lines[1]["policy"]],
            ["padding", "cellular"]
        );
        let number = |name: &str| lines[1][name].parse::<f64>().unwrap();
        assert_eq!(
            (number("rate"), number("seed"), number("overloaded")),
            (25.0, 9.0, 1.0)
        );
        near(number("p90_ms"), 160.0);
        near(number("queueing_p90_ms"), 40.0);
        near(number("computing_p99_ms"), 147.0);
        near(number("throughput"), 10.0);
        assert_eq!(
            (&*lines[0]["bucket_width"], &*lines[0]["mean_batch"]),
            ("", "cell:3.25")
        );
        assert_eq!(
            [&*lines[0]["best"], &*lines[0]["tasks_at_once"]],
            ["false", "1"]
        );
        assert!(lines[0]["step_p50_ms"].starts_with("cell:5.0"));
        near(number("submitted_queueing_p99_ms"), 49.0);
        assert_eq!(lines[0]["requests"], "paper, \"330\"");
    }

    #[test]
    fn distributions_are_read_back() {
        let mut file = Vec::new();
        cdfs(&mut file, &[&measured(ComparedPolicy::Merge, 1.5)]).unwrap();
        let mut reader = csv::Reader::from_reader(&file[..]);
        let lines: Vec<(String, f64, String, f64, f64)> =
            reader.deserialize().map(Result::unwrap).collect();
        assert_eq!(lines.len(), 3 * fractions().len());
        for (name, median, max) in [("latency", 67.0, 200.0), ("queueing", 67.0 / 4.0, 50.0)] {
            let of: Vec<_> = lines.iter().filter(|line| line.2 == name).collect();
            assert!(of.is_sorted_by(|a, b| a.3 < b.3 && a.4 <= b.4));
            near(of.iter().find(|line| line.3 == 0.5).unwrap().4, median);
            near(of.last().unwrap().4, max);
        }
        assert!(lines.iter().all(|line| line.0 == "merge" && line.1 == 1.5));
    }
}
