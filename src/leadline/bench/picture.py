"""The result as one SVG file: bars with their intervals, for light and for dark pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

from markupsafe import escape

from leadline.bench.results import Result, Row, Verdict
from leadline.bench.table import FAILED, coverage, interval
from leadline.report.words import percent

WIDTH = 900
LEFT, RIGHT = 310, 200
BAR, GAP, HEADING, TOP, FOOT = 16, 8, 26, 78, 46

STYLE = """
svg{color-scheme:light dark;--page:#fff;--ink:#1d2430;--faint:#667085;--rule:#d5dae2;--bar:#2d6399;--peer:#b18a29;
--mark:#cd2a23;font:13px system-ui,sans-serif}
@media (prefers-color-scheme:dark){svg{--page:#14171c;--ink:#e6e9ef;--faint:#98a1b0;--rule:#353c48;--bar:#4c80f0;
--peer:#e6c860;--mark:#eb8430}}
.page{fill:var(--page)}text{fill:var(--ink)}.title{font-size:15px;font-weight:600}.faint{fill:var(--faint)}
.head{font-weight:600}.end{text-anchor:end}.middle{text-anchor:middle}.rule{stroke:var(--rule);stroke-width:1}
.one{stroke:var(--ink);stroke-width:1;stroke-dasharray:4 3}.bar{fill:var(--bar)}.peer{fill:var(--peer)}
.span{stroke:var(--ink);stroke-width:1.5}.mark{stroke:var(--mark);stroke-width:2.5}
"""


def draw(result: Result) -> str:
    """The picture: one bar a candidate, as a multiple of the baseline's time; a mark where a time target is."""
    groups = [(group, list(rows)) for group, rows in groupby(result.rows, key=lambda row: row.group)]
    shown = [row.ratio for row in result.rows if row.ratio is not None]
    ends = [ratio.high for ratio in shown] + [v.target for row in result.rows for v in _time_targets(row)]
    high = max([1.1, *ends]) * 1.04
    body: list[str] = []
    y = float(TOP)
    for group, rows in groups:
        if group:
            body.append(_text(group, 12, y + 14, "head"))
            y += HEADING
        for row in rows:
            body += _bar(row, y, high, bool(group))
            y += BAR + GAP
        y += GAP
    height = round(y + FOOT)
    what, _, where = result.title.partition(": ")
    words = [
        _text(f"{what}, time as a multiple of {result.baseline}", 12, 24, "title"),
        _text(where, 12, 44, "faint"),
    ]
    axis = _axis(high, TOP - 6, y)
    note = f"bars: medians of {result.rounds} rounds; lines: {percent(coverage(result), 1)} intervals"
    if any(_time_targets(row) for row in result.rows):
        note += "; marks: targets"
    words.append(_text(note + "; shorter is better", 12, height - 8, "faint"))
    inside = "".join([f'<rect class="page" width="{WIDTH}" height="{height}"/>', *axis, *words, *body])
    label = escape(result.title)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">'
        f"<style>{STYLE}</style>{inside}</svg>\n"
    )


def _bar(row: Row, y: float, high: float, grouped: bool) -> list[str]:
    name = row.label if grouped or row.backend in ("-", "auto") else f"{row.label}, {row.backend}"
    parts = [_text(name, LEFT - 10, y + 12.5, "end")]
    if row.ratio is None:
        return [*parts, _text(FAILED if row.failed else "not measured", LEFT + 4, y + 12.5, "faint")]
    ratio = row.ratio
    at, low, top = (_place(value, high) for value in (ratio.median, ratio.low, ratio.high))
    kind = "peer" if row.backend == "peer" else "bar"
    middle = y + BAR / 2
    tip = escape(f"{name}: {interval(ratio, 3)}")
    place = f'x="{LEFT}" y="{y:.1f}" width="{at - LEFT:.1f}" height="{BAR}"'
    parts.append(f'<rect class="{kind}" {place}><title>{tip}</title></rect>')
    parts.append(_line(low, middle, top, middle, "span"))
    parts += [_line(end, middle - 4, end, middle + 4, "span") for end in (low, top)]
    for target in _time_targets(row):
        mark = _place(target.target, high)
        parts.append(_line(mark, y - 3, mark, y + BAR + 3, "mark"))
    parts.append(_text(interval(ratio, 2 if ratio.median >= 10 else 3), WIDTH - RIGHT + 14, y + 12.5, ""))
    return parts


def _time_targets(row: Row) -> list[Verdict]:
    return [verdict for verdict in row.verdicts if verdict.what == "time"]


def _axis(high: float, top: float, bottom: float) -> list[str]:
    parts = []
    for tick in ticks(high):
        x = _place(tick, high)
        parts.append(_line(x, top, x, bottom, "one" if tick == 1 else "rule"))
        parts.append(_text(f"{tick:g}", x, bottom + 16, "faint middle"))
    return parts


def ticks(high: float) -> Sequence[float]:
    """Round numbers from zero, one among them."""
    raw = high / 6
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * m for m in (1, 2, 5, 10) if size * m >= raw)
    found = [round(step * k, 10) for k in range(int(high / step) + 1)]
    return sorted({*found, 1.0})


def _place(value: float, high: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * min(value, high) / high


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(words: str, x: float, y: float, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'
