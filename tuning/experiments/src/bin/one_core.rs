//! What binds each row of Table 1 on one core.
//!
//! Question: how much of a run's time on one core would be left if nothing but its products were
//! done, or nothing but its weights read, or nothing but its arithmetic at the peak?
//!
//! Method: the estimate's plan on one core. Beside the whole run, in turn, in rounds, each on
//! memory of its own of the same size:
//!
//! ```text
//! arithmetic  as many multiply-adds, all in registers
//! reading     the same weights as often, panel after panel, to and fro where the plan goes so:
//!             those taken ahead once a chunk, the recurrent ones at each step; where none are
//!             taken ahead, a panel of each in turn
//! in tiles    the same, in the order in which the run's tiles go through the panels
//! products    the same products with the same tiles, without the gates
//! gates       the gates of all steps
//! floor       phase by phase what takes longer: ahead of the steps arithmetic or reading, in each
//!             step likewise, in tiles
//! ```
//!
//! Everything is made anew several times, since which pages weights come to lie in moves times.
//!
//! Reading: all columns are parts of the run's time. Where "products" and "gates" add up to 1
//! nothing is lost between them; where "floor" is near "products", the tiles are as good as can be.

use std::hint::black_box;
use std::ops::Range;

use clap::Parser;
use gatestream::plan::LayerPlan;
use gatestream::schedule::PanelOrder;
use gatestream::{Model, Plan};
use gatestream_experiments::Outcome;
use gatestream_experiments::nest::sweep;
use gatestream_experiments::report::{Report, ms};
use gatestream_experiments::rounds::{Contender, Rounds, Times};
use gatestream_experiments::runner::Runner;
use gatestream_experiments::settings::Settings;
use gatestream_experiments::shapes::{Shape, TABLE1, numbers};
use gatestream_kernels::probe::fma_chains;
use gatestream_kernels::simd::Simd;
use gatestream_kernels::{
    Activation, Aligned, Blocking, Columns, GateJob, GateKernel, GruFunctions, Isa, Kernels,
    LstmFunctions, NextProduct, PackedMatrix, Product, RowsRef, Scratch, Shared, SharedRows,
    Source, Start, Sweep, Values, Visitor, dispatch, kernels, zeroed,
};

/// What binds each row of Table 1 on one core
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    settings: Settings,
    /// Times everything is made anew
    #[arg(long, default_value_t = 3)]
    packings: usize,
    /// Only rows with this in their name, as in lstm-64-256
    #[arg(long)]
    rows: Option<String>,
}

/// The contenders beside the run, in the order of the columns.
const PARTS: [&str; 6] = [
    "arithmetic",
    "reading",
    "in tiles",
    "products",
    "gates",
    "floor",
];

fn main() -> Outcome {
    let arguments = Arguments::parse();
    let settings = &arguments.settings;
    let question = "Table 1 on one core: parts of the run's time";
    let columns = ["row", "plan", "run, ms"]
        .into_iter()
        .chain(PARTS)
        .collect::<Vec<&str>>();
    let mut report = Report::new(settings, "one_core", question, &columns)?;
    for gates in [4, 3] {
        for shape in settings.cut(&TABLE1, 2) {
            let cell = if gates == 4 { "lstm" } else { "gru" };
            let Shape { input, hidden, .. } = shape;
            let name = format!("{cell}-{input}-{hidden}-b{}-t{}", shape.batch, shape.steps);
            if arguments.rows.as_ref().is_some_and(|r| !name.contains(r)) {
                continue;
            }
            let model = if gates == 4 {
                shape.lstm()
            } else {
                shape.gru()
            }?;
            let plan = Plan::estimate(&model, shape.batch, shape.steps, 1);
            let times = race(&model, &plan, *shape, settings.rounds(), arguments.packings)?;
            let layer = &plan.entries[0].configuration.layers[0];
            let order = match layer.order {
                PanelOrder::Cyclic => "cyclic",
                PanelOrder::Serpentine => "serpentine",
            };
            let mut cells = vec![
                name,
                format!("{order}, {}", layer.chunk_steps),
                ms(times[0].median()),
            ];
            cells.extend(times[1..].iter().map(|part| part.over(&times[0]).text()));
            report.row(cells);
        }
    }
    report.write()
}

