//! Text as a plan: its form only. Whether it fits the model and the machine is asked afterwards.
//!
//! Nothing is allocated for a number that the file names, only for what it holds: a plan takes a
//! few times the bytes of its text.

use super::lines::{Significant, Tokens, corrupt, excerpt, number};
use super::{FORMAT, PlanFileError};
use crate::plan::stamp::Sum;
use crate::plan::{
    Configuration, Cost, DirectionPlan, Entry, InputProjectionBy, LayerPlan, Measured, OwnersShare,
    Partition, Plan, Stamp,
};
use crate::schedule::{DirectionSchedule, PanelOrder};
use gatestream_kernels::{Blocking, Prefetch, Stripes};

/// What a file starts with, before the version.
const HEADING: &[u8] = b"gatestream plan ";
/// The same, and that of the plan of a graph, before the library was renamed.
const FORMER_HEADINGS: [&[u8]; 2] = [b"cellstream plan ", b"cellstream network plan "];
/// What some editors put before a text in UTF-8.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();
/// Longest file.
pub(super) const MAX_BYTES: u64 = 16 << 20;
/// Most entries: comparing each with each stays a matter of milliseconds.
pub(super) const MAX_ENTRIES: u64 = 1024;

/// What stands in a file.
pub(super) struct Parsed<'a> {
    /// The lines that say which model, with their numbers.
    pub model: Vec<(usize, &'a str)>,
    /// The version of the kernels.
    pub kernels: u32,
    /// The fields of the stamp, in its order.
    pub machine: Vec<&'a str>,
    /// The plan, its entries in ascending order of their sizes.
    pub plan: Plan,
    /// Whether the sum is right, or waived.
    pub checksum: Result<Checksum, PlanFileError>,
}

/// A sum that does not stand in the way.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Checksum {
    Right,
    /// `none`: edited by hand.
    Waived,
}

const MODEL: &str = "`model HASH`";
const PRECISION: &str = "`precision NAME`";
const LAYERS: &str = "`layers N`";
const SHAPE: &str = "`layer N: SHAPE`, one for each layer";
const KERNELS: &str = "`kernels N`";
const NEXT: &str = "`batch N steps N` or `checksum SUM`";
const ENTRY: &str = "`batch N steps N`, N up to 4294967295";
const LARGER: &str = "an entry of more sequences, or as many and more steps, than the one before";
const FEWER: &str = "at most 1024 entries";
const TEAM: &str = "`threads N row_groups N`";
const COST: &str = "`cost_ns N spread_ns N`";
const RUNNER_UP: &str = "`runner_up cost_ns N spread_ns N: WORDS`";
const LAYER: &str = "`layer N chunk N ahead owners|rows N owners_share 0..8/8 order \
    cyclic|serpentine`, layers counted from 0";
const DIRECTION: &str = "`direction N SCHEDULE stripes 1|2 tile_rows N prefetch off|many|all \
    units A..B … [projection A..B …]`, N counted from 0";
const CHECKSUM: &str = "`checksum SUM`, SUM 16 hexadecimal digits or `none`";
const END: &str = "nothing after the checksum";

/// Reads all of a file.
pub(super) fn file<'a>(bytes: &'a [u8], here: &Stamp) -> Result<Parsed<'a>, PlanFileError> {
    let text = heading(bytes)?;
    let mut lines = Significant::of(text);
    lines.next();
    let (number, layers) = {
        let mut model = vec![lines.line(MODEL, |t| t.keyword("model")?.text())?];
        model.push(lines.line(PRECISION, |t| t.keyword("precision")?.text())?);
        let mut count = 0;
        let of_layers = |t: &mut Tokens| {
            count = t.named::<u64>("layers")?;
            Some("")
        };
        model.push(lines.line(LAYERS, of_layers)?);
        for _ in 0..count {
            model.push(lines.line(SHAPE, |t| t.keyword("layer")?.text())?);
        }
        (lines.read(KERNELS, |t| t.named("kernels"))?, model)
    };
    let mut machine = Vec::new();
    for (name, _) in here.fields() {
        machine.push(lines.read(name, |t| t.keyword(name)?.text())?);
    }
    let mut entries: Vec<Entry> = Vec::new();
    while lines.starts_with("batch") {
        let (at, entry) = (lines.peeked_number(), entry(&mut lines)?);
        let size = |entry: &Entry| (entry.batch, entry.steps);
        let refused = match entries.last() {
            Some(last) if size(last) >= size(&entry) => Some(LARGER),
            _ if entries.len() as u64 == MAX_ENTRIES => Some(FEWER),
            _ => None,
        };
        if let Some(expected) = refused {
            let found = format!("batch {} steps {}", entry.batch, entry.steps);
            return Err(corrupt(at, expected, &found));
        }
        entries.push(entry);
    }
    if !lines.starts_with("checksum") {
        return Err(lines.unexpected(NEXT));
    }
    let checksum = checksum(&mut lines)?;
    match lines.peek() {
        None => {}
        Some(_) => return Err(lines.unexpected(END)),
    }
    Ok(Parsed {
        model: layers,
        kernels: number,
        machine,
        plan: Plan { entries },
        checksum,
    })
}

