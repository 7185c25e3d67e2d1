"""The precisions that a run can have: what counts as a wrong answer in each, and which libraries lack it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from exact import Error
from suites import Row


@dataclass(frozen=True)
class Precision:
    """One for a whole run: every library but our own f32 is in it."""

    name: str  # as the command line of gatestream has it
    tolerance: str
    judge: Callable[[Row, Error], str | None]  # what is wrong with an answer, if something is

    @property
    def reduced(self) -> bool:
        return self.name != "f32"


# Every library must be this near to f64, in the largest absolute difference. Outputs lie within ±1;
# f32 sums of a few thousand terms over hundreds of steps err by about 1e-6. A product taken in bf16
# errs by 1e-3, a wrong gate or an ignored length by more: there is nothing between.
NEAR = 5e-5

# Reduced answers err by what rounding leaves, relative to the RMS of the output, since outputs of random
# networks shrink with their size: bf16 by 0.3 to 0.5 %, int8 by 0.2 to 1 %, with static scales to 9 %. Two
# gates of a GRU exchanged err by 13 %, a missing recurrent product by 17 to 39 %, others of an LSTM exchanged
# or a wrong transposition by more than 100 %.
RIGHT = {"bf16": 0.02, "int8": 0.1}

# Below this, relative to the same, nothing was rounded: f32 errs by 1e-6 at most, reduced weights by 1e-4 at
# least. Some libraries quietly run in f32 what they have no reduced form of.
NOT_REDUCED = 1e-5


def exactly(_: Row, error: Error) -> str | None:
    return "wrong output" if error.most > NEAR else None


def within(limit: float) -> Callable[[Row, Error], str | None]:
    def judge(row: Row, error: Error) -> str | None:
        if not error.relative <= limit:
            return "wrong output"
        # A single unit's weights are multiples of their own scale: `call-floor` may well be exact.
        reduced = error.relative >= NOT_REDUCED or not row.counts
        return None if reduced else "as exact as f32, so not reduced"

    return judge


PRECISIONS = {"f32": Precision("f32", f"{NEAR}", exactly)} | {
    name: Precision(name, f"an RMS of {limit} of the output's", within(limit)) for name, limit in RIGHT.items()
}


# Why a library has no part in a precision: of what its sources say and, where it takes such a file at all, of
# what it did with one. Keys are precision and library, and the cell where only one is missing.
WITHOUT = {
    ("bf16", "onnxruntime"): "no bf16 LSTM or GRU on CPUs: it finds no implementation for either",
    ("bf16", "tract"): "no bf16",
    ("bf16", "rten"): "no bf16",
    ("bf16", "candle"): "no bf16 products on CPUs: it widens both sides to f32 at each call",
    ("bf16", "tensorflow"): "asked for f32 only here",
    ("int8", "onnxruntime", "gru"): "no int8 GRU: its quantizer leaves GRU in f32",
    ("int8", "openvino", "gru"): "no int8 GRU with the reset after the product: its compiler fails on one",
    ("int8", "tract"): "no int8 LSTM or GRU: it does not know DynamicQuantizeLSTM",
    ("int8", "rten", "gru"): "no int8 GRU",
    ("int8", "candle"): "no int8 LSTM or GRU",
    ("int8", "tensorflow"): "asked for f32 only here",
}