/// Times of the run and of its parts.
fn race(
    model: &Model,
    plan: &Plan,
    shape: Shape,
    rounds: Rounds,
    packings: usize,
) -> Result<Vec<Times>, Box<dyn std::error::Error>> {
    let packings = packings.max(1);
    let rounds = rounds.shared_out(packings);
    let mut sum: Option<Vec<Times>> = None;
    for _ in 0..packings {
        let mut runner = Runner::new(model, plan)?;
        let parts = || Parts::new(model, &plan.entries[0].configuration.layers[0], shape);
        let mut all = [parts()?, parts()?, parts()?, parts()?, parts()?, parts()?];
        let mut contenders = vec![runner.contender("run")];
        let works: [fn(&mut Parts); 6] = [
            Parts::arithmetic,
            Parts::reading,
            Parts::in_tiles,
            Parts::products,
            Parts::gates,
            Parts::floor,
        ];
        for ((parts, work), name) in all.iter_mut().zip(works).zip(PARTS) {
            contenders.push(Contender::new(name, move || work(parts)));
        }
        let times = rounds.race(&mut contenders);
        sum = Some(match sum {
            None => times,
            Some(before) => before
                .into_iter()
                .zip(times)
                .map(|(a, b)| a.and(b))
                .collect(),
        });
    }
    Ok(sum.unwrap_or_default())
}

/// Weights to be read: of the size of packed ones.
struct Panels {
    values: Values,
    /// Values of a panel.
    panel: usize,
    gates: usize,
}

impl Panels {
    fn like(weights: &PackedMatrix) -> Panels {
        let mut values = Values::zeroed(weights.bytes() / 4);
        values.fill(1.0);
        Panels {
            panel: values.len() / weights.panels(),
            values,
            gates: weights.gates(),
        }
    }

    /// Reads all panels, `width` of them side by side.
    fn read(&self, isa: Isa, sweep: Sweep, width: usize) {
        self.read_of(isa, 0..self.values.len() / self.panel, sweep, width);
    }

    fn read_of(&self, isa: Isa, of: Range<usize>, sweep: Sweep, width: usize) {
        let read = Read {
            panels: self,
            of,
            back: sweep == Sweep::Back,
            width,
        };
        // The instruction set is one that `Isa::select` gave.
        let done = dispatch(isa, read);
        debug_assert!(done.is_ok());
    }
}

struct Read<'a> {
    panels: &'a Panels,
    of: Range<usize>,
    back: bool,
    width: usize,
}

impl Visitor for Read<'_> {
    type Out = ();
    fn visit<S: Simd>(self, s: S) {
        let Read {
            panels,
            of,
            back,
            width,
        } = self;
        let mut lanes = [0.0f32; 64];
        s.vectorize(
            #[inline(always)]
            || {
                let values = black_box(&panels.values[..]);
                let mut all = s.splat_i32(0);
                let mut left = of.len();
                while left > 0 {
                    let mut width = width;
                    while width > left {
                        width /= 2;
                    }
                    let first = if back {
                        of.start + left - width
                    } else {
                        of.end - left
                    };
                    let tile = &values[first * panels.panel..][..width * panels.panel];
                    let sum = match (width, panels.gates) {
                        (1, _) => read_tile::<S, 1, 8>(s, tile),
                        (2, 3) => read_tile::<S, 2, 3>(s, tile),
                        (2, _) => read_tile::<S, 2, 4>(s, tile),
                        (_, 3) => read_tile::<S, 4, 3>(s, tile),
                        _ => read_tile::<S, 4, 4>(s, tile),
                    };
                    all = s.add_i32(all, sum);
                    left -= width;
                }
                s.store(s.from_bits(all), &mut lanes);
            },
        );
        black_box(lanes);
    }
}

/// `ROW` vectors of each of `P` panels in turn, as a tile of products goes through them; of a
/// single panel more than a step at a time, so that the loop itself takes no part of the time.
#[inline(always)]
fn read_tile<S: Simd, const P: usize, const ROW: usize>(s: S, tile: &[f32]) -> S::I32 {
    let panel = tile.len() / P;
    let mut sums = [[s.splat_i32(0); ROW]; P];
    for at in 0..panel / (ROW * S::LANES) {
        for (p, sums) in sums.iter_mut().enumerate() {
            for (n, sum) in sums.iter_mut().enumerate() {
                let from = p * panel + (at * ROW + n) * S::LANES;
                // SAFETY: that is within panel `p`.
                let vector = unsafe { s.load_ptr(tile.as_ptr().add(from)) };
                *sum = s.add_i32(*sum, s.to_bits(vector));
            }
        }
    }
    let mut all = s.splat_i32(0);
    for sums in sums {
        for sum in sums {
            all = s.add_i32(all, sum);
        }
    }
    all
}

/// The work of one layer on one core.
struct Parts {
    shape: Shape,
    isa: Isa,
    kernels: Box<dyn Kernels>,
    order: PanelOrder,
    is_ahead: bool,
    /// Steps of all runs so far.
    taken: usize,
    chunk: usize,
    gates: usize,
    w: PackedMatrix,
    u: PackedMatrix,
    read_w: Panels,
    read_u: Panels,
    /// Steps of all multiply-add chains per flop.
    chain_flops: f64,
    bias: Aligned,
    x: Vec<f32>,
    y: Vec<f32>,
    z: Aligned,
    h: [Aligned; 2],
    c: Aligned,
}

