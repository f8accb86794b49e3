"""Makes the table of docs/benchmarks.md and its charts from the figures of one run.

    make bench ARGS='--json figures.jsonl'
    python3 benches/page.py figures.jsonl

Replaces the lines between the two markers of the page, and writes docs/images/cost-by-clients.svg and cost-by-resources.svg.
"""

import json
import re
import sys
from collections import defaultdict
from math import ceil, floor, log10
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->\n"
# Figures that the table has also where they have no goal.
RATIOS = ["times less CPU than linear", "CPU in F"]
SERIES = [("linear", "go-control-plane's LinearCache", "#c2410c"), ("relay", "deltafan", "#1d4ed8"), ("F", "raw loop", "#6b7280")]


def rows(path):
    """The figures of each row, in the order of the run."""
    found = defaultdict(dict)
    for line in path.read_text().splitlines():
        each = json.loads(line)
        figures, what, figure = found[each["row"]], each["what"], each["figure"]
        # A row may judge several pages or fleets alike: the worst counts.
        if isinstance(figure, dict) and "sign" in figure and what in figures:
            worst = max if figure["sign"] == "≤" else min
            figure["value"] = worst(figure["value"], figures[what]["value"])
        figures[what] = figure
    return found


def number(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def cost(who, figures):
    time = f", {number(figures['ms'])} ms" if "ms" in figures else ""
    return f"{who} {number(figures['us'])} µs{time}"


def goal(what, figure):
    value, sign = figure["value"], figure["sign"]
    bounds = dict.fromkeys([figure["must"], figure["stretch"]])
    holds = [value <= bound if sign == "≤" else value >= bound for bound in bounds]
    judged = [f"{sign} {bound:g}{'' if good else ': **missed**'}" for bound, good in zip(bounds, holds)]
    return f"{what} **{number(value)}** ({', '.join(judged)})"


def table(found):
    lines = ["| Row | CPU of an update or a join | Figures, with their goals |", "|---|---|---|"]
    for row, figures in found.items():
        costs = [cost(what, each) for what, each in figures.items() if isinstance(each, dict) and "us" in each]
        goals = [goal(what, each) for what, each in figures.items() if isinstance(each, dict) and "sign" in each]
        goals += [f"{what} {number(figures[what])}" for what in RATIOS if isinstance(figures.get(what), float)]
        lines.append(f"| {row} | {'; '.join(costs)} | {'; '.join(goals)} |")
    return "\n".join(lines) + "\n"


def chart(title, unit, points):
    """An SVG of CPU per update against a count, both on logarithmic scales. `points`: who → [(count, µs)]."""
    width, height, left, right, top, bottom = 640, 360, 60, 20, 40, 50
    counts = sorted({count for series in points.values() for count, _ in series})
    costs = [us for series in points.values() for _, us in series]
    low, high = floor(log10(min(costs))), ceil(log10(max(costs)))
    first, last = log10(counts[0]), log10(counts[-1])

    def x(count):
        return left + (log10(count) - first) / (last - first) * (width - left - right)

    def y(us):
        return height - bottom - (log10(us) - low) / (high - low) * (height - top - bottom)

    text = 'font-family="sans-serif" font-size="12" fill="#374151"'
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{title}">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{left}" y="20" {text} font-weight="bold">{title}</text>',
        f'<text x="{(left + width) // 2}" y="{height - 10}" text-anchor="middle" {text}>{unit}</text>',
    ]
    for power in range(low, high + 1):
        at = y(10**power)
        out.append(f'<line x1="{left}" x2="{width - right}" y1="{at:.1f}" y2="{at:.1f}" stroke="#e5e7eb"/>')
        out.append(f'<text x="{left - 6}" y="{at + 4:.1f}" text-anchor="end" {text}>{10**power:g} µs</text>')
    for count in counts:
        out.append(f'<text x="{x(count):.1f}" y="{height - bottom + 18}" text-anchor="middle" {text}>{count:,}</text>')
    for who, label, color in SERIES:
        series = sorted(points.get(who, []))
        if not series:
            continue
        path = " ".join(f"{x(count):.1f},{y(us):.1f}" for count, us in series)
        out.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        out += [f'<circle cx="{x(count):.1f}" cy="{y(us):.1f}" r="3" fill="{color}"/>' for count, us in series]
        count, us = series[len(series) // 2]
        at = y(us) + (18 if who == "F" else -10)
        out.append(f'<text x="{x(count):.1f}" y="{at:.1f}" text-anchor="end" {text.replace("#374151", color)}>{label}</text>')
    return "\n".join([*out, "</svg>", ""])


def points(found, pattern):
    """CPU per update of each server in the rows whose name has one varying number."""
    series = defaultdict(list)
    for row, figures in found.items():
        if match := re.fullmatch(pattern, row):
            for who, *_ in SERIES:
                if who in figures:
                    series[who].append((int(match[1]), figures[who]["us"]))
    return series


def main():
    found = rows(Path(sys.argv[1]))
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    PAGE.write_text(before + BEGIN + table(found) + END + rest.split(END)[1])
    images = ROOT / "docs" / "images"
    by_clients = points(found, r"delta wildcard (\d+) x 100")
    (images / "cost-by-clients.svg").write_text(chart("CPU of an update, 100 resources", "clients", by_clients))
    by_resources = points(found, r"delta wildcard 1000 x (\d+)")
    (images / "cost-by-resources.svg").write_text(chart("CPU of an update, 1,000 clients", "resources", by_resources))


main()
