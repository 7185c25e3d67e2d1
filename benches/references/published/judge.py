"""Whether a file's answers are right, by ONNX Runtime's answers and by a reference that is nearer to the truth.

- f32 files: each output within TOLERANCE of ONNX Runtime's, relative to the output's largest value. A network that
  amplifies rounding more than that is compared in float64, which PyTorch computes of the same weights: our error may
  be at most twice ONNX Runtime's.
- int8 files: libraries round activations differently. The reference is the f32 twin of the graph (dequantized.py);
  our root-mean-square error may be at most 1.5 times ONNX Runtime's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

TOLERANCE = 1e-4


@dataclass(frozen=True)
class Verdict:
    """The difference from ONNX Runtime, both errors against the reference where there is one, and the judgement."""

    difference: float
    ours: float | None
    theirs: float | None
    right: bool


def difference(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> float:
    """The largest, relative to the largest value of its output; infinite where shapes differ."""
    worst = 0.0
    for a, b in zip(one, other, strict=True):
        if a.shape != b.shape or not np.isfinite(a.astype(np.float64)).all():
            return float("inf")
        if a.size:
            scale = max(1.0, float(np.abs(b.astype(np.float64)).max()))
            worst = max(worst, float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max()) / scale)
    return worst


def error(one: Sequence[np.ndarray], reference: Sequence[np.ndarray]) -> float:
    """Root mean square over all outputs; of integers the share of values that differ."""
    squares = [
        np.mean(a != b) ** 2 if a.dtype.kind in "iub" else np.mean((a.astype(np.float64) - b) ** 2)
        for a, b in zip(one, reference, strict=True)
    ]
    return float(np.sqrt(np.mean(squares)))


def judge(
    ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray], reference: Sequence[np.ndarray] | None, int8: bool
) -> Verdict:
    """Of one file."""
    apart = difference(ours, theirs)
    if reference is None or not np.isfinite(apart):
        return Verdict(apart, None, None, apart <= TOLERANCE)
    our_error, their_error = error(ours, reference), error(theirs, reference)
    allowed = (1.5 if int8 else 2) * their_error
    return Verdict(apart, our_error, their_error, apart <= TOLERANCE or our_error <= allowed)
