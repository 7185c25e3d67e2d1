//! Figures as SVG: lines in panels, and groups of bars. The legend stands beside, never on, the data.

use std::ops::Range;
use std::path::Path;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter};
use plotters::prelude::*;

/// How an axis is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// From zero, in equal steps.
    Linear,
    /// In equal steps, no farther than the data.
    Near,
    /// Equal ratios.
    Log,
}

/// One axis.
#[derive(Clone, Debug)]
pub struct Axis {
    /// What it shows, with the unit.
    pub label: String,
    /// How it is divided.
    pub scale: Scale,
}

impl Axis {
    /// An axis in equal steps.
    pub fn linear(label: &str) -> Axis {
        let label = label.to_string();
        let scale = Scale::Linear;
        Axis { label, scale }
    }

    /// An axis in equal steps that need not begin at zero. Not for bars.
    pub fn near(label: &str) -> Axis {
        let label = label.to_string();
        let scale = Scale::Near;
        Axis { label, scale }
    }

    /// An axis in equal ratios.
    pub fn log(label: &str) -> Axis {
        let label = label.to_string();
        let scale = Scale::Log;
        Axis { label, scale }
    }
}

/// Points with a name.
#[derive(Clone, Debug)]
pub struct Line {
    /// The same name has the same colour in all panels.
    pub name: String,
    /// From left to right.
    pub points: Vec<(f64, f64)>,
}

/// One diagram of a figure.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Above it.
    pub title: String,
    /// Horizontal; a tick at every point.
    pub x: Axis,
    /// Vertical.
    pub y: Axis,
    /// What is drawn.
    pub lines: Vec<Line>,
}

/// Bars with a name, one per group.
#[derive(Clone, Debug)]
pub struct Bars {
    /// For the legend.
    pub name: String,
    /// One per group; those that are not finite are left out.
    pub values: Vec<f64>,
}

impl Bars {
    /// Names with their values.
    pub fn of_each<N: Into<String>>(all: impl IntoIterator<Item = (N, Vec<f64>)>) -> Vec<Bars> {
        let named = all.into_iter().map(|(name, values)| Bars {
            name: name.into(),
            values,
        });
        named.collect()
    }
}

type Drawn = Result<(), Box<dyn std::error::Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// Colours that are told apart by most people, whatever their sight (Okabe and Ito).
const COLOURS: [RGBColor; 9] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(213, 94, 0),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
    RGBColor(190, 170, 20),
    RGBColor(60, 20, 90),
];
const LEGEND: u32 = 225;
const TITLE: u32 = 34;

fn colour(index: usize) -> RGBColor {
    COLOURS[index % COLOURS.len()]
}

/// Draws panels side by side.
///
/// # Errors
/// The file cannot be written.
pub fn lines(path: &Path, title: &str, panels: &[Panel]) -> Drawn {
    let mut names: Vec<&str> = Vec::new();
    for line in panels.iter().flat_map(|panel| &panel.lines) {
        if !names.contains(&&*line.name) {
            names.push(&line.name);
        }
    }
    let each = if panels.len() == 1 { 600 } else { 400 };
    let width = each * panels.len() as u32 + LEGEND;
    let root = SVGBackend::new(path, (width, 360)).into_drawing_area();
    let area = frame(&root, title, &names)?;
    for (panel, area) in panels.iter().zip(area.split_evenly((1, panels.len()))) {
        let points = || panel.lines.iter().flat_map(|line| &line.points);
        let xs = points().map(|p| p.0).collect();
        let ys = points().map(|p| p.1).collect();
        let x = at_points(panel.x.scale, xs);
        let y = ticks(panel.y.scale, ys);
        let chart = Chart {
            area: &area,
            title: &panel.title,
            x_label: &panel.x.label,
            y_label: &panel.y.label,
            tick: &number,
        };
        let marks = Marks::Lines(&panel.lines, &names);
        draw(chart, x, y, marks)?;
    }
    root.present()?;
    Ok(())
}

