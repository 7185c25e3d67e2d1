"""Charts as SVG text: bars and line panels. The same values give the same bytes."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass

# Distinct for most kinds of colour vision; marks of line charts differ in shape as well.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#c9a800", "#56b4e9", "#666666")
FONT = 'font-family="sans-serif" font-size="12"'


@dataclass
class Line:
    """A named sequence of points."""

    name: str
    points: list[tuple[float, float]]


@dataclass
class Panel:
    """One diagram with logarithmic axes."""

    title: str
    x: str
    y: str
    lines: list[Line]


def document(width: int, height: int, title: str, parts: list[str]) -> str:
    """A whole file on a white background."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" {FONT}>'
    )
    return "\n".join([head, f"<title>{html.escape(title)}</title>", '<rect width="100%" height="100%" fill="white"/>',
                      *parts, "</svg>", ""])  # fmt: skip


def text(x: float, y: float, words: str, more: str = "") -> str:
    """Words at a place."""
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{html.escape(words)}</text>'


def rule(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    """A straight line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def bars(title: str, axis: str, values: list[tuple[str, float]], digits: int = 2, unit: str = "") -> str:
    """Horizontal bars from zero, each with its number."""
    left, width, step = 14 + 8 * max(len(name) for name, _ in values), 420, 26
    scale = width / max(value for _, value in values)
    parts = [text(10, 22, title, ' font-weight="bold"')]
    y = 40
    for name, value in values:
        parts.append(text(left - 6, y + 14, name, ' text-anchor="end"'))
        parts.append(f'<rect x="{left}" y="{y}" width="{scale * value:.1f}" height="18" fill="{COLOURS[0]}"/>')
        parts.append(text(left + scale * value + 6, y + 14, f"{value:.{digits}f}{unit}"))
        y += step
    parts.append(text(left, y + 10, axis, ' fill="#555555"'))
    return document(left + width + 60, y + 24, title, parts)


def ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times the powers of ten between two values; more digits where these are fewer than three."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))

    def of(*digits: float) -> list[float]:
        candidates = (round(digit * 10.0**power, 9) for power in range(first, last + 1) for digit in digits)
        return [value for value in candidates if low <= value <= high]

    found = of(1, 2, 5)
    return found if len(found) > 2 else of(1, 1.2, 1.5, 2, 3, 5, 7)


def panels(title: str, drawn: list[Panel], columns: int = 2) -> str:
    """Line charts with logarithmic axes, in a grid, with one legend for all."""
    width, height, top = 380, 250, 62
    names = list(dict.fromkeys(line.name for panel in drawn for line in panel.lines))
    parts = [text(10, 22, title, ' font-weight="bold"')]
    for index, name in enumerate(names):
        x = 14 + 150 * index
        parts.append(f'<rect x="{x}" y="34" width="12" height="12" fill="{COLOURS[index]}"/>')
        parts.append(text(x + 17, 45, name))
    for index, panel in enumerate(drawn):
        column, row = index % columns, index // columns
        parts += diagram(panel, names, width * column, top + height * row, width, height)
    rows = -(-len(drawn) // columns)
    return document(width * columns, top + height * rows, title, parts)


def diagram(panel: Panel, names: list[str], x0: float, y0: float, width: float, height: float) -> list[str]:
    """One panel at a place."""
    xs = [x for line in panel.lines for x, _ in line.points]
    ys = [y for line in panel.lines for _, y in line.points]
    x_low, x_high, y_low, y_high = min(xs) / 1.1, max(xs) * 1.1, min(ys) / 1.2, max(ys) * 1.2
    left, right, top, bottom = x0 + 52, x0 + width - 12, y0 + 22, y0 + height - 42

    def place(x: float, y: float) -> tuple[float, float]:
        across = math.log(x / x_low) / math.log(x_high / x_low)
        up = math.log(y / y_low) / math.log(y_high / y_low)
        return left + across * (right - left), bottom - up * (bottom - top)

    parts = [text(left, y0 + 14, panel.title)]
    for x in ticks(x_low, x_high):
        at, _ = place(x, y_low)
        parts += [rule(at, top, at, bottom, "#dddddd"), text(at, bottom + 15, f"{x:g}", ' text-anchor="middle"')]
    for y in ticks(y_low, y_high):
        _, at = place(x_low, y)
        parts += [rule(left, at, right, at, "#dddddd"), text(left - 5, at + 4, f"{y:g}", ' text-anchor="end"')]
    parts.append(text((left + right) / 2, bottom + 31, panel.x, ' text-anchor="middle" fill="#555555"'))
    middle = (top + bottom) / 2
    turned = f' text-anchor="middle" fill="#555555" transform="rotate(-90 {x0 + 12:.1f} {middle:.1f})"'
    parts.append(text(x0 + 12, middle, panel.y, turned))
    for line in panel.lines:
        index = names.index(line.name)
        places = [place(x, y) for x, y in line.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[index]}" stroke-width="1.5"/>')
        parts += [mark(index, x, y) for x, y in places]
    return parts


def mark(index: int, x: float, y: float) -> str:
    """A point, in the shape and colour of its line."""
    corners = (0, 4, 3, 4, 3, 5, 6)[index]
    if not corners:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" fill="{COLOURS[index]}"/>'
    start = math.pi / 4 if index == 1 else -math.pi / 2
    angles = [start + 2 * math.pi * corner / corners for corner in range(corners)]
    points = " ".join(f"{x + 4 * math.cos(a):.1f},{y + 4 * math.sin(a):.1f}" for a in angles)
    return f'<polygon points="{points}" fill="{COLOURS[index]}"/>'