/// The sum of a file's lines, up to its checksum.
pub(super) fn sum(text: &str) -> Sum {
    let mut lines = Significant::of(text);
    while lines.next().is_some() {}
    lines.sum
}

impl Plan {
    /// Whether a file that starts so is a plan, of a stack or of a graph, of the time before the
    /// library was renamed.
    pub fn is_of_former_name(start: &[u8]) -> bool {
        FORMER_HEADINGS
            .iter()
            .any(|heading| start.starts_with(heading))
    }
}

/// Checks the first line and that all is text.
fn heading(bytes: &[u8]) -> Result<&str, PlanFileError> {
    let first = bytes.split(|&byte| byte == b'\n').next().unwrap_or(bytes);
    let first = first.strip_suffix(b"\r").unwrap_or(first);
    if Plan::is_of_former_name(first) {
        return Err(PlanFileError::FormerName);
    }
    let Some(version) = first.strip_prefix(HEADING) else {
        return Err(no_heading(bytes, first));
    };
    match str::from_utf8(version).ok().and_then(number::<u64>) {
        Some(FORMAT) => {}
        Some(found) if found > 0 => return Err(PlanFileError::Format { found }),
        _ => {
            let found = String::from_utf8_lossy(first);
            return Err(corrupt(1, "`gatestream plan 2`", &found));
        }
    }
    str::from_utf8(bytes).map_err(|error| {
        let good = &bytes[..error.valid_up_to()];
        let line = 1 + good.iter().filter(|&&byte| byte == b'\n').count();
        let text = bytes.split(|&byte| byte == b'\n').nth(line - 1);
        let found = String::from_utf8_lossy(text.unwrap_or_default());
        corrupt(line, "text in UTF-8", &found)
    })
}

/// Why a file does not start as one must: the line tells a plan from all other files, so nothing
/// may stand above it.
fn no_heading(bytes: &[u8], first: &[u8]) -> PlanFileError {
    if bytes.trim_ascii().is_empty() {
        return PlanFileError::Empty;
    }
    let unmarked = bytes.strip_prefix(BYTE_ORDER_MARK);
    let text = unmarked.unwrap_or(bytes);
    let lines = text.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
    let meaning = |(_, line): &(usize, &[u8])| !(line.is_empty() || line.starts_with(b"#"));
    match lines.enumerate().find(meaning) {
        Some((_, line)) if line.starts_with(HEADING) && unmarked.is_some() => {
            PlanFileError::ByteOrderMark
        }
        Some((0, line)) if line.starts_with(HEADING) => {
            let found = String::from_utf8_lossy(first);
            corrupt(1, "`gatestream plan 2` with no space before it", &found)
        }
        Some((index, line)) if line.starts_with(HEADING) => {
            PlanFileError::Heading { line: index + 1 }
        }
        _ => {
            let found = excerpt(&String::from_utf8_lossy(first));
            PlanFileError::NotAPlan { found }
        }
    }
}

