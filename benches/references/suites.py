"""Which networks are compared: rows of the suites table1, models and sweep."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Stack:
    """Equal layers on top of each other, as one torch.nn.LSTM or GRU holds them."""

    input: int
    hidden: int
    layers: int = 1
    bidirectional: bool = False

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def output(self) -> int:
        return self.hidden * self.directions

    def layer_input(self, layer: int) -> int:
        return self.input if layer == 0 else self.output


@dataclass(frozen=True)
class Row:
    """One line of the table: a network and the size of a request."""

    name: str
    cell: str  # "lstm", or "gru" with the reset after the product
    stacks: tuple[Stack, ...]
    batch: int
    steps: int
    group: str
    note: str = ""
    lengths: tuple[int, ...] | None = None  # steps of each sequence; all of them where None
    counts: bool = True  # in the geometric means

    @property
    def input(self) -> int:
        return self.stacks[0].input

    @property
    def output(self) -> int:
        return self.stacks[-1].output

    @property
    def gates(self) -> int:
        return {"lstm": 4, "gru": 3}[self.cell]

    @property
    def useful_steps(self) -> int:
        """Steps of all sequences, padding not counted."""
        return sum(self.lengths) if self.lengths else self.batch * self.steps

    @property
    def flops(self) -> float:
        """Of all matrix products, on padding too: two per weight and step."""
        weights = sum(
            (stack.layer_input(layer) + stack.hidden) * stack.hidden * stack.directions
            for stack in self.stacks
            for layer in range(stack.layers)
        )
        return 2.0 * self.gates * weights * self.batch * self.steps

    def as_message(self) -> dict:
        """The message to a worker."""
        return {
            "name": self.name,
            "cell": self.cell,
            "batch": self.batch,
            "steps": self.steps,
            "lengths": self.lengths,
            "input": self.input,
            "output": self.output,
            "stacks": [vars(stack) for stack in self.stacks],
        }


def simple(cell: str, e: int, h: int, b: int, t: int, group: str, note: str = "", **stack) -> Row:
    """A row of one stack, named after its numbers."""
    made = Stack(e, h, **stack)
    layers = f"{made.layers}x" if made.layers > 1 else ""
    both = "-bi" if made.bidirectional else ""
    name = f"{cell}-{e}-{layers}{h}{both}-b{b}-t{t}"
    return Row(name, cell, (made,), b, t, group, note)


# What one call costs in each library: a network of a single unit. Most of the peers are called from
# Python, ours from Rust; this row says how much of a short row's time is the call and no arithmetic.
def call_floor() -> Row:
    row = simple("lstm", 1, 1, 1, 1, "call", "the call itself, no work to speak of")
    return Row("call-floor", row.cell, row.stacks, 1, 1, row.group, row.note, counts=False)


def table1() -> list[Row]:
    """DeepCPU (Zhang et al., USENIX ATC 2018), Table 1: input, hidden, batch, steps."""
    shapes = [
        (64, 64, 1, 100), (256, 64, 1, 100), (1024, 64, 1, 100), (64, 256, 1, 100),
        (64, 1024, 1, 100), (1024, 1024, 1, 100), (256, 256, 1, 1), (256, 256, 1, 10),
        (256, 256, 1, 100), (64, 64, 10, 100), (64, 64, 20, 100), (256, 256, 10, 100),
        (256, 256, 20, 100), (1024, 1024, 10, 100), (1024, 1024, 20, 100),
    ]  # fmt: skip

    def group(h: int, b: int) -> str:
        if b > 1:
            return "batch 10 and 20"
        return "batch 1, hidden <= 256" if h <= 256 else "batch 1, hidden 1024"

    rows = [simple(c, e, h, b, t, group(h, b)) for c in ("lstm", "gru") for e, h, b, t in shapes]
    return [call_floor(), *rows]


def models() -> list[Row]:
    """Recurrent parts of models that papers and libraries are measured with."""
    paper = "DeepCPU Table 2"
    rows = [
        # Text similarity: source and target are encoded alike, 20 words each.
        simple("gru", 200, 512, 1, 20, "TS", f"{paper}: text similarity", bidirectional=True),
        simple("gru", 200, 512, 33, 20, "TS", "its Table 4: 33 documents", bidirectional=True),
        simple("gru", 200, 256, 1, 20, "ASR", f"{paper}: question", bidirectional=True),
        simple("gru", 200, 256, 10, 100, "ASR", f"{paper}: contexts", bidirectional=True),
        simple("lstm", 50, 100, 1, 15, "BiDAF", f"{paper}: phrases, question", bidirectional=True),
        simple("lstm", 50, 100, 1, 100, "BiDAF", f"{paper}: phrases, context", bidirectional=True),
        simple("lstm", 800, 100, 1, 100, "BiDAF", f"{paper}: modeling", layers=2, bidirectional=True),
        simple("lstm", 1400, 100, 1, 100, "BiDAF", f"{paper}: output", bidirectional=True),
    ]
    # E-BATCH's Table 1 says GRU, 5 layers, 800 units and no direction: the first row takes that as it
    # stands, the second has both directions in every layer, as in Deep Speech 2. Input: the 1312
    # features (32 channels x 41 frequencies) that its convolutions leave. 200 of 10 to 1800 steps.
    ds2 = "DeepSpeech2, E-BATCH Table 1"
    rows.append(simple("gru", 1312, 800, 1, 200, "DeepSpeech2", ds2, layers=5))
    rows.append(simple("gru", 1312, 800, 1, 200, "DeepSpeech2", ds2, layers=5, bidirectional=True))
    # GNMT's encoder: both directions in the first of its layers only. Without its residual sums.
    encoder = (Stack(1024, 1024, bidirectional=True), Stack(2048, 1024), Stack(1024, 1024, 6))
    for batch in (1, 10):
        name = f"gnmt-encoder-8x1024-b{batch}-t30"
        rows.append(Row(name, "lstm", encoder, batch, 30, "GNMT", "Wu et al. 2016, encoder"))
    return rows + onednn()


def onednn() -> list[Row]:
    """Shapes of oneDNN's benchdnn lists (tests/benchdnn/inputs/rnn, at August 2026), LSTM and LBR GRU.

    Left out: shapes whose state and hidden sizes differ (sic != dhc: single cells of a network cut in
    pieces, no LSTM by itself), batches of 640 and 896 over long sequences, training, vanilla RNN.
    """
    group, rows = "benchdnn", []
    for t in (10, 50, 101):
        rows.append(simple("lstm", 256, 256, 1, t, group, "option_set_gnmt_encoder", bidirectional=True))
        rows.append(simple("lstm", 512, 512, 1, t, group, "option_set_gnmt_encoder"))
    rows += [
        simple("lstm", 512, 512, 1, 30, group, "shapes_inference: GNMT_enc"),
        simple("lstm", 1024, 1024, 1, 30, group, "shapes_inference: GNMT_enc", layers=7),
        simple("gru", 1760, 1760, 1, 50, group, "shapes_deepspeech_2"),
        simple("gru", 1760, 1760, 1, 200, group, "shapes_deepspeech_2"),
        simple("lstm", 500, 500, 1, 50, group, "shapes_inference: pytorch_testcase"),
        simple("lstm", 128, 128, 1, 629, group, "shapes_inference: paddlepaddle_testcase"),
        simple("lstm", 512, 128, 1, 10, group, "shapes_inference: exp-0"),
        simple("lstm", 320, 320, 896, 1, group, "shapes_rnn_t: prediction"),
        simple("lstm", 16, 16, 12, 3, group, "shapes_small", layers=8),
        simple("lstm", 36, 36, 20, 3, group, "shapes_small", layers=4),
        simple("lstm", 32, 16, 6, 2, group, "shapes_small"),
        simple("gru", 16, 16, 12, 10, group, "shapes_small_gru", layers=14),
        simple("gru", 17, 17, 10, 14, group, "shapes_small_gru", layers=10),
        simple("gru", 32, 32, 7, 7, group, "shapes_small_gru", layers=5),
        simple("gru", 36, 36, 8, 6, group, "shapes_small_gru"),
        simple("lstm", 64, 64, 63, 1, group, "shapes_large"),
        simple("lstm", 65, 65, 34, 1, group, "shapes_large"),
        simple("lstm", 128, 64, 19, 1, group, "shapes_large"),
        simple("gru", 64, 64, 65, 1, group, "shapes_large_gru"),
        simple("gru", 128, 128, 17, 1, group, "shapes_large_gru"),
        simple("gru", 65, 65, 100, 1, group, "shapes_large_gru"),
    ]
    return rows


HIDDEN = (16, 17, 24, 32, 33, 48, 64, 100, 128, 192, 250, 256, 300, 384, 500, 512, 768, 1000, 1024, 1536, 2048)
BATCH = (2, 3, 4, 5, 7, 8, 10, 13, 16, 17, 20, 32, 33, 64)
STEPS = (1, 2, 3, 5, 10, 30, 50, 200, 500)


def sweep(lengths: Path | None) -> list[Row]:
    """One size at a time around 256 units, one sequence, 100 steps; then corners and ragged lengths."""
    rows = [call_floor()]
    rows += [simple(cell, h, h, 1, 100, "hidden") for cell in ("lstm", "gru") for h in HIDDEN]
    rows += [simple("lstm", 256, 256, b, 100, "batch") for b in BATCH]
    rows += [simple("gru", 256, 256, b, 100, "batch") for b in (3, 8, 17, 64)]
    rows += [simple("lstm", 256, 256, 1, t, "steps") for t in STEPS]
    rows += [simple("gru", 256, 256, 1, t, "steps") for t in (1, 10, 500)]
    corners = [
        (16, 16, 64, 500), (16, 16, 64, 1), (33, 17, 5, 30), (17, 250, 3, 30), (100, 300, 7, 50), (33, 500, 33, 10),
        (1000, 1000, 5, 10), (2048, 2048, 1, 1), (2048, 2048, 4, 10), (2048, 2048, 64, 5), (64, 2048, 16, 10),
    ]  # fmt: skip
    rows += [simple(c, e, h, b, t, "corner") for c in ("lstm", "gru") for e, h, b, t in corners]
    return rows + ragged(lengths)


RAGGED = 32  # sequences


def ragged(file: Path | None) -> list[Row]:
    """32 sequences of the lengths of real sentences, and as many of their mean length."""
    lengths = lengths_from(file) if file else default_lengths()
    steps, mean = max(lengths), round(sum(lengths) / len(lengths))
    both, rows = (Stack(512, 512, bidirectional=True),), []
    source = str(file.name) if file else "lengths by formula"
    for cell in ("lstm", "gru"):
        name = f"{cell}-512-512-bi-b{RAGGED}"
        rows.append(Row(f"{name}-ragged", cell, both, RAGGED, steps, "ragged", source, tuple(lengths)))
        # Not in the means: it is there for the ragged row's rate to be compared with.
        note = "the ragged rows' mean length"
        rows.append(Row(f"{name}-equal", cell, both, RAGGED, mean, "equal", note, counts=False))
    return rows


def default_lengths() -> list[int]:
    """Without a file: quantiles of a log-normal of median 13.5 and sigma 0.6, about those of words per
    sentence in WMT22 German-English (mean 15.7, p99 46), dealt out in a fixed order."""
    quantiles = [(i + 0.5) / RAGGED for i in range(RAGGED)]
    lengths = [max(1, round(13.5 * math.exp(0.6 * normal_quantile(q)))) for q in quantiles]
    return [lengths[(i * 11) % RAGGED] for i in range(RAGGED)]  # 11 and 32 have no common factor


def normal_quantile(q: float) -> float:
    from statistics import NormalDist

    return NormalDist().inv_cdf(q)


def lengths_from(file: Path) -> list[int]:
    """The first column of whole numbers in a CSV, every n-th line so that the whole file is covered."""
    with file.open(newline="") as lines:
        found = []
        for fields in csv.reader(lines):
            whole = [int(field) for field in fields if field.strip().isdigit()]
            if whole and whole[0] > 0:
                found.append(whole[0])
    if len(found) < RAGGED:
        raise SystemExit(f"{file}: {len(found)} lines with a length; give {RAGGED} or more")
    return found[:: len(found) // RAGGED][:RAGGED]


def self_check() -> list[Row]:
    """A few seconds: both cells, a stack, both directions, unequal lengths; not for figures."""
    both = (Stack(5, 9, 2, True),)
    return [
        simple("lstm", 8, 16, 1, 5, "check"),
        simple("gru", 7, 17, 3, 4, "check"),
        Row("lstm-5-2x9-bi-b3-ragged", "lstm", both, 3, 6, "check", lengths=(6, 2, 4)),
    ]


def rows_of(suite: str, lengths: Path | None) -> list[Row]:
    """The rows of a suite by its name."""
    made = {"table1": table1, "models": models, "sweep": lambda: sweep(lengths), "self-check": self_check}
    return made[suite]()


SUITES = ("table1", "models", "sweep")