/// Draws groups of bars, each bar's height from the axis' low end.
///
/// # Errors
/// The file cannot be written.
pub fn bars(path: &Path, title: &str, y: &Axis, groups: &[String], bars: &[Bars]) -> Drawn {
    let names: Vec<&str> = bars.iter().map(|bars| &*bars.name).collect();
    // Room for the bars, and for the longest label below them.
    let letters = groups.iter().map(|group| group.chars().count()).max();
    let each = (14 * bars.len() + 24).max(7 * letters.unwrap_or(0) + 10) as u32;
    let width = (each * groups.len() as u32 + 90).max(420) + LEGEND;
    let root = SVGBackend::new(path, (width, 380)).into_drawing_area();
    let area = frame(&root, title, &names)?;
    let values = bars.iter().flat_map(|bars| &bars.values).copied();
    let y_axis = ticks(y.scale, values.filter(|v| v.is_finite()).collect());
    let middle: Vec<f64> = (0..groups.len()).map(|group| group as f64 + 0.5).collect();
    let tick = |at: &f64| groups.get(*at as usize).cloned().unwrap_or_default();
    let chart = Chart {
        area: &area,
        title: "",
        x_label: "",
        y_label: &y.label,
        tick: &tick,
    };
    let x = Ticked {
        scale: Scale::Linear,
        ends: (0.0, groups.len() as f64),
        ticks: middle,
    };
    draw(chart, x, y_axis, Marks::Bars(bars))?;
    root.present()?;
    Ok(())
}

/// White ground, title and legend; what is left of the area.
fn frame<'a>(
    root: &Area<'a>,
    title: &str,
    names: &[&str],
) -> Result<Area<'a>, Box<dyn std::error::Error>> {
    root.fill(&WHITE)?;
    let (width, _) = root.dim_in_pixel();
    let text = |size: u32| ("sans-serif", size).into_font().color(&BLACK);
    root.draw(&Text::new(title.to_string(), (14, 10), text(17)))?;
    let left = (width - LEGEND + 6) as i32;
    for (index, name) in names.iter().enumerate() {
        let y = (TITLE + 18) as i32 + 20 * index as i32;
        let corners = [(left, y), (left + 14, y + 10)];
        root.draw(&Rectangle::new(corners, colour(index).filled()))?;
        root.draw(&Text::new(name.to_string(), (left + 20, y - 1), text(13)))?;
    }
    let (_, below) = root.split_vertically(TITLE);
    let (area, _) = below.split_horizontally(width - LEGEND);
    Ok(area)
}

struct Chart<'a, 'b> {
    area: &'a Area<'b>,
    title: &'a str,
    x_label: &'a str,
    y_label: &'a str,
    tick: &'a dyn Fn(&f64) -> String,
}

enum Marks<'a> {
    Lines(&'a [Line], &'a [&'a str]),
    Bars(&'a [Bars]),
}

/// An axis with its ends and its ticks.
struct Ticked {
    scale: Scale,
    ends: (f64, f64),
    ticks: Vec<f64>,
}

impl Ranged for Ticked {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let (low, high) = self.ends;
        let part = match self.scale {
            Scale::Linear | Scale::Near => (value - low) / (high - low),
            Scale::Log => (value / low).ln() / (high / low).ln(),
        };
        limit.0 + (part * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.ends.0..self.ends.1
    }
}

impl ValueFormatter<f64> for Ticked {
    fn format(value: &f64) -> String {
        number(value)
    }
}

fn draw(chart: Chart<'_, '_>, x: Ticked, y: Ticked, marks: Marks<'_>) -> Drawn {
    let floor = y.ends.0;
    let mut builder = ChartBuilder::on(chart.area);
    builder
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(62);
    if !chart.title.is_empty() {
        builder.caption(chart.title, ("sans-serif", 15));
    }
    let mut context = builder.build_cartesian_2d(x, y)?;
    let mut mesh = context.configure_mesh();
    let (tick, y_tick) = (|at: &f64| (chart.tick)(at), |at: &f64| number(at));
    mesh.disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.15))
        .x_labels(60)
        .y_labels(60)
        .x_label_formatter(&tick)
        .y_label_formatter(&y_tick)
        .x_desc(chart.x_label)
        .y_desc(chart.y_label)
        .label_style(("sans-serif", 12))
        .axis_desc_style(("sans-serif", 13))
        .draw()?;
    match marks {
        Marks::Lines(lines, names) => {
            for line in lines {
                let index = names.iter().position(|name| *name == line.name);
                let style = colour(index.unwrap_or(0)).stroke_width(2);
                context.draw_series(LineSeries::new(line.points.iter().copied(), style))?;
                let dot = |&at: &(f64, f64)| Circle::new(at, 3, style.filled());
                context.draw_series(line.points.iter().map(dot))?;
            }
        }
        Marks::Bars(all) => {
            let width = 0.84 / all.len() as f64;
            for (index, bars) in all.iter().enumerate() {
                let values = bars.values.iter().enumerate();
                let rectangles =
                    values
                        .filter(|(_, value)| value.is_finite())
                        .map(|(group, &value)| {
                            let left = group as f64 + 0.08 + width * index as f64;
                            let corners = [(left, floor), (left + width, value)];
                            Rectangle::new(corners, colour(index).filled())
                        });
                context.draw_series(rectangles)?;
            }
        }
    }
    Ok(())
}

