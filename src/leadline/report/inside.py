"""Pictures of matrices, and of what a connection does inside: depth weights, gates, streams, mixing.

Each takes (entry, values) for every model and draws those that have some; None where none has.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import TypeVar

from markupsafe import Markup

from leadline.report import heat, svg
from leadline.report.heat import Shades
from leadline.report.lines import Axis, LinePicture, Panel, numbers_of
from leadline.report.over_blocks import by_sublayer, place_of, series
from leadline.report.pictures import Entry, Numbers, Picture, PictureSpec, Row, some
from leadline.report.specs import Specs
from leadline.report.svg import tag
from leadline.report.words import fixed, listed, plain, significant

SPECS = Specs("leadline.report")

MOST_TIPS = 6000
"""A picture with more cells than this goes without their words, which would make the page too large."""
MOST_NUMBERS = 4000
"""And one with more than this without its numbers, which the file beside the page has."""

T = TypeVar("T")
Matrix = Sequence[Row]
Found = Sequence[tuple[Entry, Matrix]]


def panels(found: Sequence[tuple[Entry, T]], draw: Callable[[Entry, T], Markup], size: str) -> Markup:
    """A titled panel for each entry, hidden with it; `draw` gets the entry and what was found for it.

    `size` is "small" (many in a row), "large" (about two) or "strips" (each as wide as the page).
    """
    shown = []
    for entry, values in found:
        caption = tag("figcaption", tag("span", "", class_="swatch"), entry.name)
        shown.append(tag("figure", caption, draw(entry, values), class_=f"panel d{entry.index}"))
    return tag("div", *shown, class_=f"panels {size}")


def triangles(
    found: Sequence[tuple[Entry, Matrix]],
    spec: PictureSpec,
    *,
    high: float | None = None,
    numbers: bool = True,
) -> Picture | None:
    """Symmetric matrices over what the blocks read: a triangle each; None where none has values.

    Args:
        found: row and column i are what block i reads, the last row is what the last block leaves.
        high: the value of the strongest colour; the largest one that is there unless given.
    """
    kept = [(entry, values) for entry, values in found if any(some(row) for row in values)]
    if not kept:
        return None
    everything = [v for _, values in kept for row in values for v in some(row)]
    shades = Shades.of(everything, high=high)
    told = len(everything) / 2 <= MOST_TIPS

    def draw(entry: Entry, values: Matrix) -> Markup:
        def tip(i: int, j: int, v: float) -> str:
            return f"{j} to {_state(i, len(values))}: {fixed(v)}"

        return heat.triangle(values, shades, spec.label.format(name=entry.name), tip if told else None)

    body = shades.bar(spec.bar) + panels(kept, draw, "small")
    if not numbers or len(everything) > MOST_NUMBERS:
        return spec.picture(body)
    columns = [str(column) for column in range(max(len(values) for _, values in kept))]
    return spec.picture(body, _table(kept, "block", columns, _state, fixed, named=len(kept) > 1))


def _state(row: int, rows: int) -> str:
    return "readout" if row + 1 == rows else str(row)


def _table(
    found: Found,
    head: str,
    columns: Sequence[str],
    place: Callable[[int, int], str],
    shown: Callable[[float | None], str],
    *,
    named: bool = True,
) -> Numbers:
    """The rows of all models; `place` has a row's name from its number and how many there are."""
    return Numbers(
        head=head,
        columns=columns,
        rows=[
            (
                f"{entry.name}, {place(i, len(values))}" if named else place(i, len(values)),
                [shown(row[j] if j < len(row) else None) for j in range(len(columns))],
            )
            for entry, values in found
            for i, row in enumerate(values)
        ],
    )


def angles(found: Found, *, numbers: bool = True) -> Picture | None:
    """Angular distance between what the blocks read, and the readout: a triangle per model, all on one scale."""
    return triangles(found, SPECS("angular-distance"), numbers=numbers)


def depth_weights(found: Found, *, numbers: bool = True) -> Picture | None:
    """How Attention Residuals weigh their sources: a row per read."""
    kept = _with_values(found)
    told = sum(len(r) for _, values in kept for r in values) <= MOST_TIPS
    shades = Shades.of([], root=True, high=1.0)

    def draw(entry: Entry, values: Matrix) -> Markup:
        def tip(i: int, j: int, v: float) -> str:
            even = v * len(values[i])
            return f"{_read(i, len(values))}, source {j}: {significant(v)} ({significant(even, 2)} × an even share)"

        label = f"Depth weights of {entry.name}: a row per sublayer, a column per source."
        titles = ("↓ one row per sublayer, by block", "← embedding")
        return heat.ragged(values, shades, label, tip if told else None, titles)

    rows = _row_numbers(kept, "source", readout=True, shown=numbers)
    return _heat("depth-weights", kept, draw, shades, "large", rows)


def stream_reads(found: Found, *, numbers: bool = True) -> Picture | None:
    """How a read divides itself over the streams of Multi-Gate Residuals or hyper-connections: a strip per model."""
    kept = _with_values(found)
    shades = Shades.of(_all(kept), root=True)

    def draw(entry: Entry, values: Matrix) -> Markup:
        def tip(i: int, s: int, v: float) -> str:
            return f"{_read(i, len(values))}, of stream {s}: {significant(v)}"

        label = f"Reads of {entry.name}: a column per sublayer and the readout, a row per stream."
        return heat.strip(values, shades, label, tip)

    rows = _row_numbers(kept, "stream", readout=True, shown=numbers)
    return _heat("stream-reads", kept, draw, shades, "strips", rows)


