"""Serving: records of tuning/serving and of the experiments serving_cost and serving_waste."""

from __future__ import annotations

import math

import svg
from markdown import table
from records import Record, each_machine, median, newest

NETWORKS = {
    "lstm-paper": "LSTM, paper",
    "lstm-wmt22": "LSTM, sentences",
    "lstm-int8": "LSTM int8, paper",
    "lstm-int8-wmt22": "LSTM int8, sentences",
    "tree-ud": "TreeLSTM",
    "tree-ud-int8": "TreeLSTM int8",
    "seq2seq": "Seq2Seq",
    "seq2seq-int8": "Seq2Seq int8",
}
BASELINES = {("merge", "4"): "merge", ("merge", "1"): "merge, single steps", ("bucketing", "4"): "bucketing",
             ("bucketing", "1"): "bucketing, single steps"}  # fmt: skip
# A setting bears a load if it answers this share of what the best one answers.
BORNE = 0.93


def best(rows: list[dict[str, str]]) -> dict[str, str] | None:
    """The setting with the least p90 among those that bear the load."""
    most = max((median(row["answered"]) for row in rows if row["answered"]), default=0.0)
    borne = [row for row in rows if not row["answered"] or median(row["answered"]) >= BORNE * most]
    return min(borne, key=lambda row: median(row["p90_ms"]), default=None)


def rounds() -> str:
    """p90 by policy at the loads of the rounds, each policy with its best setting."""
    lines = []
    for name, words in NETWORKS.items():
        for record in each_machine(f"rounds-{name}"):
            loads = dict.fromkeys((row["load"], row["asked"]) for row in record.rows if row["load"] != "closed")
            lines += [one_load(record, words, load, asked) for load, asked in loads]
    heading = ("requests", "machine", "a second", "cellular", "shortest", "best baseline", "cellular lower by")
    return table(heading, (line for line in lines if line))


def one_load(record: Record, words: str, load: str, asked: str) -> list[str] | None:
    """A line of `rounds`; none where no baseline was measured."""
    rows = [row for row in record.rows if (row["load"], row["asked"]) == (load, asked)]
    cellular, shortest = ([row for row in rows if row["policy"] == policy] for policy in ("cellular", "shortest"))
    ours = best(cellular)
    other = best([row for row in rows if (row["policy"], row["steps_at_once"]) in BASELINES])
    if ours is None or other is None:
        return None
    share = "" if load == "fixed" else f" ({100 * float(load):.0f} %)"
    found = best(shortest)
    lower = 1 - median(ours["p90_ms"]) / median(other["p90_ms"])
    return [words, record.machine, f"{asked or '–'}{share}", f"{ours['p90_ms']} ({ours['p90_least_ms']}–{ours['p90_greatest_ms']})",
            found["p90_ms"] if found else "–", f"{other['p90_ms']} {BASELINES[other['policy'], other['steps_at_once']]}",
            f"{100 * lower:.0f} %"]  # fmt: skip


def peaks() -> str:
    """Answers a second to 512 users, with one request of each at a time."""
    lines = []
    for name, words in NETWORKS.items():
        for record in each_machine(f"rounds-{name}"):
            of: dict[str, float] = {}
            for row in record.rows:
                if row["load"] == "closed":
                    kind = row["policy"] if row["policy"] in ("cellular", "shortest") else "baseline"
                    of[kind] = max(of.get(kind, 0.0), median(row["answered"]))
            if "cellular" in of:
                shortest = f"{of['shortest']:.0f}" if "shortest" in of else "–"
                lines.append([words, record.machine, f"{of['cellular']:.0f}", shortest, f"{of['baseline']:.0f}",
                              f"{of['cellular'] / of['baseline']:.2f}"])  # fmt: skip
    return table(("requests", "machine", "cellular", "shortest", "best baseline", "cellular / baseline"), lines)


def policies() -> str:
    """What decides on the default policy: throughput and p90 by the size of the cell."""
    lines = []
    for name in ("64", "256", "1024", "8x1024"):
        for record in each_machine(f"rounds-lstm-policies-{name}"):
            for load in dict.fromkeys(row["load"] for row in record.rows):
                rows = {row["policy"]: row for row in record.rows if row["load"] == load}
                if load == "closed":
                    figures = [f"{row['answered']} ({row['answered_least']}–{row['answered_greatest']})" for row in rows.values()]
                else:
                    figures = [f"{row['p90_ms']} ({row['p90_least_ms']}–{row['p90_greatest_ms']})" for row in rows.values()]
                of = "answers a second" if load == "closed" else f"p90 at {100 * float(load):.0f} %, ms"
                lines.append([name, record.machine, of, *figures])
    return table(("units", "machine", "of two workers", "cellular", "ebatch", "merge"), lines)


