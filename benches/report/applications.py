"""Applications with recurrent layers: records of tuning/applications."""

from __future__ import annotations

from markdown import table
from records import machines, newest

OURS, NETWORK = "gatestream", "gatestream network"
PEERS = {"pytorch": "PyTorch", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}
TITLES = {"attention_sum_reader": "attention sum reader", "bidaf": "BiDAF"}
SIMILARITY = "text_similarity_"


def title(application: str) -> str:
    """What an application is called in tables."""
    documents = application.removeprefix(SIMILARITY)
    return TITLES.get(application) or f"text similarity, {documents} document{'' if documents == '1' else 's'}"


def times(machine: str) -> str:
    """Figure 6: each library with its best number of threads."""
    record = newest("applications", machine)
    rows = record.rows
    # A record may be without networks.
    libraries = [OURS, *({NETWORK} & {row["library"] for row in rows}), *PEERS]
    lines = []
    for application in dict.fromkeys(row["application"] for row in rows):
        best = {
            library: min(
                float(row["median_ms"]) for row in rows
                if (row["application"], row["library"]) == (application, library)
            )
            for library in libraries
        }  # fmt: skip
        fastest = min(best[peer] for peer in PEERS)
        cells = (f"{best[library]:.3f}" for library in libraries)
        lines.append([title(application), *cells, f"{fastest / best[OURS]:.2f}"])
    titles = (PEERS.get(library, "layers" if library == OURS else "`Network`") for library in libraries)
    head = f"{machines()[machine]['cpu']}, {record.date}.\n\n"
    return head + table(("milliseconds", *titles, "fastest peer / layers"), lines)


def layers(machine: str, *chosen: str) -> str:
    """Tables 3 and 4: the time of each layer of applications that have the same layers."""
    rows = [row for row in newest("applications-layers", machine).rows if row["application"].startswith(chosen)]
    names = list(dict.fromkeys(row["application"] for row in rows))
    of = {(row["application"], row["layer"]): float(row["median_ms"]) for row in rows}
    parts = list(dict.fromkeys(row["layer"] for row in rows))
    lines = [[part, *(f"{of[name, part]:.3f}" for name in names)] for part in parts]
    lines.append(["all", *(f"{sum(of[name, part] for part in parts):.3f}" for name in names)])
    return table(("milliseconds", *(title(name) for name in names)), lines)


TABLES = {
    "applications": times,
    "application-layers": layers,
}
