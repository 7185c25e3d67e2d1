"""The figure: per row, how many times our time each library takes."""

from __future__ import annotations

from pathlib import Path

from peers import OURS, OURS_F32
from report import Result, mean

# Far apart for most kinds of colour vision, and told apart by shape as well.
MARKS = {
    "pytorch": ("#d55e00", "o"),
    "onnxruntime": ("#0072b2", "s"),
    "openvino": ("#009e73", "D"),
    "tract": ("#cc79a7", "^"),
    "rten": ("#7a7a7a", "v"),
    "candle": ("#c9a800", "P"),
    "tensorflow": ("#56b4e9", "X"),
    OURS_F32: ("black", "|"),
}


def duration(seconds: float) -> str:
    return f"{1e6 * seconds:.3g} µs" if seconds < 1e-4 else f"{1e3 * seconds:.3g} ms"


def draw(path: Path, title: str, results: list[Result], names: list[str]) -> bool:
    """A bar to the best peer, a mark for each; 1 is our own time. Where no row has both, no figure: False."""
    shown = [result for result in results if result.own and result.ratio and result.row.counts]
    if not shown:
        return False

    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    height = 1.6 + 0.27 * len(shown)
    figure, axes = plt.subplots(figsize=(9.5, height), layout="constrained")
    places = range(len(shown))
    ratios = [result.ratio or 1.0 for result in shown]
    # Bars grow from 1: to the right we are ahead, to the left behind.
    colours = ["#bcd7ee" if ratio >= 1 else "#f2b8b0" for ratio in ratios]
    axes.barh(places, [r - 1 for r in ratios], left=1, height=0.72, color=colours, zorder=1)
    for name in names:
        if name == OURS:
            continue
        colour, shape = MARKS.get(name, ("black", "*"))
        points = [
            (r.times[name].median / r.own, at)
            for at, r in zip(places, shown, strict=True)
            if name in r.times and name not in r.wrong and r.own
        ]
        if points:
            axes.scatter(*zip(*points, strict=True), s=26, c=colour, marker=shape, label=name, zorder=3)
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=1.2, zorder=2)
    axes.xaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}×"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(axis="x", color="#dddddd", zorder=0)
    axes.set_axisbelow(True)
    labels = [f"{r.row.name}   {duration(r.own or 0)}" for r in shown]
    axes.set_yticks(list(places), labels, fontsize=8)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlabel("time / ours, log scale; the bar ends at the fastest peer")
    average = mean([r.ratio for r in shown if r.ratio])
    note = f"; fastest peer / ours, geometric mean: {average:.2f}" if average else ""
    if gain := mean([r.gain for r in shown if r.gain]):
        note += f"; our f32 / ours: {gain:.2f}"
    axes.set_title(f"{title}{note}", fontsize=10, loc="left")
    # Outside the axes, where no row can hide it.
    figure.legend(loc="outside lower center", ncols=7, fontsize=8, frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return True
