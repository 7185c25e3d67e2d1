"""The gain of the search for plans: records of tuning/experiments and tuning/accuracy."""

from __future__ import annotations

import math

import svg
from markdown import table
from records import each_machine, geometric_mean, median, newest


def tuned_vs_estimate() -> str:
    """A line for each machine kind: does tuning beat the estimate?"""
    lines = []
    for record in each_machine("tuned_vs_estimate"):
        ratios = [median(row["estimate / tuned"]) for row in record.rows]
        verdicts = [row["verdict"] for row in record.rows]
        counts = (
            str(verdicts.count(verdict)) for verdict in ("same plan", "tuned faster", "within noise", "tuned slower")
        )
        lines.append(
            [
                record.machine,
                record.date,
                str(len(ratios)),
                *counts,
                f"{geometric_mean(ratios):.3f}",
                f"{max(ratios):.2f}",
            ]
        )
    heading = ("machine", "date", "rows", "same plan", "tuned faster", "within noise", "tuned slower",
               "estimate / tuned, geometric mean", "greatest")  # fmt: skip
    return table(heading, lines)


def tuned_rows() -> str:
    """The rows in which the tuned plan differs from the estimate."""
    lines = []
    for record in each_machine("tuned_vs_estimate"):
        for row in record.rows:
            if row["verdict"] != "same plan":
                lines.append([row["cell input/hidden/batch/steps"], record.machine, row["tuned, ms"], row["estimate, ms"],
                              row["estimate / tuned"], row["tuned plan"], row["estimated plan"]])  # fmt: skip
    heading = ("row", "machine", "tuned, ms", "estimate, ms", "estimate / tuned", "tuned plan", "estimated plan")
    return table(heading, lines)


def columns(name: str, machine: str, *wanted: str) -> str:
    """Columns of a record as they are; names with spaces are given with `_`. None: all."""
    record = newest(name, machine)
    named = {column.replace(" ", "_"): column for column in record.rows[0]}
    picked = [named[column] for column in wanted] if wanted else list(record.rows[0])
    return table(picked, ([row[column] for column in picked] for row in record.rows))


def one_core(machine: str) -> str:
    """What binds on one core: means by group of rows."""
    record = newest("one_core", machine)

    def group(row: dict[str, str]) -> str:
        _, _, hidden, batch, _ = row["row"].split("-")
        return (
            "batch 10 and 20"
            if batch != "b1"
            else "batch 1, 1024 units"
            if hidden == "1024"
            else "batch 1, at most 256 units"
        )

    shown = ("arithmetic", "in tiles", "products", "gates", "floor")
    groups: dict[str, list[dict[str, str]]] = {}
    for row in record.rows:
        groups.setdefault(group(row), []).append(row)
    lines = [[name, str(len(rows)), *(f"{sum(median(r[key]) for r in rows) / len(rows):.2f}" for key in shown)]
             for name, rows in groups.items()]  # fmt: skip
    return table(
        ("rows", "count", "arithmetic at the peak", "reading the weights", "products", "gates", "floor"), lines
    )


def phonemes() -> str:
    """Error rates of the trained model."""
    lines = []
    for row in newest("accuracy-phonemes").rows:
        rate, words = 100 * int(row["edits"]) / int(row["phonemes"]), 100 * int(row["wrong_words"]) / int(row["words"])
        lines.append(
            [f"{row['library']} {row['precision']}", f"{rate:.3f} %", f"{words:.2f} %", row["words_unlike_f32"]]
        )
    return table(("model", "phonemes wrong", "words wrong", "words unlike f32's"), lines)


def drift() -> str:
    """RMS errors of random models, pooled over seeds."""
    rows = newest("accuracy-drift").rows
    names = ("gatestream int8", "PyTorch int8", "PyTorch int8, at its best", "gatestream bf16", "PyTorch bf16")
    lines = []
    for cell, hidden in dict.fromkeys((row["cell"], row["hidden"]) for row in rows):
        model = [row for row in rows if (row["cell"], row["hidden"]) == (cell, hidden)]
        errors = [pooled(model, name, "rms") for name in names]
        errors += [pooled(model, names[0], key) for key in ("rms_steps_1_10", "rms_last_10_steps")]
        lines.append([f"{cell} {hidden}", *(f"{1e3 * error:.2f}" for error in errors)])
    of = {(row["cell"], row["hidden"], row["seed"], row["library"]): float(row["rms"]) for row in rows}
    verdicts = []
    for peer in names[1:3]:
        ratios = [value / of[*run, names[0]] for (*run, library), value in of.items() if library == peer]
        verdicts.append(f"{peer} / {names[0]}: geometric mean {geometric_mean(ratios):.2f}, least {min(ratios):.2f}, "
                        f"greatest {max(ratios):.2f} over {len(ratios)} runs.")  # fmt: skip
    heading = ("thousandths", *names, "ours int8, steps 1–10", "last 10 steps")
    return "\n\n".join([table(heading, lines), *verdicts])


def pooled(rows: list[dict[str, str]], library: str, key: str) -> float:
    """The root of the mean square over the seeds."""
    mine = [float(row[key]) for row in rows if row["library"] == library]
    return math.sqrt(sum(value**2 for value in mine) / len(mine))


def scale() -> str:
    """The scale of the state: from its values, or fixed."""
    lines = [[row["model"], f"{float(row['mean_greatest_state']):.2f}", f"{1e3 * float(row['rms_dynamic']):.2f}",
              f"{float(row['rms_fixed']) / float(row['rms_dynamic']):.3f}"]
             for row in newest("accuracy-scale").rows if not row["model"].startswith("RNN")]  # fmt: skip
    return table(("model", "greatest state of a step, mean", "RMS error, thousandths", "fixed / dynamic"), lines)


def streamlining() -> str:
    """The gain of each optimisation, by hidden size at batch 1."""
    rows = [row for row in newest("fig4a").rows if row["[batch, dim]"].startswith("[1,")]
    named = {"8 parallel GEMMs": "8 × parallel GEMM / all", "8 × OpenBLAS": "8 × OpenBLAS / all",
             "all but streamlining": "all but WCS / all"}  # fmt: skip
    lines = [
        svg.Line(name, [(float(row["[batch, dim]"][4:-1]), median(row[key])) for row in rows])
        for name, key in named.items()
    ]
    panel = svg.Panel("LSTM, batch 1, 100 steps", "hidden units", "time / all optimisations", lines)
    serpentine = newest("serpentine").rows
    points = [(float(row["[batch, hidden]"][4:-1]), median(row["cyclic / serpentine"]))
              for row in serpentine if row["[batch, hidden]"].startswith("[1,") and row["cores"] == "2"]  # fmt: skip
    order = svg.Line("cyclic order of panels", points)
    other = svg.Panel("LSTM, input 64, batch 1", "hidden units", "time / serpentine order", [order])
    return svg.panels("What each optimisation brings", [panel, other])


TABLES = {"tuned": tuned_vs_estimate, "tuned-rows": tuned_rows, "columns": columns, "one-core": one_core,
          "phonemes": phonemes, "drift": drift, "scale": scale}  # fmt: skip
CHARTS = {"streamlining": streamlining}