impl Parts {
    fn new(
        model: &Model,
        plan: &LayerPlan,
        shape: Shape,
    ) -> Result<Parts, Box<dyn std::error::Error>> {
        let isa = Isa::select()?;
        let kernels = kernels(isa)?;
        let lanes = kernels.lanes();
        let weights = model.layers()[0].directions()[0].weights();
        let Shape {
            input,
            hidden,
            batch,
            steps,
        } = shape;
        let gates = plan.directions[0].schedule.input.len();
        let places: Vec<usize> = (0..gates).collect();
        let pack = |numbers, depth| {
            let source = Source {
                numbers,
                depth,
                units: hidden,
            };
            PackedMatrix::new(lanes, source, &places, 0..hidden, Blocking::default())
        };
        let w = pack(weights.input.numbers(), input);
        let u = pack(weights.recurrent.numbers(), hidden);
        let chunk = plan.chunk_steps.clamp(1, steps);
        let row = u.panels() * 4 * lanes;
        let state = || zeroed(batch * hidden.next_multiple_of(16));
        Ok(Parts {
            shape,
            isa,
            kernels,
            order: plan.order,
            is_ahead: plan.directions[0].schedule.is_ahead(),
            taken: 0,
            chunk,
            gates,
            read_w: Panels::like(&w),
            read_u: Panels::like(&u),
            w,
            u,
            chain_flops: fma_chains(isa, 1)? as f64,
            bias: zeroed(row),
            x: numbers(steps * batch * input),
            y: vec![0.0; steps * batch * hidden],
            z: zeroed(chunk * batch * row),
            h: [state(), state()],
            c: state(),
        })
    }

    fn flops(&self, weights: &PackedMatrix, rows: usize) -> f64 {
        (weights.bytes() / 2) as f64 * rows as f64
    }

    fn chains(&self, flops: f64) {
        let steps = (flops / self.chain_flops).round() as u64;
        // As above.
        let done = fma_chains(self.isa, steps);
        debug_assert!(done.is_ok());
    }

    fn chunks(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (steps, chunk) = (self.shape.steps, self.chunk);
        (0..steps)
            .step_by(chunk)
            .map(move |first| (first, chunk.min(steps - first)))
    }

    fn arithmetic(&mut self) {
        let rows = self.shape.steps * self.shape.batch;
        self.chains(self.flops(&self.w, rows) + self.flops(&self.u, rows));
    }

    fn reading(&mut self) {
        self.read(1, 1);
    }

    fn in_tiles(&mut self) {
        let (ahead, step) = self.widths();
        self.read(ahead, step);
    }

    /// Panels that tiles take side by side, ahead of the steps and in them.
    fn widths(&self) -> (usize, usize) {
        let tile = |rows: usize, sweep| width(rows, self.gates, sweep);
        let batch = self.shape.batch;
        let ahead = tile(self.chunk * batch, Sweep::Wide);
        (ahead, tile(batch, sweep(self.order, 0)))
    }

    fn read(&mut self, ahead: usize, step: usize) {
        for (first, count) in self.chunks() {
            if !self.is_ahead {
                self.read_together();
                continue;
            }
            self.read_w.read(self.isa, Sweep::Wide, ahead);
            for at in first..first + count {
                self.read_u.read(self.isa, sweep(self.order, at), step);
            }
        }
    }

    /// The panels of a step that takes nothing ahead, in its order.
    fn together(&mut self) -> (Sweep, impl Iterator<Item = Range<usize>> + use<>) {
        let (count, sweep) = (self.u.panels(), sweep(self.order, self.taken));
        self.taken += 1;
        let panels = (0..count).map(move |at| match sweep {
            Sweep::Back => count - 1 - at,
            Sweep::Wide | Sweep::Forth => at,
        });
        (sweep, panels.map(|panel| panel..panel + 1))
    }

    fn read_together(&mut self) {
        let (sweep, panels) = self.together();
        for panel in panels {
            self.read_w.read_of(self.isa, panel.clone(), sweep, 1);
            self.read_u.read_of(self.isa, panel, sweep, 1);
        }
    }

    /// Which of the two takes longer is seen from the operations per byte: 4 is where a core's
    /// arithmetic takes as long as its reads from L3 or L2, within a factor of two.
    fn floor(&mut self) {
        let batch = self.shape.batch;
        let (ahead, step) = self.widths();
        for (first, count) in self.chunks() {
            if !self.is_ahead && batch < 4 {
                self.read_together();
                continue;
            }
            if count * batch >= 4 {
                self.chains(self.flops(&self.w, count * batch))
            } else {
                self.read_w.read(self.isa, Sweep::Wide, ahead)
            }
            for at in first..first + count {
                if batch >= 4 {
                    self.chains(self.flops(&self.u, batch))
                } else {
                    self.read_u.read(self.isa, sweep(self.order, at), step)
                }
            }
        }
    }

