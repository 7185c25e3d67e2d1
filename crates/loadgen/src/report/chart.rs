//! Charts: latency against the rate of requests (figures 7, 8, 13 to 15 of Gao et al. 2018), and
//! distributions (figure 9).
//!
//! SVG without a text backend needs no fonts; widths of letters are estimated.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::{Row, distributions, fractions};
use crate::policy::ComparedPolicy;
use crate::sweep::Measurement;
use gatestream_command::Failure;
use gatestream_serve::policy::PolicyKind;

/// The line of one target: its points in the order of the load.
#[derive(Clone, Debug)]
struct Line {
    target: String,
    /// Abscissa; lower end of the bar, ordinate, upper end of the bar.
    points: Vec<(f64, [f64; 3])>,
}

/// One diagram.
struct Panel {
    title: String,
    x: String,
    y: String,
    /// Whether the horizontal and the vertical axis are logarithmic.
    log: (bool, bool),
    lines: Vec<Line>,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// A palette for all kinds of colour vision (Okabe and Ito). A policy has one colour in all charts;
/// targets elsewhere are black.
fn colour(target: &str) -> RGBColor {
    let Ok(policy) = target.parse::<ComparedPolicy>() else {
        return RGBColor(0, 0, 0);
    };
    match policy {
        ComparedPolicy::Engine(PolicyKind::Cellular) => RGBColor(0, 114, 178),
        ComparedPolicy::Engine(PolicyKind::Shortest) => RGBColor(86, 180, 233),
        ComparedPolicy::Engine(PolicyKind::EBatch) => RGBColor(204, 121, 167),
        ComparedPolicy::Padding => RGBColor(230, 159, 0),
        ComparedPolicy::Bucketing => RGBColor(0, 158, 115),
        ComparedPolicy::Merge => RGBColor(213, 94, 0),
        ComparedPolicy::Ideal => RGBColor(90, 90, 90),
    }
}

/// Draws the 90th percentile of latency against the rate at which requests were sent, with bars
/// from the median to the 99th percentile. Beyond the peak of a target, the rate of answers stays
/// or falls; the rate of requests does not, so that no line turns back. Users of a closed loop send
/// at the rate of answers.
///
/// # Errors
/// The file cannot be written.
pub fn write_curves(path: &Path, title: &str, rows: &[&Row<'_>]) -> Result<(), Failure> {
    let panel = Panel {
        title: String::new(),
        x: "requests per second".into(),
        y: "latency, ms: p90; bars p50 to p99".into(),
        log: (false, true),
        lines: curves(rows),
    };
    write(path, title, &[panel])
}

fn curves(rows: &[&Row<'_>]) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for row in rows {
        // Zero has no place on a logarithmic axis.
        if row.latency_ms.p50 <= 0.0 {
            continue;
        }
        let latency = [row.latency_ms.p50, row.latency_ms.p90, row.latency_ms.p99];
        let point = (row.rate.unwrap_or(row.throughput), latency);
        match lines.iter_mut().find(|line| line.target == row.target) {
            Some(line) => line.points.push(point),
            None => lines.push(Line {
                target: row.target.clone(),
                points: vec![point],
            }),
        }
    }
    for line in &mut lines {
        line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    lines
}

/// Draws the distributions of queueing and of computing at one point.
///
/// # Errors
/// The file cannot be written.
pub fn write_distributions(
    path: &Path,
    title: &str,
    at_point: &[&Measurement],
) -> Result<(), Failure> {
    let panel = |wanted: &str| {
        let line = |measured: &&Measurement| {
            let all = measured.all();
            let times = distributions(&all)
                .into_iter()
                .find(|(name, _)| *name == wanted);
            let points = fractions().into_iter().filter_map(|fraction| {
                // Times below 10 µs are not distinguished.
                let ms = times.as_ref()?.1.quantile(fraction).max(0.01);
                Some((ms, [100.0 * fraction; 3]))
            });
            Line {
                target: measured.about.name.clone(),
                points: points.collect(),
            }
        };
        Panel {
            title: wanted.into(),
            x: "ms".into(),
            y: "% of requests".into(),
            log: (true, false),
            lines: at_point.iter().map(line).collect(),
        }
    };
    write(path, title, &[panel("queueing"), panel("computing")])
}

fn write(path: &Path, title: &str, panels: &[Panel]) -> Result<(), Failure> {
    let mut svg = String::new();
    if let Err(error) = draw(&mut svg, title, panels) {
        return Err(Failure::new(format!("cannot be drawn: {error}")).of(path));
    }
    std::fs::write(path, svg).map_err(|error| Failure::from(error).of(path))
}

const LEGEND: u32 = 110;
const TITLE: u32 = 34;
const MAX_DOTS: usize = 100;

fn draw(svg: &mut String, title: &str, panels: &[Panel]) -> Drawn {
    let each = if panels.len() == 1 { 620 } else { 420 };
    let width = each * panels.len() as u32 + LEGEND;
    let root = SVGBackend::with_string(svg, (width, 400)).into_drawing_area();
    root.fill(&WHITE)?;
    let text = |size: u32| ("sans-serif", size).into_font().color(&BLACK);
    root.draw(&Text::new(title.to_string(), (14, 10), text(16)))?;
    // The legend is beside the data.
    let mut targets: Vec<&str> = Vec::new();
    for line in panels.iter().flat_map(|panel| &panel.lines) {
        if !targets.contains(&&*line.target) {
            targets.push(&line.target);
        }
    }
    let left = (width - LEGEND + 4) as i32;
    for (index, target) in targets.iter().enumerate() {
        let y = (TITLE + 18) as i32 + 20 * index as i32;
        let corners = [(left, y), (left + 14, y + 10)];
        root.draw(&Rectangle::new(corners, colour(target).filled()))?;
        root.draw(&Text::new(*target, (left + 20, y - 1), text(13)))?;
    }
    let (_, below) = root.split_vertically(TITLE);
    let (area, _) = below.split_horizontally(width - LEGEND);
    for (panel, area) in panels.iter().zip(area.split_evenly((1, panels.len()))) {
        draw_panel(panel, &area)?;
    }
    root.present()?;
    Ok(())
}

fn draw_panel(panel: &Panel, area: &Area<'_>) -> Drawn {
    let points = || panel.lines.iter().flat_map(|line| &line.points);
    let xs = points().map(|point| point.0);
    let ys = points().flat_map(|point| point.1);
    let (x, y) = (Axis::over(panel.log.0, xs), Axis::over(panel.log.1, ys));
    let mut builder = ChartBuilder::on(area);
    builder
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(58);
    if !panel.title.is_empty() {
        builder.caption(&panel.title, ("sans-serif", 14));
    }
    // Logarithmic and linear axes have one type, because values are mapped here.
    let mut context = builder.build_cartesian_2d(x.range(), y.range())?;
    let at = |across: f64, up: f64| (x.place(across), y.place(up));
    context
        .configure_mesh()
        .disable_mesh()
        .disable_axes()
        .x_desc(&panel.x)
        .y_desc(&panel.y)
        .axis_desc_style(("sans-serif", 13))
        .draw()?;
    let plot = context.plotting_area().clone();
    let grid = BLACK.mix(0.13).stroke_width(1);
    let (left, bottom) = (x.range().start, y.range().start);
    let (right, top) = (x.range().end, y.range().end);
    for tick in y.ticks() {
        let tick = y.place(tick);
        plot.draw(&PathElement::new([(left, tick), (right, tick)], grid))?;
    }
    for tick in x.ticks() {
        let tick = x.place(tick);
        plot.draw(&PathElement::new([(tick, bottom), (tick, top)], grid))?;
    }
    let frame = BLACK.mix(0.5).stroke_width(1);
    plot.draw(&PathElement::new(
        [(left, top), (left, bottom), (right, bottom)],
        frame,
    ))?;
    // Labels are outside the plot, in pixels of the whole area.
    use plotters::style::text_anchor::{HPos, Pos, VPos};
    let style = ("sans-serif", 12).into_font().color(&BLACK);
    let (below, beside) = (
        Pos::new(HPos::Center, VPos::Top),
        Pos::new(HPos::Right, VPos::Center),
    );
    let pixel = |place: (f64, f64)| {
        let ((px, py), (ax, ay)) = (plot.map_coordinate(&place), area.get_base_pixel());
        (px - ax, py - ay)
    };
    for tick in x.ticks() {
        let (px, py) = pixel((x.place(tick), bottom));
        area.draw(&Text::new(number(tick), (px, py + 6), style.pos(below)))?;
    }
    for tick in y.ticks() {
        let (px, py) = pixel((left, y.place(tick)));
        area.draw(&Text::new(number(tick), (px - 6, py), style.pos(beside)))?;
    }
    // Targets at one rate have nearly equal throughput: their bars are moved apart, not their
    // points.
    let (wide, _) = plot.dim_in_pixel();
    let apart = 4.0 * (right - left) / f64::from(wide.max(1));
    let middle = panel.lines.len().saturating_sub(1) as f64 / 2.0;
    for (index, line) in panel.lines.iter().enumerate() {
        let colour = colour(&line.target);
        let path = line
            .points
            .iter()
            .map(|&(across, [_, up, _])| at(across, up));
        context.draw_series(LineSeries::new(path, colour.stroke_width(2)))?;
        let aside = (index as f64 - middle) * apart;
        // A distribution has too many points for dots.
        let dots = line.points.len() <= MAX_DOTS;
        for &(across, [low, up, high]) in line.points.iter().filter(|_| dots) {
            let end = |up| (x.place(across) + aside, y.place(up));
            let bar = colour.mix(0.55).stroke_width(1);
            plot.draw(&PathElement::new([end(low), end(high)], bar))?;
            plot.draw(&Circle::new(at(across, up), 3, colour.filled()))?;
        }
    }
    Ok(())
}

/// An axis with its ends.
#[derive(Clone, Copy, Debug)]
struct Axis {
    log: bool,
    low: f64,
    high: f64,
}

impl Axis {
    /// Over all values, which must be above 0 for a logarithmic axis. A linear axis begins at 0.
    fn over(log: bool, values: impl Iterator<Item = f64>) -> Axis {
        let finite: Vec<f64> = values.filter(|v| v.is_finite()).collect();
        let max = finite.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let min = finite.iter().copied().fold(max, f64::min);
        let (low, high) = if log {
            (min / 1.2, max * 1.2)
        } else {
            (0.0, max * 1.04)
        };
        Axis { log, low, high }
    }

    fn place(&self, value: f64) -> f64 {
        if self.log { value.ln() } else { value }
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.place(self.low)..self.place(self.high)
    }

    /// Round numbers, four to a dozen.
    fn ticks(&self) -> Vec<f64> {
        let inside = |tick: &f64| (self.low..=self.high).contains(tick);
        if self.log {
            let digits: &[f64] = match (self.high / self.low).log10() {
                d if d > 4.0 => &[1.0],
                d if d > 1.0 => &[1.0, 2.0, 5.0],
                _ => &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0],
            };
            let powers = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
            let all = powers.flat_map(|power| digits.iter().map(move |d| d * 10_f64.powi(power)));
            return all.filter(inside).collect();
        }
        let rough = self.high / 7.0;
        let power = 10_f64.powf(rough.log10().floor());
        let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * power);
        let step = steps
            .into_iter()
            .find(|step| *step >= rough)
            .unwrap_or(rough);
        let all = (0..20).map(|n| f64::from(n) * step);
        all.filter(inside).collect()
    }
}

/// Without trailing zeros.
fn number(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let digits = (1.0 - value.abs().log10().floor()).clamp(0.0, 6.0) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').into()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::row::tests::{context, measured};

    #[test]
    fn ticks_are_round_and_few() {
        for (low, high) in [
            (1.0, 2.0),
            (0.3, 7.0),
            (5.0, 4000.0),
            (0.01, 1e5),
            (1.0, 1.01),
        ] {
            for log in [false, true] {
                let axis = Axis::over(log, [low, high].into_iter());
                let ticks = axis.ticks();
                assert!(
                    (1..=14).contains(&ticks.len()),
                    "{log} {low} {high}: {ticks:?}"
                );
                assert!(ticks.is_sorted());
                for tick in ticks {
                    let digits = tick / 10_f64.powf(tick.log10().floor()) * 10.0;
                    assert!(
                        tick == 0.0 || (digits - digits.round()).abs() < 1e-6,
                        "{tick}"
                    );
                    assert!((number(tick).parse::<f64>().unwrap() - tick).abs() <= 1e-9 * tick);
                }
            }
        }
        assert_eq!(
            [0.05, 1.5, 20.0, 3000.0].map(number),
            ["0.05", "1.5", "20", "3000"]
        );
    }

    /// The folder for charts; the variable keeps them for inspection.
    fn folder() -> std::path::PathBuf {
        let folder = std::env::var_os("GATESTREAM_FIGURES").map(std::path::PathBuf::from);
        folder.unwrap_or_else(std::env::temp_dir)
    }

    #[test]
    fn every_policy_has_its_line_and_its_name() {
        let context = context();
        let policies = [
            ComparedPolicy::CELLULAR,
            ComparedPolicy::Padding,
            ComparedPolicy::Merge,
        ];
        let all: Vec<_> = (policies.iter().enumerate())
            .flat_map(|(index, &policy)| {
                [1.0, 1.5, 3.0, 8.0].map(|load| {
                    let mut one = measured(policy, load);
                    // Later policies are faster; beyond a load of 3 answers become fewer.
                    let answered = if load > 3.0 { 0.5 } else { load };
                    for round in &mut one.rounds {
                        round.window = round.window.div_f64(answered * (1.0 + index as f64));
                    }
                    one
                })
            })
            .collect();
        let rows: Vec<_> = all.iter().map(|m| Row::new(&context, m)).collect();
        let rows: Vec<_> = rows.iter().collect();
        let lines = curves(&rows);
        assert!(
            lines
                .iter()
                .map(|line| &*line.target)
                .eq(policies.map(ComparedPolicy::name))
        );
        assert!(lines.iter().all(|line| line.points.len() == 4));
        for line in &lines {
            assert!(
                line.points
                    .iter()
                    .map(|point| point.0)
                    .eq([1.0, 1.5, 3.0, 8.0])
            );
        }

        let id = std::process::id();
        let path = folder().join(format!("gatestream-load-curves-{id}.svg"));
        write_curves(&path, "lstm & <paper>", &rows).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        assert!(svg.contains("lstm &amp; &lt;paper&gt;"));
        for policy in policies {
            let RGBColor(r, g, b) = colour(policy.name());
            let hex = format!("#{r:02X}{g:02X}{b:02X}");
            let lines = svg
                .lines()
                .filter(|l| l.contains("<polyline") && l.contains(&hex))
                .count();
            // The curve, and a bar for each of its points.
            assert_eq!(lines, 5, "{policy}");
            assert!(svg.contains(policy.name()));
        }
        assert!(!svg.contains("bucketing"));
        let cdf = folder().join(format!("gatestream-load-cdf-{id}.svg"));
        write_distributions(&cdf, "lstm at 8/s", &[&all[8]]).unwrap();
        let svg = std::fs::read_to_string(&cdf).unwrap();
        assert!(svg.contains("queueing") && svg.contains("computing"));
        if std::env::var_os("GATESTREAM_FIGURES").is_none() {
            std::fs::remove_file(path).unwrap();
            std::fs::remove_file(cdf).unwrap();
        }
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let path = Path::new("/nowhere/at/all.svg");
        let error = write_curves(path, "", &[]).unwrap_err().to_string();
        assert!(error.contains("/nowhere/at/all.svg"), "{error}");
    }
}
