#!/usr/bin/env python3
"""The loads that matter, in rounds: settings in turn at the same arrivals, medians over rounds with least and greatest.

    DATA=FOLDER tuning/serving/rounds.py [NAME...]

All without a name: an hour and three quarters, on a machine that does nothing else.

A single run of a few seconds says little where others use the machine's cache, too. The loads are half and four fifths
of what the best baseline was found to bear by `run` (`lstm-paper`: in another closed loop, which found 460;
`lstm-int8-wmt22`: of what merge answered where 3000 were asked for, 2120), and where cellular's peak was found to be below
a baseline's, more than any bears: then what was answered is the peak. Those of `lstm-wmt22-p99` go up from an idle machine,
to whose latencies p99 is compared: RATES, too, must begin there.
Settings are the best of the sweeps in `results/*.txt`, and `shortest` with small batches.

Writes `rounds-NAME.txt`, with RATES `rounds-NAME-at-RATES.txt`, into RESULTS, `results` beside this file unless set. DATA is as
in `run`; what needs it is skipped without it. ROUNDS: 5 unless set; each file says how many it had. RATES: requests a second
(300,400), and SETTINGS: those to be measured ("cellular/64 merge/64/1"), instead of those below, which are for the machine of
`results`. SHARES: loads as shares of the baselines' peak (0.5,0.8), which then each round begins with: the most that any setting of
a baseline answers to 512 users, each of whom waits for an answer. On a machine that is quick in one minute and slow in the next
that is what half of the peak is; written to `rounds-NAME-shares-SHARES.txt`. Committed files with another ending are earlier or
later runs, some with other settings.
"""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "release" / "cellstream"
RESULTS = Path(os.environ.get("RESULTS", Path(__file__).resolve().parent / "results"))
DATA = os.environ.get("DATA", "DATA")
ROUNDS = int(os.environ.get("ROUNDS", "5"))
RATES = [int(rate) for rate in os.environ.get("RATES", "").split(",") if rate]
SHARES = [float(share) for share in os.environ.get("SHARES", "").split(",") if share]
BASELINES = ["padding", "bucketing", "merge"]
USERS = 512

SENTENCES = f"{DATA}/wmt22_lengths.csv:source_words"
PAIRS = f"{DATA}/wmt22_lengths.csv:source_words,reference_words"
TREES = f"{DATA}/ud_ewt_heads.jsonl"
# Name: what is served, requests a second, policies with their rows and, where they are not what `load` takes unless told, steps at
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
    # Which loads leave p99 within four times the mean of a request alone; at 5 a second nobody shares, so its mean is that.
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


def run(served, setting, arrivals, seed, seconds):
    """What one run prints of itself."""
    policy, batch, *more = setting
    warm_up, window = seconds
    command = [PROGRAM, "load", *served, "--policies", policy, "--batch", batch, *arrivals]
    command += [f"--{option}={count}" for option, count in zip(("steps-at-once", "workers"), more)]
    command += ["--warm-up", str(warm_up), "--seconds", str(window), "--patience", "5", "--seed", str(seed), "--json"]
    printed = subprocess.run(command, capture_output=True, text=True)
    if printed.returncode != 0:
        sys.exit(printed.stderr)
    lines = [json.loads(line) for line in printed.stdout.splitlines()]
    return next(line for line in lines if line["kind"] == "run")


def measure(name):
    served, rates, settings, seconds = MEASUREMENTS[name]
    settings = [tuple(setting.split("/")) for setting in os.environ.get("SETTINGS", settings).split()]
    baselines = [setting for setting in settings if setting[0] in BASELINES]
    if SHARES and (name.endswith("-p99") or not baselines):
        print(f"{name}: has no baseline, or wants an idle machine; not measured at SHARES", file=sys.stderr)
        return
    shown = " ".join(served).replace(f"{DATA}/", "")
    lines = [f"cellstream load {shown}: p90 in ms, median of {ROUNDS} rounds of {seconds[1]} seconds (least-greatest)"]
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
                users = run(served, setting, ["--closed", str(USERS)], seed + 1, seconds)
                answered[setting].append(users["throughput"])
            peak = max(answered[setting][-1] for setting in baselines)
        for load in loads:
            asked[load].append(round(load * peak) if SHARES else load)
            for setting in turns:
                runs[load, setting].append(run(served, setting, ["--rates", str(asked[load][-1])], seed + 1, seconds))
    if SHARES:
        for setting, of in answered.items():
            lines.append(f"{USERS:5} users     {named(setting)}  answered {statistics.median(of):.0f} ({min(of):.0f}-{max(of):.0f})")
    for (load, setting), of in runs.items():
        mean, p50, p90, p99 = ([one["latency_ms"][p] for one in of] for p in ("mean", "p50", "p90", "p99"))
        throughput = statistics.median(one["throughput"] for one in of)
        share = f" ({load:.0%} of the baselines' peak)" if SHARES else ""
        lines.append(
            f"{statistics.median(asked[load]):5.0f} a second{share}  {named(setting)}  mean {statistics.median(mean):7.1f}"
            f"  p50 {statistics.median(p50):7.1f}  p90 {statistics.median(p90):7.1f} ({min(p90):.1f}-{max(p90):.1f})"
            f"  p99 {statistics.median(p99):7.1f}  answered {throughput:.0f}"
        )
    if name.endswith("-p99"):
        lines += within(runs, loads, settings)
    text = "\n".join(lines) + "\n"
    print(text, flush=True)
    ending = "-".join(["-shares" if SHARES else "-at", *map(str, SHARES or RATES)]) if SHARES or RATES else ""
    (RESULTS / f"rounds-{name}{ending}.txt").write_text(text)


def within(runs, rates, settings):
    """p99 over the mean of a request alone, of the same round: that of all settings at the lowest load, where nobody shares."""
    idle = [runs[rates[0], setting] for setting in settings]
    alone = [statistics.mean(one["latency_ms"]["mean"] for one in together) for together in zip(*idle)]
    yield f"p99 over the mean of a request alone ({statistics.median(alone):.1f} ms), median of rounds (least-greatest)"
    for rate in rates[1:]:
        for setting in settings:
            of = [one["latency_ms"]["p99"] / mean for one, mean in zip(runs[rate, setting], alone)]
            yield f"{rate:5} a second  {named(setting)}  {statistics.median(of):5.2f} ({min(of):.2f}-{max(of):.2f})"


def named(setting):
    policy, batch, *more = setting
    more = "".join(f" {what} {count}" for what, count in zip(("steps", "workers"), more))
    return f"{policy:9} batch {batch + more:13}"


def main():
    wanted = sys.argv[1:] or list(MEASUREMENTS)
    if RATES and SHARES:
        sys.exit("RATES and SHARES: one of them")
    if any(not 0 < share <= 2 for share in SHARES):
        sys.exit("SHARES: of 1, as in 0.5,0.8")
    unknown = [name for name in wanted if name not in MEASUREMENTS]
    if unknown:
        sys.exit(f"{', '.join(unknown)}: not one of {', '.join(MEASUREMENTS)}")
    subprocess.run(["cargo", "build", "--release", "--quiet", "--manifest-path", ROOT / "Cargo.toml"], check=True)
    for name in wanted:
        if name in NEED_DATA and "DATA" not in os.environ:
            print(f"{name}: DATA is not set; skipped", file=sys.stderr)
            continue
        measure(name)


main()