    fn products(&mut self) {
        let Shape {
            input,
            hidden,
            batch,
            ..
        } = self.shape;
        let row = self.u.panels() * 4 * self.kernels.lanes();
        let (input_slots, state_slots): (&[usize], &[usize]) = match self.gates {
            4 => (&[0, 1, 2, 3], &[0, 1, 2, 3]),
            _ => (&[0, 1, 2], &[0, 1, 3]),
        };
        for (first, count) in self.chunks() {
            let (together, blocks) = if self.is_ahead {
                (None, None)
            } else {
                let (sweep, panels) = self.together();
                (Some(sweep), Some(panels))
            };
            let all = 0..self.u.panels();
            let blocks: Vec<_> = blocks.map_or(vec![all], Iterator::collect);
            for of in blocks {
                let product = Product {
                    rows: RowsRef::contiguous(&self.x[first * batch * input..], input),
                    order: None,
                    row_count: count * batch,
                    weights: &self.w,
                    slots: input_slots,
                    start: Start::Bias(&self.bias),
                    z: &mut self.z,
                    z_slots: 4,
                    sweep: together.unwrap_or(Sweep::Wide),
                    blocking: Blocking::default(),
                    next: NextProduct::NONE,
                };
                self.kernels.product_of(product, of.clone(), Scratch::NONE);
                for step in 0..count {
                    let product = Product {
                        rows: RowsRef::contiguous(&self.h[step % 2], hidden.next_multiple_of(16)),
                        order: None,
                        row_count: batch,
                        weights: &self.u,
                        slots: state_slots,
                        start: Start::Continue,
                        z: &mut self.z[step * batch * row..],
                        z_slots: 4,
                        sweep: together.unwrap_or(sweep(self.order, first + step)),
                        blocking: Blocking::default(),
                        next: NextProduct::NONE,
                    };
                    self.kernels.product_of(product, of.clone(), Scratch::NONE);
                }
            }
        }
    }

    fn gates(&mut self) {
        let Shape { hidden, batch, .. } = self.shape;
        let row = self.u.panels() * 4 * self.kernels.lanes();
        let [h0, h1] = &mut self.h;
        let h = [Shared::new(h0), Shared::new(h1)];
        let (c, y) = (Shared::new(&mut self.c), Shared::new(&mut self.y));
        let stride = hidden.next_multiple_of(16);
        let state = |memory| Columns::new(SharedRows::contiguous(memory, stride), 0);
        let (steps, chunk) = (self.shape.steps, self.chunk);
        for step in 0..steps {
            let z = &self.z[step % chunk * batch * row..];
            let y = SharedRows::contiguous(y, hidden).every(step * batch, 1);
            let y = Some(Columns::new(y, 0));
            let (before, after) = (state(h[step % 2]), state(h[(step + 1) % 2]));
            // SAFETY: one thread, and the states are different buffers.
            unsafe {
                match self.gates {
                    4 => self.kernels.gates(
                        GateKernel::Lstm(LstmFunctions {
                            gate: Activation::Sigmoid,
                            candidate: Activation::Tanh,
                            output: Activation::Tanh,
                            input_forget: false,
                            clip: None,
                            output_clip: None,
                        }),
                        GateJob {
                            z,
                            rows: batch,
                            units: hidden,
                            peepholes: None,
                            before,
                            c: state(c),
                            h: after,
                            y,
                            child: None,
                        },
                    ),
                    _ => self.kernels.gates(
                        GateKernel::Gru(GruFunctions {
                            gate: Activation::Sigmoid,
                            candidate: Activation::Tanh,
                            clip: None,
                        }),
                        GateJob {
                            z,
                            rows: batch,
                            units: hidden,
                            peepholes: None,
                            before,
                            c: state(c),
                            h: after,
                            y,
                            child: None,
                        },
                    ),
                }
            }
        }
    }
}

/// Panels that the kernels' tiles take side by side with AVX-512.
fn width(rows: usize, gates: usize, sweep: Sweep) -> usize {
    let room = 24 / gates;
    let height = rows.div_ceil(rows.div_ceil(room.min(6)));
    let mut width = 4;
    while width > 1 {
        let wider_than_needed = sweep != Sweep::Wide && height * (width / 2) * gates >= 8;
        if height * width <= room && !wider_than_needed {
            break;
        }
        width /= 2;
    }
    width
}
