"""E-BATCH: records of tuning/ebatch. Simulated accelerators beside the claims of the paper, and CPUs."""

from __future__ import annotations

from dataclasses import dataclass

import svg
from markdown import number, table
from records import each_machine, median, newest

MACHINE = "simulated"
NAMES = {
    "padding": "padding",
    "bucketing:10": "bucketing",
    "cellular:5": "cellular",
    "ebatch:64": "E-BATCH, N = 64",
    "ebatch:256": "E-BATCH, N = 256",
    "ebatch:512": "E-BATCH, N = 512",
    "ebatch": "E-BATCH, longest",
}
Row = dict[str, str]


def rows(name: str, **wanted: str | float) -> list[Row]:
    """The rows of an experiment that have these cells; numbers are compared as such."""

    def fits(row: Row) -> bool:
        return all(row[key] == value if isinstance(value, str) else float(row[key]) == value
                   for key, value in wanted.items())  # fmt: skip

    return [row for row in newest(f"ebatch-{name}", MACHINE).rows if fits(row)]


def value(name: str, column: str, **wanted: str | float) -> float:
    """A cell of the only row that fits."""
    (row,) = rows(name, **wanted)
    return float(row[column])


def ratio(name: str, column: str, over: Row | dict[str, str], under: Row | dict[str, str], **wanted: str | float) -> float:
    """One cell over another."""
    return value(name, column, **over, **wanted) / value(name, column, **under, **wanted)


@dataclass
class Claim:
    """A number of the paper, and that of the simulation: a ratio, a percentage or a rate."""

    figure: str
    words: str
    paper: float
    found: float
    unit: str = "×"

    def verdict(self) -> str:
        """Whether the number is found again within 15 % (of percentages within 2); of a ratio at least its side of 1."""
        if abs(self.found / self.paper - 1) <= 0.15 or (self.unit == " %" and abs(self.found - self.paper) <= 2):
            return "yes"
        if self.unit == "×" and (self.found - 1) * (self.paper - 1) > 0 and abs(self.found - 1) > 0.02:
            return "ordering"
        return "no"

    def line(self) -> list[str]:
        """A row of the table."""
        return [f"{self.words} ({self.figure})", f"{number(self.paper)}{self.unit}", f"{number(self.found)}{self.unit}",
                self.verdict()]  # fmt: skip


@dataclass
class Ordering:
    """A sentence of the paper without a number: two values of the simulation, and which should be lower."""

    figure: str
    words: str
    lower: float
    higher: float
    unit: str

    def line(self) -> list[str]:
        """A row of the table."""
        found = f"{number(self.lower)} {self.unit}, {number(self.higher)} {self.unit}"
        return [f"{self.words} ({self.figure})", "lower", found, "ordering" if self.lower < self.higher else "no"]


def policy(name: str) -> dict[str, str]:
    """The cells that choose a policy."""
    return {"policy": name}


