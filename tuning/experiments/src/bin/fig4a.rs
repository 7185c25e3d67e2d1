//! DeepCPU figure 4a: what each optimisation of an LSTM brings.
//!
//! Question: how much do fusion, hoisting and partitioning bring, and how much of it needs each
//! slice of the weights to stay on its core?
//!
//! Method: [batch, dimension], input and hidden size equal, 100 steps. (i) eight products per step
//! with a parallel GEMM; (ii) one per step, as TensorFlow and CNTK; (iii) everything but
//! weight-centric streamlining: the crate's kernels, fused and hoisted, but slices change cores at
//! each step, on as many cores as (iv) has; (iv) everything: a session with a tuned plan. All are
//! checked against the reference, (iii) and (iv) must agree to the bit. "kept" is the program of
//! (iii) with slices that stay: a control, it should be near (iv). Interleaved rounds; medians and
//! ratios with quartiles.
//!
//! Reading: (i)/(iv) is the whole gain. (iii)/(iv) is the share of streamlining: large where the
//! recurrent weights exceed one core's private cache but a core's slice of them does not. Where
//! (iv) uses one core there is nothing to move, and (iii) is (iv).

use clap::Parser;
use gatestream_experiments::gemm::{Gemm, Library};
use gatestream_experiments::lstm_by_gemm::LstmByGemm;
use gatestream_experiments::nest::Nest;
use gatestream_experiments::report::{Report, ms, two};
use gatestream_experiments::rounds::{Contender, geometric_mean};
use gatestream_experiments::runner::{Expected, Runner, tuned};
use gatestream_experiments::settings::Settings;
use gatestream_experiments::shapes::Shape;
use gatestream_experiments::sliced::Mapping;
use gatestream_experiments::{Outcome, gemm::Split};

const BATCHES: [usize; 3] = [1, 10, 20];
const DIMENSIONS: [usize; 4] = [64, 256, 512, 1024];

/// DeepCPU figure 4a
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    settings: Settings,
}

fn main() -> Outcome {
    let settings = Arguments::parse().settings;
    let mut names: Vec<String> = Vec::new();
    for library in Library::ALL {
        names.push(format!("8 × {}", library.name()));
        names.push(format!("fused, {}", library.name()));
    }
    names.extend(["all but WCS", "kept", "all"].map(String::from));
    let mut columns = vec!["[batch, dim]".to_string(), "cores".to_string()];
    columns.extend(names.iter().map(|name| format!("{name}, ms")));
    let opponents = names.len() - 1;
    columns.extend(
        names[..opponents]
            .iter()
            .map(|name| format!("{name} / all")),
    );
    columns.push("splits".to_string());
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let question =
        "LSTM, 100 steps: what each optimisation brings (milliseconds, and times as long as `all`)";
    let mut report = Report::new(&settings, "fig4a", question, &columns)?;

    let mut ratios_at_one = vec![Vec::new(); opponents];
    for batch in settings.cut(&BATCHES, 2) {
        for dimension in settings.cut(&DIMENSIONS, 2) {
            let shape = Shape::square(*batch, *dimension);
            let row = measure(&settings, shape)?;
            let mut cells = vec![format!("[{batch}, {dimension}]"), row.cores.to_string()];
            cells.extend(row.seconds.iter().map(|s| ms(*s)));
            cells.extend(row.ratios.iter().map(|(_, text)| text.clone()));
            cells.push(row.splits);
            report.row(cells);
            if *batch == 1 {
                for (ratios, (ratio, _)) in ratios_at_one.iter_mut().zip(&row.ratios) {
                    ratios.push(*ratio);
                }
            }
        }
    }
    for (name, ratios) in names.iter().zip(&ratios_at_one) {
        let mean = two(geometric_mean(ratios));
        report.note(format!(
            "batch 1, geometric mean of `{name}` / `all`: {mean}"
        ));
    }
    report.write()
}

struct Row {
    cores: usize,
    /// In the order of the names.
    seconds: Vec<f64>,
    /// How many times as long as the last: median, and in words.
    ratios: Vec<(f64, String)>,
    splits: String,
}

fn measure(settings: &Settings, shape: Shape) -> Result<Row, Box<dyn std::error::Error>> {
    let (model, batch, cores) = (shape.lstm()?, shape.batch, settings.cores());
    let plan = tuned(&model, (batch, shape.steps), cores, settings.tuning(4.0))?.plan;
    let configuration = &plan.entries[0].configuration;
    let gemms = Gemm::of_each(cores)?;
    let mut all = Runner::new(&model, &plan)?;
    let x = all.x().to_vec();
    let expected = Expected::new(&model, batch, &x)?;
    expected.check("all", all.y(), 0.0)?;
    let mut by_gemm = LstmByGemm::of_each(&model, &gemms, batch, &x, &expected)?;
    let mut nests = Vec::new();
    for mapping in [Mapping::Rotated, Mapping::Kept] {
        let how = (configuration.threads, mapping, &configuration.layers[0]);
        let mut nest = Nest::new(&model, how, batch, &x)?;
        nest.run()?;
        if nest.y != all.y() {
            return Err(format!("{mapping:?} differs from the session").into());
        }
        nests.push(nest);
    }
    let splits: Vec<Split> = by_gemm.iter().map(LstmByGemm::split).collect();
    let mut contenders: Vec<Contender<'_>> = Vec::new();
    for lstm in &mut by_gemm {
        contenders.push(Contender::timing_itself("", || lstm.run()));
    }
    for nest in &mut nests {
        contenders.push(Contender::timing_itself("", || {
            nest.run().unwrap_or_default()
        }));
    }
    contenders.push(all.contender(""));
    let times = settings.rounds().race(&mut contenders);
    let (all, opponents) = times.split_last().ok_or("no contender")?;
    let ratios = opponents.iter().map(|times| times.over(all));
    Ok(Row {
        cores: configuration.threads,
        seconds: times.iter().map(|times| times.median()).collect(),
        ratios: ratios.map(|ratio| (ratio.median, ratio.text())).collect(),
        splits: format!("{splits:?}"),
    })
}
