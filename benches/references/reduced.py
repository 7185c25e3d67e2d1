"""What only runs of a reduced precision have to say: errors beside times, and what it brings over our f32."""

from __future__ import annotations

from peers import OURS, OURS_F32
from report import Result, by_parts

# The library that also quantises dynamically, for every cell: the aim is an error no greater than its error.
MEASURE = "pytorch"


def errors(results: list[Result], names: list[str]) -> list[str]:
    """A second table: how far each library's output is from f64."""
    shown = [name for name in names if name != OURS_F32]
    widths = [max(19, len(name) + 2) for name in shown]
    heads = "".join(f"{name:>{width}}" for name, width in zip(shown, widths, strict=True))
    lines = ["", f"{'RMS (and largest) error to f64':<36}{heads}"]
    for result in results:
        cells = ""
        for name, width in zip(shown, widths, strict=True):
            error = result.errors.get(name)
            text = f"{error.rms:.2e} ({error.most:.1e})" if error else "–"
            cells += f"{text:>{width}}"
        lines.append(f"{result.row.name:<36}{cells}")
    return lines


def gains(results: list[Result]) -> list[str]:
    """Our own f32, tuned as well and timed in the same rounds, over ours."""
    lines = by_parts(results, lambda result: result.gain)
    return ["", "geometric means of our own f32 / ours:", *lines] if lines else []


def accuracy(results: list[Result]) -> list[str]:
    """The rows in which we are further from f64 than PyTorch is in the same precision, by RMS."""
    both = [r for r in results if r.row.counts and {OURS, MEASURE} <= r.errors.keys() and MEASURE not in r.wrong]
    if not both:
        return []
    worse = [r.row.name for r in both if r.errors[OURS].rms > r.errors[MEASURE].rms]
    ratios = by_parts(both, lambda r: r.errors[MEASURE].rms / r.errors[OURS].rms)
    return [
        "",
        f"RMS error above {MEASURE}'s: in {len(worse)} of {len(both)} rows{': ' if worse else ''}{', '.join(worse)}",
        f"geometric means of {MEASURE}'s RMS error / ours:",
        *ratios,
    ]
