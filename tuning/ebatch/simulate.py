#!/usr/bin/env python3
"""Simulates the figures of E-BATCH by `gatestream simulate`, and records them.

    cargo build --release -p gatestream-cli
    tuning/ebatch/simulate.py [--program FILE] [--seconds S] [--only NAME,…]

Writes `<record>/simulated/<today>/ebatch-NAME.csv`, NAME of EXPERIMENTS below. The results depend on the seed
and on no machine.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benches" / "report"))
import records  # noqa: E402

MNMT, SPEECH = ["--network", "mnmt"], ["--network", "deep-speech-2"]
SYSTOLIC = ["--accelerator", "systolic"]
BASELINES = "padding,bucketing,cellular"

# The options of each run, by the name of the record. `--seconds` is added where it is absent.
EXPERIMENTS: dict[str, list[list[str]]] = {
    # Useful and wasted lane time, with two assumptions about the lengths of speech.
    "fig7": [
        [*SPEECH, "--rates", "100,200,1000", "--policies", f"{BASELINES},ebatch", "--lengths", lengths]
        for lengths in ("uniform:10..1800", "normal:700,400,10..1800")
    ],
    # Energy and weights by depth.
    "fig8": [
        [*MNMT, "--layers", str(layers), "--rates", "100", "--policies", f"{BASELINES},ebatch"]
        for layers in (1, 2, 3, 4, 8)
    ],
    "fig15": [
        [*MNMT, *options, "--policies", f"{BASELINES},ebatch:64,ebatch:128,ebatch:256,ebatch"]
        for options in (["--rates", "100,250,500,750,1000,1250,1500,1750"], ["--sustained"])
    ],
    "fig16": [
        [*SPEECH, *options, "--policies", f"{BASELINES},ebatch:256,ebatch:512,ebatch"]
        for options in (["--rates", "20,50,100,150,200,250,300"], ["--sustained"])
    ],
    "fig19": [
        [*MNMT, *SYSTOLIC, *options, "--policies", "padding,cellular,ebatch:128,ebatch:256,ebatch:512,ebatch"]
        for options in (["--rates", "250,500,1000,1250,1500,1750,2000"], ["--sustained"])
    ],
    # The wait T where few requests come.
    "wait": [
        [*SPEECH, "--rates", "5,20", "--policies", "ebatch", "--wait", wait]
        for wait in ("0", "1", "20", "100", "500", "2000")
    ],
    # What decides the magnitudes: the energy of the memory, its bandwidth, and a second weight buffer.
    "assumptions": [
        [*network, *accelerator, "--sustained", "--policies", "padding,cellular,ebatch", *variation]
        for network in (MNMT, SPEECH)
        for accelerator in ([], SYSTOLIC)
        for variation in ([], ["--memory-energy", "160"], ["--overlap"], ["--memory-bandwidth", "12.8"])
    ],
    # Lengths with more or less to pad.
    "lengths": [
        [*MNMT, *accelerator, "--sustained", "--policies", "padding,cellular,ebatch:256", "--lengths", lengths]
        for accelerator in ([], SYSTOLIC)
        for lengths in ("uniform:20..100", "normal:60,10,20..100", "normal:60,20,20..100", "normal:40,15,20..100")
    ],
    # One lane against 64.
    "unbatched": [[*MNMT, "--sustained", "--policies", "padding", "--lanes", lanes] for lanes in ("1", "64")],
    # Beyond the paper: N by load and deadline.
    "by-load": [
        [*network, "--rates", rates, "--deadline", deadline, "--policies", f"{caps},ebatch,ebatch:by-load"]
        for network, rates, deadline, caps in (
            (MNMT, "50,100,500,1000,1500", "60", "ebatch:16,ebatch:32,ebatch:64,ebatch:128"),
            (SPEECH, "5,20,100,200,250", "800", "ebatch:64,ebatch:128,ebatch:256,ebatch:512"),
        )
    ],
}


def rows(program: str, options: list[str], seconds: str) -> list[dict[str, str]]:
    """The results of one call of the program."""
    if "--seconds" not in options:
        options = [*options, "--seconds", seconds]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        subprocess.run([program, "simulate", *options, "--csv", str(path)], check=True, stdout=subprocess.DEVNULL)
        return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def main() -> int:
    """Runs the experiments that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=str(records.ROOT / "target" / "release" / "gatestream"))
    parser.add_argument("--seconds", default="600")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(EXPERIMENTS))
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.only) - set(EXPERIMENTS)):
        parser.error(f"no experiment {', '.join(unknown)}; there are {', '.join(EXPERIMENTS)}")
    today = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
    folder = Path(os.environ.get("RECORD_FOLDER") or records.RECORD / "simulated" / today)
    folder.mkdir(parents=True, exist_ok=True)
    for name in arguments.only:
        found = [row for options in EXPERIMENTS[name] for row in rows(arguments.program, options, arguments.seconds)]
        notes = records.stamp(f"tuning/ebatch/simulate.py --only {name} --seconds {arguments.seconds}")
        records.write(folder / f"ebatch-{name}.csv", notes, found)
        print(f"{name}: {len(found)} rows", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
