"""The printed table, its means, and the CSV."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from exact import Error
from peers import HERE, OURS, OURS_F32
from rounds import Timing
from suites import Row

sys.path.append(str(HERE.parent / "report"))

import records  # noqa: E402


@dataclass
class Result:
    """A row's times, errors and facts."""

    row: Row
    times: dict[str, Timing] = field(default_factory=dict)
    errors: dict[str, Error] = field(default_factory=dict)  # from f64
    wrong: dict[str, str] = field(default_factory=dict)  # libraries with a wrong answer, and why it is wrong
    absent: dict[str, str] = field(default_factory=dict)  # libraries that do not run it, and why
    facts: dict[str, dict] = field(default_factory=dict)  # reported by workers; ours: bound, plan
    was_to_be_tuned: bool = False
    bare: Timing | None = None  # a loop of plain arithmetic as long as our call, in our turns

    @property
    def ours(self) -> dict:
        return self.facts.get(OURS, {})

    @property
    def best(self) -> tuple[str, float] | None:
        """The fastest peer with a right answer."""
        others = {name: t for name, t in self.times.items() if name not in (OURS, OURS_F32)}
        right = [(t.median, name) for name, t in others.items() if name not in self.wrong]
        return (min(right)[1], min(right)[0]) if right else None

    @property
    def own(self) -> float | None:
        return self.times[OURS].median if OURS in self.times and OURS not in self.wrong else None

    @property
    def ratio(self) -> float | None:
        """Best peer / ours."""
        return self.best[1] / self.own if self.best and self.own else None

    @property
    def gain(self) -> float | None:
        """Our own f32 / ours, in runs of a reduced precision."""
        if not self.own or OURS_F32 not in self.times or OURS_F32 in self.wrong:
            return None
        return self.times[OURS_F32].median / self.own

    @property
    def of_bound(self) -> float | None:
        # The bound is on full-length sequences.
        if not self.own or "bound_ms" not in self.ours or self.row.lengths:
            return None
        return self.ours["bound_ms"] / (1e3 * self.own)

    @property
    def nearest(self) -> str | None:
        """The library nearest to f64, our f32 beside a reduced precision not counted."""
        others = {name: error for name, error in self.errors.items() if name != OURS_F32}
        return min(others, key=lambda name: others[name].most) if others else None

    def error_json(self, name: str) -> dict:
        error = self.errors.get(name)
        return {"error_f64": error and error.most, "rms_error_f64": error and error.rms}

    def as_json(self) -> dict:
        row = self.row
        return {
            **row.as_message(),
            "group": row.group,
            "note": row.note,
            "gflops": row.flops / self.own / 1e9 if self.own else None,
            "libraries": {
                name: {
                    **timing.as_json(),
                    **self.error_json(name),
                    "wrong": name in self.wrong,
                    "facts": {} if name == OURS else self.facts.get(name, {}),
                }
                for name, timing in self.times.items()
            },
            "absent": self.absent,
            "wrong": sorted(self.wrong),
            "own_f32_ratio": self.gain,
            "nearest_f64": self.nearest,
            "best_peer": self.best[0] if self.best else None,
            "ratio": self.ratio,
            "of_bound": self.of_bound,
            "bare_loop": self.bare.as_json() if self.bare else None,
            **{f"our_{key}": value for key, value in self.ours.items()},
        }


