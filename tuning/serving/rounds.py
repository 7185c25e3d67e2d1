#!/usr/bin/env python3
"""Loads in rounds: settings in turn at the same arrivals, medians over rounds with least and greatest.

    DATA=FOLDER tuning/serving/rounds.py [NAME...]

All without a name: an hour and three quarters, on an idle machine. A single run of a few seconds says little where other guests
use the machine's cache. Writes `rounds-NAME.csv` into the record. Environment:

DATA    as in `run`; what needs it is skipped without it.
ROUNDS  5 unless set.
RATES   requests a second (300,400), instead of those below. Those of `lstm-wmt22-p99` must begin with an idle machine's rate.
SHARES  loads as shares of the baselines' peak (0.5,0.8), which each round then begins with: the most that any setting of a
        baseline answers to 512 users, with one request of each at a time.
SETTINGS  those to be measured ("cellular/64 merge/64/1"), instead of those below.
"""

import os
import statistics
import sys

from load import build, records, run

DATA = os.environ.get("DATA", "DATA")
ROUNDS = int(os.environ.get("ROUNDS", "5"))
RATES = [int(rate) for rate in os.environ.get("RATES", "").split(",") if rate]
SHARES = [float(share) for share in os.environ.get("SHARES", "").split(",") if share]
BASELINES = ["padding", "bucketing", "merge"]
USERS = 512