def claims() -> str:
    """Each claim with a number beside the simulation."""
    at_peak, below = {"sustained": "true"}, {"sustained": "false"}
    padding, bucketing, cellular, longest = (policy(name) for name in ("padding", "bucketing:10", "cellular:5", "ebatch"))
    n256 = policy("ebatch:256")

    def share(name: str, column: str, **wanted: str | float) -> float:
        return 100 * value(name, column, **wanted)

    def wasted(**wanted: str | float) -> float:
        useful, lost = (share("fig15", column, **wanted) for column in ("useful", "wasted"))
        return 100 * lost / (useful + lost)

    def energy(name: str, **wanted: str | float) -> float:
        return value(name, "mj_per_request", **wanted)

    def latency(**wanted: str | float) -> float:
        return value("fig15", "mean_ms", **wanted, **below)

    speech = {"rate": 1000, "lengths": "uniform:10..1800"}
    compared: list[Claim | Ordering] = [
        Claim("Fig 15", "highest rate of E-BATCH over padding, MNMT", 1.83, ratio("fig15", "rate", n256, padding, **at_peak)),
        Claim("Fig 16", "the same, DeepSpeech 2", 1.77, ratio("fig16", "rate", n256, padding, **at_peak)),
        Claim("Fig 19", "the same, MNMT on the systolic array", 2.1,
              ratio("fig19", "rate", policy("ebatch:512"), padding, **at_peak)),
        Claim("section 3.1", "useless part of padding's computations", 40, wasted(**padding, **at_peak), " %"),
        Claim("section 3.1", "useless part of bucketing's", 5, wasted(**bucketing, **at_peak), " %"),
        Claim("Fig 7", "lane time that padding wastes, DeepSpeech 2 at 1000/s", 26,
              share("fig7", "wasted", **padding, **speech), " %"),
        Claim("Fig 7", "lane time that bucketing wastes", 5.2, share("fig7", "wasted", **bucketing, **speech), " %"),
        Claim("section 4.2", "64 lanes over one, rate", 36, ratio("unbatched", "rate", {"lanes": 64}, {"lanes": 1})),
        Claim("section 4.2", "one lane over 64, energy of a request", 3.15,
              ratio("unbatched", "mj_per_request", {"lanes": 1}, {"lanes": 64})),
        Ordering("Fig 8", "one layer: energy of cellular below padding", energy("fig8", **cellular, layers=1),
                 energy("fig8", **padding, layers=1), "mJ"),
        Claim("Fig 8", "3 layers: energy of cellular over padding, 100/s", 11,
              ratio("fig8", "mj_per_request", cellular, padding, layers=3)),
        Ordering("Fig 8", "3 layers: energy of padding below bucketing", energy("fig8", **padding, layers=3),
                 energy("fig8", **bucketing, layers=3), "mJ"),
        Ordering("Fig 9", "weights per request from 2 to 8 layers: padding grows less than cellular",
                 *(ratio("fig8", "weight_mb_per_request", {"layers": 8}, {"layers": 2}, **which)
                   for which in (padding, cellular)), "×"),
        Claim("section 7.1", "latency of bucketing over padding, MNMT at 100/s", 7,
              latency(**bucketing, rate=100) / latency(**padding, rate=100)),
        Claim("section 7.1", "highest rate of cellular, MNMT", 100, value("fig15", "rate", **cellular, **at_peak), "/s"),
        Claim("section 7.1", "energy of cellular over padding, each at its highest rate, MNMT", 20,
              ratio("fig15", "mj_per_request", cellular, padding, **at_peak)),
        Claim("section 3.2", "energy saved by waiting at a low load, DeepSpeech 2 at 5/s", 2.3,
              ratio("wait", "mj_per_request", {"wait_ms": 0}, {"wait_ms": 500}, rate=5)),
        Ordering("Fig 15", "latency of padding below that of E-BATCH with its wait, MNMT at 100/s",
                 latency(**padding, rate=100), latency(**longest, rate=100), "ms"),
        Ordering("Fig 15", "latency of E-BATCH below that of padding, MNMT at 1000/s",
                 latency(**longest, rate=1000), latency(**padding, rate=1000), "ms"),
        Ordering("Figs 15, 16", "latency of MNMT below that of DeepSpeech 2, E-BATCH at 100/s",
                 latency(**longest, rate=100), value("fig16", "mean_ms", **longest, rate=100, **below), "ms"),
        Claim("Fig 17", "energy of padding over E-BATCH, each at its highest rate, MNMT", 3.6,
              ratio("fig15", "mj_per_request", padding, n256, **at_peak)),
        Ordering("Fig 17", "energy of N = 256 below N = 64, MNMT at 1000/s",
                 *(energy("fig15", **policy(f"ebatch:{cap}"), rate=1000, **below) for cap in (256, 64)), "mJ"),
        Claim("section 7.2", "static part of E-BATCH's energy", 47, share("fig15", "background", **n256, **at_peak), " %"),
        *(Claim("Fig 20", f"energy of padding over E-BATCH with N = {cap}, systolic at 2000/s", paper,
                ratio("fig19", "mj_per_request", padding, policy(f"ebatch:{cap}"), rate=2000, **below))
          for cap, paper in ((128, 1.3), (256, 1.46), (512, 1.6))),
    ]  # fmt: skip
    return table(("claim", "paper", "simulated", "again"), (one.line() for one in compared))


def rates() -> str:
    """The highest rates by policy."""
    lines = []
    for name, words in (("fig15", "MNMT, E-PUR"), ("fig16", "DeepSpeech 2, E-PUR"), ("fig19", "MNMT, systolic")):
        at_peak = rows(name, sustained="true")
        padding = float(next(row["rate"] for row in at_peak if row["policy"] == "padding"))
        lines += [[words, row["policy"], number(float(row["rate"]), 4), number(float(row["rate"]) / padding),
                   number(float(row["mj_per_request"])), f"{100 * float(row['background']):.0f} %",
                   number(float(row["weight_mb_per_request"]))] for row in at_peak]  # fmt: skip
    heading = ("network, accelerator", "policy", "requests/s", "over padding", "mJ/request", "static", "weights, MB/request")
    return table(heading, lines)