def identical() -> str:
    """Identical requests: the share of the ideal policy's throughput."""
    names = {"lstm-fixed": "chains of 24 steps", "lstm-fixed-int8": "chains, int8", "tree-fixed": "trees of 16 leaves",
             "tree-fixed-int8": "trees, int8"}  # fmt: skip
    lines = []
    for name, words in names.items():
        for record in each_machine(f"rounds-{name}"):
            most = {
                policy: max(median(row["answered"]) for row in record.rows if row["policy"] == policy)
                for policy in ("cellular", "ideal")
            }
            lines.append([words, record.machine, f"{most['cellular']:.0f}", f"{most['ideal']:.0f}",
                          f"{100 * most['cellular'] / most['ideal']:.0f} %"])  # fmt: skip
    return table(("requests", "machine", "cellular, answers a second", "ideal", "of ideal"), lines)


def tail() -> str:
    """The greatest rate up to which p99 stays within four times a request alone."""
    lines = []
    for record in each_machine("rounds-lstm-wmt22-p99"):
        kept = {}
        for policy in ("cellular", "shortest", "bucketing", "merge"):
            ratios = sorted((median(row["asked"]), median(row["p99_over_alone"])) for row in record.rows
                            if row["policy"] == policy and row["p99_over_alone"])  # fmt: skip
            over = next((rate for rate, ratio in ratios if ratio > 4), math.inf)
            kept[policy] = max((rate for rate, _ in ratios if rate < over), default=0)
        lines.append([record.machine, *(f"{rate:.0f}" if rate else "none" for rate in kept.values())])
    return table(("machine", "cellular", "shortest", "bucketing", "merge"), lines)


def waste() -> str:
    """The share of the time that full batches spend in cells."""
    records = each_machine("serving_waste")
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for record in records:
        for row in record.rows:
            rows.setdefault((row["network"], row["rows a batch"]), {})[record.machine] = f"{median(row['cells']):.1f}"
    lines = (
        [network, batch, *(of.get(record.machine, "–") for record in records)] for (network, batch), of in rows.items()
    )
    return table(("% of the time in cells", "rows a batch", *(f"{record.machine}" for record in records)), lines)


def cost() -> str:
    """Scheduler and gathering as a share of the cell."""
    records = each_machine("serving_cost")
    lines: dict[tuple[str, str], list[str]] = {}
    for record in records:
        for row in record.rows:
            if row["batch"] in ("1", "32"):
                lines.setdefault((row["hidden"], row["batch"]), []).append(f"{median(row['scheduler + gather']):.1f}")
    heading = ("units", "rows", *(record.machine for record in records))
    return table(heading, ([*key, *cells] for key, cells in lines.items()))


def workers() -> str:
    """One worker over both cores, or one for each."""
    names = {"lstm-workers": "LSTM, paper", "lstm-int8-workers": "LSTM int8, paper", "tree-ud-workers": "TreeLSTM",
             "seq2seq-workers": "Seq2Seq"}  # fmt: skip
    lines = []
    for name, words in names.items():
        record = newest(f"rounds-{name}")
        for asked in dict.fromkeys(row["asked"] for row in record.rows):
            of = {row["workers"]: row for row in record.rows if row["asked"] == asked}
            lines.append([words, asked, of["1"]["p90_ms"], of["2"]["p90_ms"]])
    return table(("requests", "a second", "one worker, p90 ms", "two"), lines)


def screening() -> str:
    """The choice of a word, computed in full and screened in int8."""
    record = newest("argmax")
    lines = [
        [row["rows"], row["f32_us"], row["screened_us"], f"{float(row['f32_us']) / float(row['screened_us']):.1f}"]
        for row in record.rows
    ]
    return table(("rows", "all in f32, µs", "screened, µs", "times as fast"), lines)


def curves() -> str:
    """p90 against answers a second, by policy."""
    drawn = {
        ("lstm-paper", "emerald-rapids"): "LSTM, paper's lengths, Emerald Rapids",
        ("lstm-wmt22", "emerald-rapids"): "LSTM, sentences, Emerald Rapids",
        ("lstm-int8", "emerald-rapids"): "LSTM int8, paper's lengths, Emerald Rapids",
        ("lstm-wmt22-int8", "emerald-rapids"): "LSTM int8, sentences, Emerald Rapids",
        ("tree-ud", "zen-5"): "TreeLSTM, Zen 5",
        ("lstm-wmt22", "zen-4"): "LSTM, sentences, Zen 4",
    }
    return svg.panels("Latency against throughput, each policy with its best setting at each load",
                      [curve(newest(name, machine), title) for (name, machine), title in drawn.items()])  # fmt: skip


def curve(record: Record, title: str) -> svg.Panel:
    """One sweep of `gatestream load`."""
    lines = []
    for policy in ("cellular", "shortest", "merge", "bucketing", "padding"):
        rows = [
            row
            for row in record.rows
            if row["policy"] == policy and row["best"] == "true" and row["arrivals"] == "poisson"
        ]
        if rows:
            rows.sort(key=lambda row: float(row["rate"]))
            lines.append(svg.Line(policy, [(float(row["throughput"]), float(row["p90_ms"])) for row in rows]))
    return svg.Panel(title, "answers a second", "p90, ms", lines)


TABLES = {"rounds": rounds, "peaks": peaks, "policies": policies, "identical": identical, "tail": tail, "waste": waste, "cost": cost,
          "workers": workers, "screening": screening}  # fmt: skip
CHARTS = {"serving": curves}