SENTENCES = f"{DATA}/wmt22_lengths.csv:source_words"
PAIRS = f"{DATA}/wmt22_lengths.csv:source_words,reference_words"
TREES = f"{DATA}/ud_ewt_heads.jsonl"
# Name: what is served, requests a second, policies with their rows and, where they are not the defaults of `load`, steps at
# once (`merge/64/1` goes level by level, as TensorFlow Fold and DyNet do) and workers (`cellular/64/4/2`), seconds of warm-up and
# of measuring.
MEASUREMENTS = {
    "lstm-paper": (
        ["lstm", "--lengths", "paper"],
        [230, 370],
        "cellular/64 shortest/4 shortest/8 bucketing/128 merge/64 merge/128 merge/64/1 merge/128/1",
        (1, 2),
    ),
    "lstm-wmt22": (
        ["lstm", "--lengths", SENTENCES],
        [307, 491],
        "cellular/64 shortest/4 shortest/8 bucketing/64 merge/64 merge/128 merge/32/1 merge/64/1",
        (1, 2),
    ),
    # Which loads leave p99 within four times the mean of a request alone; at 5 a second no requests share, so its mean is that.
    "lstm-wmt22-p99": (
        ["lstm", "--lengths", SENTENCES],
        [5, 60, 90, 120, 150, 180, 210],
        "cellular/32 shortest/8 bucketing/32 merge/32",
        (1, 5),
    ),
    "lstm-int8": (
        ["lstm", "--precision", "int8", "--lengths", "paper"],
        [805, 1287, 2000],
        "cellular/32 cellular/64 shortest/8 shortest/16 bucketing/64 merge/16 merge/64",
        (1, 2),
    ),
    "lstm-int8-wmt22": (
        ["lstm", "--precision", "int8", "--lengths", SENTENCES],
        [1000, 1600, 3000],
        "cellular/64 shortest/16 bucketing/64 merge/16 merge/32 merge/32/1",
        (1, 2),
    ),
    "lstm-two-workers": (
        ["lstm", "--lengths", "paper", "--workers", "2"],
        [271, 434, 650],
        "cellular/64 shortest/8 shortest/16 bucketing/128 merge/32 merge/128",
        (1, 2),
    ),
    # The default policy, by the size of the cell: SHARES=0.5,0.8. 512 users keep both workers full.
    **{
        f"lstm-policies-{name}": (
            ["lstm", *size, "--lengths", "paper", "--workers", "2"],
            [],
            "cellular/64 ebatch/64 merge/64",
            (0.5, seconds),
        )
        for name, size, seconds in (
            ("64", ["--input", "64", "--hidden", "64"], 1),
            ("256", ["--input", "256", "--hidden", "256"], 1),
            ("1024", ["--input", "1024", "--hidden", "1024"], 2),
            ("8x1024", ["--layers", "8", "--input", "1024", "--hidden", "1024"], 4),
        )
    },
    # One worker over both cores, or one for each.
    "lstm-workers": (
        ["lstm", "--lengths", "paper"],
        [230, 370, 800],
        "cellular/64/4/1 cellular/64/4/2",
        (1, 2),
    ),
    "seq2seq": (
        ["seq2seq", "--lengths", PAIRS],
        [57, 91],
        "cellular/16:64 bucketing/64 merge/16:64",
        (3, 3),
    ),
    "seq2seq-int8": (
        ["seq2seq", "--precision", "int8", "--lengths", PAIRS],
        [176, 282],
        "cellular/16:64 cellular/8:32 shortest/16:64 bucketing/64 merge/16 merge/64",
        (2, 3),
    ),
    "seq2seq-two-workers": (
        ["seq2seq", "--lengths", PAIRS, "--workers", "2"],
        [65, 105, 160],
        "cellular/16 bucketing/64 merge/16 merge/64",
        (3, 3),
    ),
    "tree-ud": (
        ["treelstm", "--trees", TREES],
        [225, 360, 523, 837],
        "cellular/64 shortest/16 shortest/32 merge/64 merge/8:128",
        (1, 2),
    ),
    "tree-ud-int8": (
        ["treelstm", "--precision", "int8", "--trees", TREES],
        [750, 1200, 2000],
        "cellular/64 cellular/64:32 shortest/4 shortest/8 merge/16 merge/32 merge/64 merge/128",
        (1, 2),
    ),
    # Identical requests, more than any policy bears.
    "lstm-fixed": (["lstm", "--lengths", "24"], [560], "cellular/64 cellular/128 ideal/64 ideal/128", (1, 2)),
    "lstm-fixed-int8": (
        ["lstm", "--precision", "int8", "--lengths", "24"],
        [2000],
        "cellular/64 cellular/128 ideal/64 ideal/128",
        (1, 2),
    ),
    "tree-fixed": (["treelstm", "--trees", "complete:16"], [700], "cellular/64 cellular/128 ideal/64 ideal/128", (1, 2)),
    "tree-fixed-int8": (
        ["treelstm", "--precision", "int8", "--trees", "complete:16"],
        [2200],
        "cellular/64 cellular/128 ideal/64 ideal/128",
        (1, 2),
    ),
}
NEED_DATA = [name for name, (served, *_) in MEASUREMENTS.items() if any(DATA in word for word in served)]


def load(served, setting, arrivals, seed, seconds):
    """One run of a setting."""
    policy, batch, *more = setting
    warm_up, window = seconds
    options = [f"--{option}={count}" for option, count in zip(("steps-at-once", "workers"), more)]
    return run(*served, "--policies", policy, "--batch", batch, *arrivals, *options,
               *f"--warm-up {warm_up} --seconds {window} --drain-timeout 5 --seed {seed}".split())  # fmt: skip