fn entry(lines: &mut Significant) -> Result<Entry, PlanFileError> {
    let (batch, steps) = lines.read(ENTRY, |t| Some((t.size("batch")?, t.size("steps")?)))?;
    let (threads, row_groups) =
        lines.read(TEAM, |t| Some((t.size("threads")?, t.size("row_groups")?)))?;
    let mut measured = None;
    if lines.starts_with("cost_ns") {
        let median = lines.read(COST, cost)?;
        let mut runner_up = None;
        if lines.starts_with("runner_up") {
            runner_up = Some(lines.read(RUNNER_UP, |t| {
                let (figures, words) = t.keyword("runner_up")?.rest()?.split_once(':')?;
                let mut figures = Tokens { rest: figures };
                let time = cost(&mut figures).filter(|_| figures.is_done())?;
                Some((unescaped(words.strip_prefix(' ').unwrap_or(words))?, time))
            })?);
        }
        measured = Some(Measured {
            cost: median,
            runner_up,
        });
    }
    let mut layers: Vec<LayerPlan> = Vec::new();
    while lines.starts_with("layer") {
        let index = layers.len();
        layers.push(layer(lines, index)?);
    }
    Ok(Entry {
        batch,
        steps,
        configuration: Configuration {
            threads,
            row_groups,
            layers,
        },
        measured,
    })
}

fn layer(lines: &mut Significant, index: usize) -> Result<LayerPlan, PlanFileError> {
    let mut layer = lines.read(LAYER, |t| {
        (t.size("layer")? == index).then_some(())?;
        Some(LayerPlan {
            chunk_steps: t.size("chunk")?,
            ahead: match t.keyword("ahead")?.word()? {
                "owners" => InputProjectionBy::Owners,
                "rows" => InputProjectionBy::Rows {
                    workers: t.number()?,
                    owners_share: {
                        let eighths = t.keyword("owners_share")?.word()?.strip_suffix("/8")?;
                        OwnersShare::of_eighths(eighths.parse().ok()?)?
                    },
                },
                _ => return None,
            },
            order: match t.keyword("order")?.word()? {
                "cyclic" => PanelOrder::Cyclic,
                "serpentine" => PanelOrder::Serpentine,
                _ => return None,
            },
            directions: Vec::new(),
        })
    })?;
    while lines.starts_with("direction") {
        let index = layer.directions.len();
        layer.directions.push(lines.read(DIRECTION, |t| {
            (t.size("direction")? == index).then_some(())?;
            let schedule: DirectionSchedule = t.word()?.parse().ok()?;
            let blocking = blocking(t)?;
            let units = t.keyword("units")?.ranges()?;
            let projected = if t.is_done() {
                vec![0..0; units.len()]
            } else {
                t.keyword("projection")?.ranges()?
            };
            let partition = Partition { units, projected };
            Some(DirectionPlan {
                schedule,
                partition,
                blocking,
            })
        })?);
    }
    Ok(layer)
}

fn blocking(tokens: &mut Tokens) -> Option<Blocking> {
    Some(Blocking {
        stripes: match tokens.size("stripes")? {
            1 => Stripes::One,
            2 => Stripes::Two,
            _ => return None,
        },
        tile_rows: tokens.size("tile_rows")?,
        prefetch: match tokens.keyword("prefetch")?.word()? {
            "off" => Prefetch::Off,
            "many" => Prefetch::ManyPasses,
            "all" => Prefetch::AllPasses,
            _ => return None,
        },
    })
}

fn cost(tokens: &mut Tokens) -> Option<Cost> {
    Some(Cost {
        median_ns: tokens.named("cost_ns")?,
        spread_ns: tokens.named("spread_ns")?,
    })
}

fn checksum(lines: &mut Significant) -> Result<Result<Checksum, PlanFileError>, PlanFileError> {
    let found = format!("{:016x}", lines.sum);
    let line = lines.peeked_number();
    let written = lines.read(CHECKSUM, |t| {
        let sum = t.keyword("checksum")?.word()?;
        let hexadecimal = sum.len() == 16 && sum.bytes().all(|b| b.is_ascii_hexdigit());
        (hexadecimal || sum == "none").then_some(sum)
    })?;
    if written == "none" {
        return Ok(Ok(Checksum::Waived));
    }
    if written.eq_ignore_ascii_case(&found) {
        return Ok(Ok(Checksum::Right));
    }
    let written = written.to_string();
    Ok(Err(PlanFileError::Checksum {
        line,
        written,
        found,
    }))
}

/// Undoes [`crate::plan::stamp::escaped`].
fn unescaped(line: &str) -> Option<String> {
    let mut parts = line.split('\\');
    let mut text = parts.next()?.to_string();
    for part in parts {
        let (code, rest) = part.strip_prefix("u{")?.split_once('}')?;
        let code = u32::from_str_radix(code, 16).ok()?;
        text.push(char::from_u32(code)?);
        text += rest;
    }
    Some(text)
}