def assumptions() -> str:
    """How the ratios depend on the assumptions."""
    lines = []
    for network in ("mnmt", "deep-speech-2"):
        for accelerator in ("e-pur", "systolic"):
            for words, wanted in (
                ("as in Table 2", {"memory_pj_per_byte": 43.5, "memory_gbs": 25.6, "overlap": "false"}),
                ("160 pJ a byte of memory", {"memory_pj_per_byte": 160}),
                ("reads overlap with steps", {"overlap": "true"}),
                ("12.8 GB/s", {"memory_gbs": 12.8}),
            ):
                where = {"network": network, "accelerator": accelerator, **wanted}
                of = {row["policy"]: row for row in rows("assumptions", **where)}

                def over(column: str, a: str, b: str, of: dict[str, Row] = of) -> str:
                    return number(float(of[a][column]) / float(of[b][column]))

                lines.append([f"{network}, {accelerator}", words, over("rate", "ebatch", "padding"),
                              over("rate", "cellular:5", "padding"), over("mj_per_request", "padding", "ebatch"),
                              over("mj_per_request", "cellular:5", "ebatch")])  # fmt: skip
    heading = ("network, accelerator", "assumption", "rate, E-BATCH / padding", "rate, cellular / padding",
               "energy, padding / E-BATCH", "energy, cellular / E-BATCH")  # fmt: skip
    return table(heading, lines)


def lengths() -> str:
    """How the gain depends on the lengths."""
    lines = []
    for accelerator in ("e-pur", "systolic"):
        for name in dict.fromkeys(row["lengths"] for row in rows("lengths")):
            of = {row["policy"]: row for row in rows("lengths", accelerator=accelerator, lengths=name)}
            useful, wasted = (float(of["padding"][column]) for column in ("useful", "wasted"))
            lines.append([f"{accelerator}, {name}", f"{100 * wasted / (useful + wasted):.0f} %",
                          number(float(of["ebatch:256"]["rate"]) / float(of["padding"]["rate"])),
                          number(float(of["ebatch:256"]["rate"]) / float(of["cellular:5"]["rate"]))])  # fmt: skip
    heading = ("accelerator, steps of MNMT", "useless part of padding", "rate, E-BATCH / padding", "rate, E-BATCH / cellular")
    return table(heading, lines)


def by_load() -> str:
    """N by load and deadline beside fixed N."""
    lines = []
    for network, deadline in (("mnmt", 60), ("deep-speech-2", 800)):
        at = rows("by-load", network=network)
        for rate in dict.fromkeys(row["rate"] for row in at):
            here = {row["policy"]: row for row in at if row["rate"] == rate}
            chosen = here.pop("ebatch:by-load")
            best = min(here.values(), key=lambda row: float(row["mean_ms"]))
            lines.append([f"{network}, {float(rate):.0f}/s", number(float(here["ebatch"]["mean_ms"])),
                          f"{number(float(best['mean_ms']))} ({best['policy'].replace('ebatch:', 'N = ')})",
                          number(float(chosen["mean_ms"])),
                          f"{100 * min(float(row['late']) for row in here.values()):.0f} %",
                          f"{100 * float(chosen['late']):.0f} % of {deadline} ms"])  # fmt: skip
    heading = ("network, load", "longest, ms", "best fixed N, ms", "by load, ms", "late, least of fixed N", "late, by load")
    return table(heading, lines)


def waits() -> str:
    """The wait T at low loads."""
    lines = [[f"{float(row['rate']):.0f}/s", row["wait_ms"], number(float(row["mean_ms"])),
              number(float(row["mj_per_request"])), number(float(row["weight_mb_per_request"]))]
             for row in rows("wait")]  # fmt: skip
    return table(("load", "T, ms", "mean latency, ms", "mJ/request", "weights, MB/request"), lines)


def lines_of(name: str, x: str, y: str, above: float = 0.0) -> list[svg.Line]:
    """A line for each policy, over the rates that it sustains."""
    found = []
    for key, words in NAMES.items():
        peak = [float(row["rate"]) for row in rows(name, policy=key, sustained="true")]
        points = [(float(row[x]), float(row[y])) for row in rows(name, policy=key, sustained="false")
                  if float(row["rate"]) <= 1.01 * peak[0] and float(row[y]) > above]  # fmt: skip
        if points:
            found.append(svg.Line(words, points))
    return found


