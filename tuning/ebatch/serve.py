#!/usr/bin/env python3
"""Serves the networks of E-BATCH on this machine by policy, and records throughput and latency.

    cargo build --release -p gatestream-cli
    tuning/ebatch/serve.py DATA [--program FILE] [--only NAME,…] [--rounds N] [--seconds S]

DATA is a folder with wmt22_lengths.csv (words of sentences; tuning/serving/run has the same). One worker has all
cores. First each setting serves a closed loop of users; then all serve half the rate of the best one.
Writes `<record>/<machine>/<today>/ebatch-serving.csv`.
"""

from __future__ import annotations

import argparse
import csv
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benches" / "report"))
import records  # noqa: E402
from markdown import number  # noqa: E402

# The options of the networks of Table 1, the lengths, seconds relative to MNMT's, and users of the closed loop.
MNMT = (["lstm", "--layers", "8", "--input", "1024", "--hidden", "1024"], "sentences", 1.0, "128")
SPEECH = (["gru", "--layers", "5", "--input", "800", "--hidden", "800"], "speech", 4.0, "64")
NETWORKS = {
    "mnmt": (*MNMT, "f32"),
    "mnmt-int8": (*MNMT, "int8"),
    "deep-speech-2": (*SPEECH, "f32"),
    "deep-speech-2-int8": (*SPEECH, "int8"),
}
# The policy, the most steps of a batch of few rows, and the rows.
SETTINGS = [
    *(("cellular", "1", rows) for rows in ("16", "32", "64")),
    *((policy, "4", "64") for policy in ("cellular", "shortest", "padding", "merge")),
    *(("ebatch", "4", rows) for rows in ("16", "32", "64")),
]
QUICK = [("cellular", "1", "64"), ("cellular", "4", "64"), ("shortest", "4", "64"), ("ebatch", "4", "16"), ("ebatch", "4", "64")]


def speech_lengths(folder: Path) -> Path:
    """A file of lengths between the ends of the paper, 10 and 1800."""
    numbers = random.Random(1)
    path = folder / "speech.csv"
    lengths = "\n".join(str(numbers.randint(10, 1800)) for _ in range(2000))
    path.write_text(f"steps\n{lengths}\n", encoding="utf-8")
    return path


def measured(command: list[str], setting: tuple[str, str, str]) -> dict[str, str]:
    """The only row that `gatestream load` writes."""
    policy, steps, rows = setting
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        options = ["--policies", policy, "--steps-at-once", steps, "--batch", rows, "--csv", str(path)]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join([*command, *options])}\n{done.stderr}")
        (row,) = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
        return row


def main() -> int:
    """Measures the networks that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--program", default=str(records.ROOT / "target" / "release" / "gatestream"))
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(NETWORKS))
    parser.add_argument("--quick", action="store_true", help="half of the settings")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    arguments = parser.parse_args()
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        files = {"speech": f"{speech_lengths(Path(folder))}:steps",
                 "sentences": f"{arguments.data / 'wmt22_lengths.csv'}:source_words"}  # fmt: skip
        for name in arguments.only:
            options, lengths, times, users, precision = NETWORKS[name]
            seconds = arguments.seconds * times
            command = [arguments.program, "load", *options, "--precision", precision, "--lengths", files[lengths],
                       "--workers", "1", "--seconds", str(seconds), "--warm-up", str(seconds / 2),
                       "--drain-timeout", "60"]  # fmt: skip
            half = None
            for load in ("closed", "half"):
                of_load = {setting: [] for setting in (QUICK if arguments.quick else SETTINGS)}
                for seed in range(1, arguments.rounds + 1):
                    asked = ["--closed", users] if load == "closed" else ["--rates", f"{half:.1f}"]
                    for setting, found in of_load.items():
                        found.append(measured([*command, *asked, "--seed", str(seed)], setting))
                for (policy, steps, batch), found in of_load.items():
                    row: dict[str, object] = {"network": name, "load": load, "policy": policy, "steps_at_once": steps,
                                              "batch": batch, "rounds": len(found)}  # fmt: skip
                    for column in ("throughput", "p50_ms", "p90_ms", "p99_ms", "mean_batch", "step_p50_ms"):
                        # Some are `cell:number`.
                        values = sorted(float(one[column].rpartition(":")[2]) for one in found)
                        middle, least, most = (number(value, 4) for value in (statistics.median(values), values[0], values[-1]))
                        row[column] = middle if len(values) == 1 else f"{middle} ({least}–{most})"
                    rows.append(row)
                    print(name, load, policy, steps, batch, row["throughput"], row["p90_ms"], flush=True)
                if half is None:
                    half = max(records.median(str(row["throughput"])) for row in rows if row["network"] == name) / 2
    notes = records.stamp(f"tuning/ebatch/serve.py DATA --rounds {arguments.rounds} --seconds {arguments.seconds}")
    path = records.folder() / "ebatch-serving.csv"
    # Networks that were measured before, today, stay.
    before = records.read(path).rows if path.exists() else []
    kept = [row for row in before if row["network"] not in arguments.only]
    records.write(path, notes, [*kept, *rows])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
