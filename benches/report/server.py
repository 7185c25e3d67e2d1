"""The server: records of benches/server."""

from __future__ import annotations

from markdown import table
from records import Record, machines, newest


def heading(record: Record) -> str:
    return f"{machines()[record.machine]['cpu']}, {record.date}.\n\n"


def wire(machine: str) -> str:
    """Latency and throughput over HTTP and gRPC, beside the engine in one process."""
    record = newest("wire", machine)
    lines = [
        [row["case"], row["client"], f"{int(row['requests_s']):,}", row["p50_ms"], row["p99_ms"], row["p999_ms"]]
        for row in record.rows
    ]
    return heading(record) + table(("case", "client", "requests/s", "p50 ms", "p99 ms", "p99.9 ms"), lines)


def peers(machine: str) -> str:
    """The server beside Python servers."""
    record = newest("wire-peers", machine)
    lines = [list(row.values()) for row in record.rows]
    return heading(record) + table(("model", "server", "load", "answered/s", "p50 ms", "p99 ms"), lines)


def several(machine: str) -> str:
    """Simulated machines, beside a measured one."""
    record = newest("machines", machine)
    lines = [
        [
            f"{row['machines']}, {row['kind']}", f"{float(row['load']):.0%}", f"{int(row['rate']):,}",
            row["p50_ms"], row["p90_ms"], row["p99_ms"],
        ]
        for row in record.rows
    ]  # fmt: skip
    titles = ("machines", "of the peak", "requests/s", "p50 ms", "p90 ms", "p99 ms")
    return heading(record) + table(titles, lines)


def soak(machine: str) -> str:
    """What the clients of the soak test did, and what became of the server."""
    record = newest("soak", machine)
    (row,) = record.rows
    figures = [
        ["minutes", f"{float(row.pop('minutes')):g}"],
        ["slowest of the probes, s", row.pop("slowest_probe_s")],
        ["memory after the warm-up, MB", f"{row.pop('least_mb')} to {row.pop('most_mb')}"],
        ["growth, MB an hour", row.pop("slope_mb_per_hour")],
        ["requests", f"{int(row.pop('requests')):,}"],
    ]
    counts = [[name.replace("_", " "), f"{int(count):,}"] for name, count in row.items()]
    return heading(record) + table(("soak", ""), figures + counts)


TABLES = {"wire": wire, "wire-peers": peers, "simulated-machines": several, "soak": soak}