def figures_15_to_20() -> str:
    """Latency and requests per joule against throughput."""
    cases = (("fig15", "MNMT, E-PUR", "15", "17"), ("fig16", "DeepSpeech 2, E-PUR", "16", "18"),
             ("fig19", "MNMT, systolic array", "19", "20"))  # fmt: skip
    panels = [svg.Panel(f"Figure {number_}: {words}", "answered a second", "mean latency, ms",
                        lines_of(name, "answered_per_s", "mean_ms")) for name, words, number_, _ in cases]  # fmt: skip
    panels += [svg.Panel(f"Figure {number_}: {words}", "answered a second", "requests per joule",
                         lines_of(name, "answered_per_s", "requests_per_joule")) for name, words, _, number_ in cases]  # fmt: skip
    return svg.panels("E-BATCH on simulated accelerators", panels, columns=3)


def figures_8_and_9() -> str:
    """Energy and weights by depth."""

    def by_depth(column: str) -> list[svg.Line]:
        of = {key: rows("fig8", policy=key) for key in NAMES}
        return [svg.Line(NAMES[key], [(float(row["layers"]), float(row[column])) for row in found if float(row["layers"]) > 1])
                for key, found in of.items() if found]  # fmt: skip

    panels = [svg.Panel("Figure 8: energy", "layers of MNMT, at 100/s", "mJ a request", by_depth("mj_per_request")),
              svg.Panel("Figure 9: weights", "layers of MNMT, at 100/s", "MB a request", by_depth("weight_mb_per_request"))]  # fmt: skip
    return svg.panels("Weights are read again and again where cells are batched", panels)


def settings(row: Row) -> str:
    """The policy with its steps and rows."""
    steps = "" if row["policy"] == "ebatch" else ", single steps" if row["steps_at_once"] == "1" else ""
    return f"{row['policy']}{steps}, {row['batch']} rows"


def serving() -> str:
    """Throughput in a closed loop, and latency at half of the best."""
    lines = []
    for record in each_machine("ebatch-serving"):
        for network in dict.fromkeys(row["network"] for row in record.rows):
            here = [row for row in record.rows if row["network"] == network]
            peaks = {settings(row): row for row in here if row["load"] == "closed"}
            halves = {settings(row): row for row in here if row["load"] == "half"}
            best = median(peaks["ebatch, 64 rows"]["throughput"])
            # Few requests arrive in the window of a slow network, so the shares differ a little.
            borne = 0.8 * max(median(row["throughput"]) for row in halves.values())
            for name, peak in peaks.items():
                half = halves.get(name, {"throughput": "–", "p90_ms": "–"})
                bears = median(half["throughput"]) >= borne
                lines.append([f"{network}, {record.machine}", name, peak["throughput"],
                              number(best / median(peak["throughput"])), peak["p90_ms"],
                              half["p90_ms"] if bears else "not sustained"])  # fmt: skip
    heading = ("network, machine", "policy", "answered/s, closed loop", "ebatch, 64 rows / this", "p90, ms", "p90 at half, ms")
    return table(heading, lines)


def steps() -> str:
    """Rates and bytes of batches of one step and of several, by depth."""
    lines = []
    for record in each_machine("ebatch-steps"):
        for key in dict.fromkeys((row["layers"], row["rows"]) for row in record.rows):
            here = [row for row in record.rows if (row["layers"], row["rows"]) == key]
            layers = "1 layer" if key[0] == "1" else f"{key[0]} layers"
            lines.append([f"{layers}, {key[1]} rows, {record.machine}", here[0]["bound_gflops"],
                          *(f"{row['gflops']}; {row['mb_per_row_step']}" for row in here)])  # fmt: skip
    return table(("MNMT", "bound", "1 step", "4 steps", "16 steps"), lines)


TABLES = {"ebatch-serving": serving, "ebatch-steps": steps, "ebatch-claims": claims, "ebatch-rates": rates, "ebatch-assumptions": assumptions,
          "ebatch-lengths": lengths, "ebatch-by-load": by_load, "ebatch-waits": waits}  # fmt: skip
CHARTS = {"ebatch-load": figures_15_to_20, "ebatch-depth": figures_8_and_9}