/// Whole numbers without a point, others with as many digits as tell them apart.
fn number(value: &f64) -> String {
    match value {
        v if *v >= 1.0 && (v - v.round()).abs() < 1e-9 => format!("{v:.0}"),
        v if *v == 0.0 => "0".to_string(),
        v => {
            let digits = (2.0 - v.abs().log10().floor()).clamp(0.0, 6.0) as usize;
            let text = format!("{v:.digits$}");
            text.trim_end_matches('0').trim_end_matches('.').to_string()
        }
    }
}

/// A range that holds all `values`, with a tick at each.
fn at_points(scale: Scale, mut values: Vec<f64>) -> Ticked {
    values.sort_unstable_by(f64::total_cmp);
    values.dedup();
    let (low, high) = (
        values.first().copied().unwrap_or(1.0),
        values.last().copied().unwrap_or(1.0),
    );
    let ends = match scale {
        Scale::Log => (low / 1.15, high * 1.15),
        Scale::Linear | Scale::Near => {
            let margin = 0.05 * (high - low).max(1.0);
            (low - margin, high + margin)
        }
    };
    Ticked {
        scale,
        ends,
        ticks: values,
    }
}

/// A range with round ends that holds all `values`, and its ticks.
fn ticks(scale: Scale, values: Vec<f64>) -> Ticked {
    let high = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let low = values
        .iter()
        .copied()
        .filter(|v| *v > 0.0)
        .fold(high, f64::min);
    let (ends, ticks) = match scale {
        Scale::Linear | Scale::Near => {
            let from = if scale == Scale::Near { low } else { 0.0 };
            let rough = ((high - from) / 6.0).max(1e-3 * high);
            let power = 10_f64.powf(rough.log10().floor());
            let step = [1.0, 2.0, 5.0, 10.0].map(|s| s * power);
            let step = step.into_iter().find(|s| *s >= rough).unwrap_or(rough);
            let first = (0.98 * from / step).floor() as usize;
            let last = (1.02 * high / step).ceil() as usize;
            let at = |index: usize| step * index as f64;
            ((at(first), at(last)), (first..=last).map(at).collect())
        }
        Scale::Log => {
            let ends = (low / 1.3, high * 1.2);
            let decades = (ends.1 / ends.0).log10();
            let digits: &[f64] = if decades > 2.5 {
                &[1.0]
            } else {
                &[1.0, 2.0, 5.0]
            };
            let first = ends.0.log10().floor() as i32;
            let last = ends.1.log10().ceil() as i32;
            let powers = (first..=last).map(|power| 10_f64.powi(power));
            let all = powers.flat_map(|power| digits.iter().map(move |digit| digit * power));
            (
                ends,
                all.filter(|t| (ends.0..=ends.1).contains(t))
                    .collect::<Vec<_>>(),
            )
        }
    };
    Ticked { scale, ends, ticks }
}