def gates(found: Found, *, numbers: bool = True) -> Picture | None:
    """The write gates of Multi-Gate Residuals: the mean over streams as lines, every stream as a strip."""
    kept = _with_values(found)
    if not kept:
        return None
    lines = []
    for entry, values in kept:
        means = by_sublayer(statistics.fmean(some(r)) if some(r) else None for r in values)
        band = [(i / 2, min(some(r)), max(some(r))) for i, r in enumerate(values) if some(r)]
        lines.append(Panel(title=entry.name if len(kept) > 1 else "", series=[series(entry, means, band)]))
    low, high = svg.limits(_all(kept), zero=True)
    label = f"Mean write gate of every sublayer, for {listed([entry.name for entry, _ in kept])}."
    drawn = _by_place(lines, label, "write gate β", low, high, named=len(kept) == 1)
    shades = Shades.of(_all(kept), root=True)

    def draw(entry: Entry, values: Matrix) -> Markup:
        def tip(i: int, s: int, v: float) -> str:
            return f"{_read(i, len(values) + 1)}, stream {s}: {significant(v)}"

        return heat.strip(values, shades, f"Write gates of {entry.name}: a column per sublayer, a row per stream.", tip)

    return _heat("gates", kept, draw, shades, "strips", _row_numbers(kept, "stream", shown=numbers), drawn)


def diversity(found: Sequence[tuple[Entry, Row]], *, numbers: bool = True) -> Picture | None:
    """How different the streams are, for every model that has several."""
    lines = [series(entry, by_sublayer(values)) for entry, values in found if some(values)]
    if not lines:
        return None
    low, high = svg.limits([v for line in lines for v in line.values], zero=True)
    label = f"Stream diversity before every sublayer, for {listed([line.name for line in lines])}."
    return SPECS("stream-diversity").picture(
        _by_place([Panel(title="", series=lines)], label, "stream diversity", low, high),
        numbers=numbers_of(lines, "sublayer", place_of, significant) if numbers else None,
    )


def mixing(found: Sequence[tuple[Entry, list[list[Row]]]], *, numbers: bool = True) -> Picture | None:
    """The stream-mixing matrices of hyper-connections: one per sublayer."""
    kept = [(entry, matrices) for entry, matrices in found if any(some(r) for m in matrices for r in m)]
    flat = [(entry, [[v for r in m for v in r] for m in matrices]) for entry, matrices in kept]
    shades = Shades.of(_all(flat), root=True)

    def draw(entry: Entry, matrices: list[list[Row]]) -> Markup:
        def tips(site: int) -> heat.Tip:
            return lambda i, j, v: f"{place_of(site / 2)}, into stream {i} from stream {j}: {fixed(v)}"

        return heat.matrices(matrices, shades, f"Mixing matrices of {entry.name}, one per sublayer.", tips)

    return _heat("mixing", kept, draw, shades, "strips", _row_numbers(flat, "entry", shown=numbers))


def _with_values(found: Found) -> list[tuple[Entry, Matrix]]:
    return [(entry, values) for entry, values in found if any(some(r) for r in values)]


def _all(found: Found) -> list[float]:
    return [v for _, values in found for r in values for v in some(r)]


def _heat(
    name: str,
    found: Sequence[tuple[Entry, T]],
    draw: Callable[[Entry, T], Markup],
    shades: Shades,
    size: str,
    numbers: Numbers | None,
    above: Markup | None = None,
) -> Picture | None:
    """A heat map for each model under the bar of their colours; `size` as of `panels`."""
    if not found:
        return None
    spec = SPECS(name)
    return spec.picture((above or Markup("")) + shades.bar(spec.bar) + panels(found, draw, size), numbers)


def _by_place(drawn: Sequence[Panel], label: str, axis: str, low: float, high: float, *, named: bool = True) -> Markup:
    last = max(p[0] for panel in drawn for s in panel.series for p in s.points)
    whole = svg.whole_ticks(0, int(last), 12 if len(drawn) == 1 else 5)
    return LinePicture(
        label=label,
        x=Axis(label="block", low=0.0, high=max(last, 0.5), at=[(float(v), str(v)) for v in whole]),
        y=Axis(label=axis, low=low, high=high, shown=plain),
        panels=drawn,
        named=named,
        tip=lambda name, x, y: f"{name}, {place_of(x)}: {significant(y)}",
    ).draw()


def _read(index: int, count: int) -> str:
    return "readout" if index == count - 1 and count % 2 else place_of(index / 2)


def _row_numbers(found: Found, column: str, *, shown: bool, readout: bool = False) -> Numbers | None:
    """A row of the table for every sublayer of every model; None where they are not `shown`, or too many."""
    columns = max((len(r) for _, values in found for r in values), default=0)
    if not shown or columns * sum(len(values) for _, values in found) > MOST_NUMBERS:
        return None
    names = [f"{column} {i}" for i in range(columns)]
    return _table(found, "sublayer", names, lambda i, rows: _read(i, rows + (not readout)), significant)
