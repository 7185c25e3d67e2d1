"""Reads and writes measurements: CSV files in benches/record/<machine>/<date>/.

A record has lines `# key: value` above its table. A cell may be a median with quartiles, least and
greatest in parentheses: `1.14 (1.05–1.20)`; `median` reads the first number.
"""

from __future__ import annotations

import csv
import datetime
import io
import math
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "benches" / "record"


@dataclass
class Record:
    """One measurement: the machine kind and date of its folder, its notes and its rows."""

    machine: str
    date: str
    notes: dict[str, str]
    rows: list[dict[str, str]]


def read(path: Path) -> Record:
    """Reads one file. Notes without a key are dropped."""
    lines = path.read_text(encoding="utf-8").splitlines()
    notes = dict(line[2:].split(": ", 1) for line in lines if line.startswith("# ") and ": " in line)
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    return Record(path.parent.parent.name, path.parent.name, notes, rows)


def newest(name: str, machine: str = "*", wanted: Callable[[dict[str, str]], bool] | None = None) -> Record:
    """The newest record of that name: on a machine kind if one is given, with a row that is wanted if that is said."""
    found = sorted(RECORD.glob(f"{machine}/*/{name}.csv"), key=lambda path: (path.parent.name, path), reverse=True)
    for record in map(read, found):
        if wanted is None or any(map(wanted, record.rows)):
            return record
    raise SystemExit(f"no such record of {name} for {machine} in {RECORD.relative_to(ROOT)}")


def each_machine(name: str) -> list[Record]:
    """The newest record of that name of each machine kind that has one, in the order of machines.csv."""
    return [newest(name, kind) for kind in machines() if any(RECORD.glob(f"{kind}/*/{name}.csv"))]


def machines() -> dict[str, dict[str, str]]:
    """The machine kinds of machines.csv, by their folder's name."""
    return {row["kind"]: row for row in read(RECORD / "machines.csv").rows}


def folder() -> Path:
    """Where measurements made now on this machine go: `<machine>/<today>`, made if absent. RECORD_FOLDER overrides it."""
    given = os.environ.get("RECORD_FOLDER")
    path = Path(given) if given else RECORD / this_machine() / f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
    path.mkdir(parents=True, exist_ok=True)
    return path


def this_machine() -> str:
    """The kind in machines.csv that has the vendor, family and model of /proc/cpuinfo."""
    pairs = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines())
    info = {key.strip(): value.strip() for key, _, value in pairs}
    here = tuple(info.get(key, "") for key in ("vendor_id", "cpu family", "model"))
    for kind, row in machines().items():
        if (row["vendor"], row["family"], row["model"]) == here:
            return kind
    raise SystemExit(f"no machine kind for {here}: add it to benches/record/machines.csv, or set RECORD_FOLDER")


def write(path: Path, notes: dict[str, str], rows: Iterable[dict[str, object]]) -> None:
    """Writes a record; the first row's keys are its columns."""
    rows = list(rows)
    text = io.StringIO()
    text.writelines(f"# {key}: {value}\n" for key, value in notes.items())
    table = csv.DictWriter(text, rows[0].keys(), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    path.write_text(text.getvalue(), encoding="utf-8")


def stamp(command: str) -> dict[str, str]:
    """The notes that every record has: when, by which command, and of which commit."""
    date = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC"
    return {"date": date, "command": command, "revision": revision()}


def revision() -> str:
    """The commit of this checkout, and whether its sources were changed."""

    def git(*words: str) -> str:
        if not shutil.which("git"):
            return ""
        return subprocess.run(
            ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False
        ).stdout.strip()

    changed = " with changes" if git("status", "--porcelain", "--", "src", "crates") else ""
    return (git("rev-parse", "--short", "HEAD") or "unknown") + changed


def median(cell: str) -> float:
    """The number at the start of a cell; NaN where there is none."""
    try:
        return float(cell.split()[0].replace(",", ""))
    except (IndexError, ValueError):
        return math.nan


def geometric_mean(values: Iterable[float]) -> float:
    """NaN where there are no values."""
    logs = [math.log(value) for value in values if value > 0]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan
