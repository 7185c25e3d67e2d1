"""Speed beside other libraries: records of benches/references/run."""

from __future__ import annotations

import svg
from markdown import number, table
from records import Record, each_machine, geometric_mean, machines, median, newest

OURS = "gatestream"
PEERS = {"pytorch": "PyTorch", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "tract": "tract", "rten": "rten",
         "candle": "candle"}  # fmt: skip
# Not in any mean: the cost of a call, and the rows that ragged ones are compared with.
UNCOUNTED = ("call", "equal")
SUITES = {
    "table1-2-threads": "Table 1, two cores",
    "table1-1-thread": "Table 1, one core",
    "table1-int8-2-threads": "Table 1, int8, two cores",
    "table1-bf16-2-threads": "Table 1, bf16, two cores",
    "models-2-threads": "networks of papers and oneDNN, two cores",
    "sweep-2-threads": "sizes, batches and steps, two cores",
    "table1-tensorflow-2-threads": "Table 1 with at most 256 units, TensorFlow alone",
}


def counted(record: Record) -> list[dict[str, str]]:
    """The rows that means are over."""
    return [row for row in record.rows if row["group"] not in UNCOUNTED and row["ratio"]]


def over_ours(row: dict[str, str], peer: str) -> float:
    """A peer's median time over ours; NaN where its answer was wrong or there is none."""
    if peer in row["wrong"].split():
        return float("nan")
    return median(row.get(f"{peer}_median_ms", "")) / median(row[f"{OURS}_median_ms"])


def mean_over_ours(rows: list[dict[str, str]], peer: str) -> float:
    """The geometric mean of `over_ours`."""
    return geometric_mean(over_ours(row, peer) for row in rows)


def machine_table() -> str:
    """All machine kinds."""
    keys = ("kind", "cpu", "cores", "isa", "l2_kib", "l3_mib", "f32_gflops", "l3_gbs", "memory_gbs")
    heading = ("kind", "processor", "cores", "instruction set", "L2, KiB a core", "L3, MiB", "f32, GFLOP/s a core",
               "L3, GB/s a core", "memory, GB/s a core")  # fmt: skip
    return table(heading, ([row[key] for key in keys] for row in machines().values()))


def speed(machine: str) -> str:
    """For the README: how many times as long each library takes."""
    f32 = newest("table1-2-threads", machine)
    rows = counted(f32)
    parts = {
        "all 30 rows of DeepCPU's Table 1": rows,
        "batch 1, at most 256 units": [row for row in rows if row["group"] == "batch 1, hidden <= 256"],
        "batch 1, 1024 units": [row for row in rows if row["group"] == "batch 1, hidden 1024"],
        "batch 10 and 20": [row for row in rows if row["group"] == "batch 10 and 20"],
    }
    # The int8 row is of the same machine, where it was measured.
    if int8 := [record for record in each_machine("table1-int8-2-threads") if record.machine == machine]:
        parts["all 30 rows in int8"] = counted(int8[0])
    lines = []
    for name, part in parts.items():
        peers = (number(mean_over_ours(part, peer)) for peer in PEERS)
        lines.append([name, *peers, f"**{number(geometric_mean(median(row['ratio']) for row in part))}**"])
    note = (
        f"Time over gatestream's, geometric means over the rows each library supports; {where(f32)}, two cores, f32 "
        "unless marked int8."
    )
    return f"{note}\n\n{table(['', *PEERS.values(), 'fastest'], lines)}"


def where(record: Record) -> str:
    """Machine and date in words."""
    return f"{machines()[record.machine]['cpu']}, {record.date}"


def summary() -> str:
    """One line for each suite and machine."""
    lines = []
    for name, words in SUITES.items():
        for record in each_machine(name):
            rows = counted(record)
            ratios = [median(row["ratio"]) for row in rows]
            least = min(rows, key=lambda row: median(row["ratio"]))
            behind = sum(ratio < 1 for ratio in ratios)
            lines.append([words, record.machine, record.date, number(geometric_mean(ratios)), f"{behind} of {len(rows)}",
                          f"{number(median(least['ratio']))} ({least['row']})"])  # fmt: skip
    return table(("rows", "machine", "date", "fastest peer / ours", "behind", "least"), lines)


def rows_of(name: str, machine: str) -> str:
    """Every row of a record: medians in ms."""
    record = newest(name, machine)
    peers = [peer for peer in PEERS if f"{peer}_median_ms" in record.rows[0]]
    lines = []
    for row in record.rows:
        wrong = row["wrong"].split()
        cells = [number(median(row[f"{peer}_median_ms"])) + (" (wrong)" if peer in wrong else "") for peer in peers]
        share = f"{100 * median(row['of_bound']):.0f} %" if row["of_bound"] else "–"
        lines.append(
            [row["row"], *cells, f"**{number(median(row[f'{OURS}_median_ms']))}**", number(median(row["ratio"])), share]
        )
    return table(["ms", *(PEERS[peer] for peer in peers), OURS, "fastest / ours", "of bound"], lines)


def behind() -> str:
    """The rows in which a peer is faster, over all records."""
    lines = []
    for name, words in SUITES.items():
        for record in each_machine(name):
            for row in counted(record):
                if median(row["ratio"]) < 1:
                    lines.append([row["row"], words, record.machine, PEERS.get(row["best_peer"], row["best_peer"]),
                                  number(median(row["ratio"]))])  # fmt: skip
    return table(("row", "suite", "machine", "fastest", "fastest / ours"), lines)


def published() -> str:
    """Whole published models on the machine with the newest record: both at their best number of threads."""
    record = newest("published")
    lines = []
    for row in record.rows:
        share = f"{100 * median(row['recurrent_share']):.0f} %"
        if not row["difference"]:
            lines.append([row["file"], share, "does not run", "–", "–", "–"])
            continue
        of = {name: [median(value) for key, value in row.items() if key.startswith(name) and "median" in key and value]
              for name in ("onnxruntime", OURS)}  # fmt: skip
        best = [number(min(of[name])) if of[name] else "–" for name in ("onnxruntime", OURS)]
        judged = "right" if row["right"] == "yes" else "differs"
        ratio = f"**{number(median(row['ratio']))}**" if row["ratio"] else "–"
        lines.append([row["file"], share, f"{judged} ({row['difference']})", *best, ratio])
    head = ("file", "recurrent nodes, of ONNX Runtime's time", "answer", "ONNX Runtime, ms", "gatestream, ms", "ratio")
    return f"{where(record)}, the faster of one and two threads of each.\n\n{table(head, lines)}"


def provider() -> str:
    """Published models in ONNX Runtime, without and with the execution provider."""
    record = newest("provider")
    lines = []
    for row in record.rows:
        share = f"{100 * median(row['recurrent_share']):.0f} %"
        judged = "right" if row["right"] == "yes" else "differs"
        times = [number(median(row[f"{name}_median_ms"])) for name in ("onnxruntime", "provider")]
        answer = f"{judged} ({row['difference']})" if row["difference"] != "inf" else "of another length"
        lines.append([row["file"], share, row["claimed"], answer, *times, f"**{number(median(row['ratio']))}**"])
    head = ("file", "recurrent nodes, of the time", "nodes", "answer", "ONNX Runtime, ms", "with gatestream, ms", "ratio")
    return f"{where(record)}, ONNX Runtime's defaults.\n\n{table(head, lines)}"


def relative(machine: str = "zen-5") -> str:
    """The bar chart of the README."""
    record = newest("table1-2-threads", machine)
    bars = [(OURS, 1.0)] + [(words, mean_over_ours(counted(record), peer)) for peer, words in PEERS.items()]
    title = "Median time relative to gatestream, DeepCPU's Table 1 (LSTM and GRU, f32)"
    return svg.bars(
        title, f"geometric mean of 30 rows; {where(record)}, two cores", sorted(bars, key=lambda bar: bar[1]), unit="×"
    )


TABLES = {"machines": machine_table, "speed": speed, "libraries": summary, "rows": rows_of, "behind": behind,
          "published": published, "provider": provider}  # fmt: skip
CHARTS = {"table1": relative}
