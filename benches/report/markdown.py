"""Numbers and tables in Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable


def number(value: float, digits: int = 3) -> str:
    """A number of significant digits, without powers of ten; a dash for NaN."""
    if math.isnan(value):
        return "–"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:.{places}f}"


def table(heading: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """The first column to the left, the others to the right."""
    heading = list(heading)
    lines = [heading, ["---"] + ["---:"] * (len(heading) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