def measure(name):
    """Measures one name and writes its record."""
    served, rates, settings, seconds = MEASUREMENTS[name]
    settings = [tuple(setting.split("/")) for setting in os.environ.get("SETTINGS", settings).split()]
    baselines = [setting for setting in settings if setting[0] in BASELINES]
    if SHARES and (name.endswith("-p99") or not baselines):
        print(f"{name}: has no baseline, or wants an idle machine; not measured at SHARES", file=sys.stderr)
        return
    path = records.folder() / f"rounds-{name}.csv"
    loads = SHARES or RATES or rates
    runs = {(load, setting): [] for load in loads for setting in settings}
    answered = {setting: [] for setting in settings}
    asked = {load: [] for load in loads}
    # All loads in each round: what is compared between loads, too, has then seen the same hour.
    for seed in range(ROUNDS):
        turn = seed % len(settings)
        turns = settings[turn:] + settings[:turn]
        if SHARES:
            for setting in turns:
                users = load(served, setting, ["--closed", str(USERS)], seed + 1, seconds)
                answered[setting].append(users["throughput"])
            peak = max(answered[setting][-1] for setting in baselines)
        for of in loads:
            asked[of].append(round(of * peak) if SHARES else of)
            for setting in turns:
                runs[of, setting].append(load(served, setting, ["--rates", str(asked[of][-1])], seed + 1, seconds))
    rows = [row("closed", USERS, setting, served) | spread("answered", of, 0) for setting, of in answered.items() if of]
    alone = requests_alone(runs, loads, settings) if name.endswith("-p99") else None
    for (of, setting), found in runs.items():
        latency = {part: [one["latency_ms"][part] for one in found] for part in ("mean", "p50", "p90", "p99")}
        line = row(f"{of:g}" if SHARES else "fixed", statistics.median(asked[of]), setting, served)
        line |= {f"{part}_ms": f"{statistics.median(values):.1f}" for part, values in latency.items()}
        line |= spread("p90", latency["p90"], 1, "_ms")
        line["answered"] = f"{statistics.median(one['throughput'] for one in found):.0f}"
        if alone and of != loads[0]:
            line |= spread("p99_over_alone", [p99 / mean for p99, mean in zip(latency["p99"], alone)], 2)
        rows.append(line)
    for line in rows:
        print(*line.values(), flush=True)
    shown = " ".join(served).replace(f"{DATA}/", "")
    notes = records.stamp(f"gatestream load {shown}") | {"rounds": f"medians of {ROUNDS} rounds of {seconds[1]} seconds"}
    if alone:
        notes["request alone"] = f"{statistics.median(alone):.1f} ms on average"
    records.write(path, notes, rows)


COLUMNS = ("load", "asked", "policy", "batch", "steps_at_once", "workers", "mean_ms", "p50_ms", "p90_ms", "p90_least_ms",
           "p90_greatest_ms", "p99_ms", "answered", "answered_least", "answered_greatest", "p99_over_alone",
           "p99_over_alone_least", "p99_over_alone_greatest")  # fmt: skip


def row(of, asked, setting, served):
    """A line of the record without its measurements."""
    policy, batch, *more = setting
    steps, workers, *_ = [*more, *["4", "2" if "--workers" in served else "1"][len(more) :]]
    return dict.fromkeys(COLUMNS, "") | {
        "load": of, "asked": f"{asked:.0f}", "policy": policy, "batch": batch, "steps_at_once": steps, "workers": workers,
    }  # fmt: skip


def spread(column, values, digits, unit=""):
    """Median, least and greatest."""
    of = {"": statistics.median(values), "_least": min(values), "_greatest": max(values)}
    return {f"{column}{which}{unit}": f"{value:.{digits}f}" for which, value in of.items()}


def requests_alone(runs, rates, settings):
    """The mean latency of each round at the lowest rate, where no requests share the machine."""
    idle = [runs[rates[0], setting] for setting in settings]
    return [statistics.mean(one["latency_ms"]["mean"] for one in together) for together in zip(*idle)]


def main():
    wanted = sys.argv[1:] or list(MEASUREMENTS)
    if RATES and SHARES:
        sys.exit("RATES and SHARES: one of them")
    if any(not 0 < share <= 2 for share in SHARES):
        sys.exit("SHARES: of 1, as in 0.5,0.8")
    unknown = [name for name in wanted if name not in MEASUREMENTS]
    if unknown:
        sys.exit(f"{', '.join(unknown)}: not one of {', '.join(MEASUREMENTS)}")
    build()
    for name in wanted:
        if name in NEED_DATA and "DATA" not in os.environ:
            print(f"{name}: DATA is not set; skipped", file=sys.stderr)
            continue
        measure(name)


main()