def number(value: float | None, digits: int = 4, unit: str = "") -> str:
    """A number of significant digits, never in powers of ten."""
    if value is None:
        return "–"
    places = max(0, digits - 1 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{value:.{min(places, 6)}f}{unit}"


class Table:
    """Printed line by line, as rows are done."""

    def __init__(self, peers: list[str]) -> None:
        self.peers = [name for name in peers if name != OURS]
        self.widths = [max(12, len(name) + 2) for name in self.peers]  # a footnote's mark, too
        self.reduced = OURS_F32 in peers
        self.footnotes: dict[str, int] = {}

    def heading(self) -> str:
        names = "".join(f"{name:>{width}}" for name, width in zip(self.peers, self.widths, strict=True))
        gain = f"{'f32/ours':>10}" if self.reduced else ""
        tail = f"{'p99/med':>9}{'bare':>7}{'best/ours':>11}{gain}{'of bound':>10}  nearest f64"
        return f"{'median, ms':<36}{names}{OURS:>13}{tail}"

    def line(self, result: Result) -> str:
        cells = "".join(f"{self.cell(result, n):>{w}}" for n, w in zip(self.peers, self.widths, strict=True))
        own = result.times.get(OURS)
        tail = number(own.tail, 3) if own else "–"
        bare = number(result.bare.tail, 3) if result.bare else "–"
        ratio, share = number(result.ratio, 3), result.of_bound
        percent = f"{100 * share:.0f} %" if share else "–"
        gain = f"{number(result.gain, 3):>10}" if self.reduced else ""
        nearest = f"{result.nearest} {result.errors[result.nearest].most:.1e}" if result.nearest else "–"
        own_cell = self.cell(result, OURS)
        return f"{result.row.name:<36}{cells}{own_cell:>13}{tail:>9}{bare:>7}{ratio:>11}{gain}{percent:>10}  {nearest}"

    def cell(self, result: Result, name: str) -> str:
        if name in result.times:
            mark = "" if name not in result.wrong else self.mark(f"{name}: {result.wrong[name]}, not counted")
            if name in (OURS, OURS_F32) and result.was_to_be_tuned and not result.facts[name].get("tuned"):
                mark += self.mark(f"{name}: tuning was too short to choose by; the estimate")
            return number(1e3 * result.times[name].median) + mark
        if name in result.absent:
            return "–" + self.mark(f"{name}: {result.absent[name]}")
        return "–"

    def mark(self, text: str) -> str:
        return f"[{self.footnotes.setdefault(text, len(self.footnotes) + 1)}]"

    def notes(self) -> list[str]:
        return [f"[{index}] {text}" for text, index in self.footnotes.items()]


def mean(ratios: list[float]) -> float | None:
    """Geometric."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


def by_parts(results: list[Result], ratio: Callable[[Result], float | None]) -> list[str]:
    """The geometric mean of a ratio over all rows, by cell and by group; rows behind, and the least."""
    counted = [(r.row, found) for r in results if r.row.counts and (found := ratio(r))]
    if not counted:
        return []
    parts = [("all rows", counted)]
    for cell in sorted({row.cell for row, _ in counted}):
        parts.append((cell, [pair for pair in counted if pair[0].cell == cell]))
    for group in dict.fromkeys(row.group for row, _ in counted):
        parts.append((group, [pair for pair in counted if pair[0].group == group]))
    lines = []
    for name, part in parts:
        ratios = [found for _, found in part]
        row, least = min(part, key=lambda pair: pair[1])
        behind = sum(found < 1 for found in ratios)
        lines.append(
            f"  {name:<24}{number(mean(ratios), 3):>7}   {len(part):>3} rows, {behind} behind, "
            f"least {number(least, 3)} ({row.name})"
        )
    return lines


def means(results: list[Result], peers: list[str]) -> list[str]:
    """Best peer / ours, and each peer / ours, over all rows and by group."""
    counted = [result for result in results if result.row.counts and result.ratio]
    if not counted:
        return []
    lines = ["", "geometric means of best peer / ours:", *by_parts(results, lambda result: result.ratio)]
    if behind := [result.row.name for result in counted if (result.ratio or 1) < 1]:
        lines.append(f"  behind: {', '.join(behind)}")
    lines.append("geometric means of peer / ours, rows that the peer runs:")
    for peer in peers:
        usable = [r for r in counted if peer in r.times and peer not in r.wrong and r.own]
        ratios = [r.times[peer].median / r.own for r in usable if r.own]
        lines.append(f"  {peer:<24}{number(mean(ratios), 3):>7}   {len(ratios):>3} rows")
    return lines


def ragged(results: list[Result]) -> list[str]:
    """Rates of useful steps: sequences of different lengths against as many of their mean length."""
    lines = []
    for result in results:
        if result.row.group != "ragged":
            continue
        twin = next((r for r in results if r.row.group == "equal" and r.row.cell == result.row.cell), None)
        for name, timing in result.times.items():
            if name in result.wrong or twin is None or name not in twin.times:
                continue
            rate = result.row.useful_steps / timing.median
            equal = twin.row.useful_steps / twin.times[name].median
            lines.append(
                f"  {result.row.cell} {name:<14} {rate / 1e3:>8.1f} thousand useful steps/s, "
                f"{equal / 1e3:>8.1f} at equal lengths: {rate / equal:.2f}"
            )
    return ["", "unequal lengths:", *lines] if lines else []


EVEN = 1.5  # p99 over the median


def evenness(results: list[Result]) -> list[str]:
    """Rows with slow calls far above the median, for us and for a bare loop."""
    both = [(r.times[OURS].tail, r.bare.tail) for r in results if OURS in r.times and r.bare]
    if not both:
        return []
    ours, bare = (sum(pair[which] > EVEN for pair in both) for which in (0, 1))
    only = sum(own > EVEN >= loop for own, loop in both)
    return [
        "",
        f"p99 above {EVEN} x the median: ours in {ours} of {len(both)} rows, a bare loop as long in {bare}; "
        f"ours alone in {only}",
    ]


FLAT = 1.25  # times the least: beyond it the time per step is not called flat
CLIFF = 1.5  # times the line between its neighbours: beyond it a hidden size is named


def growth(results: list[Result]) -> list[str]:
    """How our own time grows with the steps and with the hidden size."""
    return per_step(results) + cliffs(results)


def per_step(results: list[Result]) -> list[str]:
    """Time per step over T; flat where only the steps cost."""
    lines = []
    for cell in ("lstm", "gru"):
        swept = [r for r in results if r.row.group == "steps" and r.row.cell == cell]
        # The row of 100 steps is that of the same network among the hidden sizes.
        networks = {(r.row.stacks, r.row.batch) for r in swept}
        swept += [r for r in results if r.row.group == "hidden" and r.row.cell == cell
                  and (r.row.stacks, r.row.batch) in networks]  # fmt: skip
        cost = {r.row.steps: 1e6 * r.own / r.row.steps for r in sorted(swept, key=lambda r: r.row.steps) if r.own}
        if not cost:
            continue
        line = f"  {cell}: " + ", ".join(f"T {steps} {number(each, 3)}" for steps, each in cost.items())
        if many := {steps: each for steps, each in cost.items() if steps >= 10}:
            least, most = min(many, key=lambda t: many[t]), max(many, key=lambda t: many[t])
            above = [f"T {steps}" for steps, each in many.items() if each > FLAT * many[least]]
            line += (
                f"; T >= 10: least {number(many[least], 3)} (T {least}), most {number(many[most], 3)} (T {most}), "
                f"above {FLAT} x the least: {', '.join(above) or 'none'}"
            )
        lines.append(line)
    return ["", "growth with the steps, µs per step:", *lines] if lines else []


def cliffs(results: list[Result]) -> list[str]:
    """Each hidden size against the line between its neighbours, on log-log axes."""
    lines = []
    for cell in ("lstm", "gru"):
        done = [r for r in results if r.row.group == "hidden" and r.row.cell == cell and r.own]
        done.sort(key=lambda r: r.row.stacks[0].hidden)
        found = []
        for before, here, after in zip(done, done[1:], done[2:], strict=False):
            x = [math.log(r.row.stacks[0].hidden) for r in (before, here, after)]
            y = [math.log(r.own) for r in (before, here, after) if r.own]
            line = y[0] + (y[2] - y[0]) * (x[1] - x[0]) / (x[2] - x[0])
            found.append((math.exp(y[1] - line), here.row.stacks[0].hidden))
        if found:
            found.sort(reverse=True)
            named = ", ".join(f"{hidden}: {off:.2f}" for off, hidden in found if off > CLIFF)
            lines.append(f"  {cell}: {named or f'none (most {found[0][0]:.2f}, {found[0][1]})'}")
    title = f"growth with the hidden size, more than {CLIFF} x above the line between its neighbours (log-log):"
    return ["", title, *lines] if lines else []


def write_json(path: Path, stamp: dict, results: list[Result]) -> None:
    text = json.dumps({**stamp, "rows": [short(r.as_json()) for r in results]}, indent=1, allow_nan=False)
    path.write_text(text + "\n")


def short(value: object) -> object:
    """Floats to six digits: more are noise, and make a file twice as long. JSON has no infinity."""
    match value:
        case float():
            return float(f"{value:.6g}") if math.isfinite(value) else None
        case dict():
            return {key: short(part) for key, part in value.items()}
        case list() | tuple():
            return [short(part) for part in value]
    return value


def write_csv(path: Path, stamp: dict, results: list[Result], names: list[str]) -> None:
    """A line for each row; what the run was stands above."""
    notes = {key: json.dumps(value) if isinstance(value, dict | list) else value for key, value in stamp.items()}
    records.write(path, notes, (csv_row(result, names) for result in results))


def csv_row(result: Result, names: list[str]) -> dict[str, object]:
    """The columns that benches/report reads."""
    line = result.as_json()
    parts = ("median_ms", "p25_ms", "p75_ms", "p99_ms", "error_f64", "rms_error_f64")
    columns = {f"{n}_{p}": rounded(line["libraries"].get(n, {}).get(p, "")) for n in names for p in parts}
    bare = {f"bare_{part}": rounded((line["bare_loop"] or {}).get(part, "")) for part in ("median_ms", "p99_ms")}
    return {
        "row": result.row.name,
        "group": result.row.group,
        **columns,
        **bare,
        "best_peer": line["best_peer"],
        "ratio": rounded(line["ratio"]),
        "own_f32_ratio": rounded(line["own_f32_ratio"]),
        "bound_ms": rounded(line.get("our_bound_ms")),
        "of_bound": rounded(line["of_bound"]),
        "nearest_f64": line["nearest_f64"],
        "wrong": " ".join(line["wrong"]),
    }


def rounded(value: float | str | None) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value if value is not None else "")
