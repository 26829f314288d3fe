"""The pictures of what a connection does inside: directions along depth, depth weights, gates, streams, mixing.

Each takes (entry, values) for every model and draws those that have some; None where none has.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from markupsafe import Markup

from leadline.report import heat, svg
from leadline.report.heat import Shades
from leadline.report.lines import Axis, LinePicture, Panel, Series
from leadline.report.matrices import MOST_NUMBERS, MOST_TIPS, panels, triangles
from leadline.report.over_blocks import by_sublayer, place_of, series
from leadline.report.pictures import Entry, Numbers, Picture, Row
from leadline.report.reading import some
from leadline.report.specs import Specs
from leadline.report.words import fixed, listed, plain, significant

SPECS = Specs("leadline.report")

Found = Sequence[tuple[Entry, list[Row]]]


def angles(found: Found, *, numbers: bool = True) -> Picture | None:
    """Angular distance between what the blocks read, and the readout: a triangle per model, all on one scale."""
    return triangles(found, SPECS("angular-distance"), numbers=numbers)


def depth_weights(found: Found, *, numbers: bool = True) -> Picture | None:
    """How Attention Residuals weigh their sources: a row per read."""
    kept = _with_values(found)
    if not kept:
        return None
    shades = Shades.of([], root=True, high=1.0)
    told = sum(len(r) for _, values in kept for r in values) <= MOST_TIPS

    def draw(place: int) -> Markup:
        entry, values = kept[place]

        def tip(i: int, j: int, v: float) -> str:
            even = v * len(values[i])
            return f"{_read(i, len(values))}, source {j}: {significant(v)} ({significant(even, 2)} × an even share)"

        label = f"Depth weights of {entry.name}: a row per sublayer, a column per source."
        titles = ("↓ one row per sublayer, by block", "← embedding")
        return heat.ragged(values, shades, label, tip if told else None, titles)

    return SPECS("depth-weights").picture(
        shades.bar("weight (colours by its root)") + panels([entry for entry, _ in kept], draw, "large"),
        numbers=_row_numbers(kept, "source", readout=True) if numbers else None,
    )


def stream_reads(found: Found, *, numbers: bool = True) -> Picture | None:
    """How a read divides itself over the streams of Multi-Gate Residuals or hyper-connections: a strip per model."""
    kept = _with_values(found)
    if not kept:
        return None
    shades = Shades.of([v for _, values in kept for r in values for v in some(r)], root=True)

    def draw(place: int) -> Markup:
        entry, values = kept[place]

        def tip(i: int, s: int, v: float) -> str:
            return f"{_read(i, len(values))}, of stream {s}: {significant(v)}"

        label = f"Reads of {entry.name}: a column per sublayer and the readout, a row per stream."
        return heat.strip(values, shades, label, tip)

    return SPECS("stream-reads").picture(
        shades.bar("weight (colours by its root)") + panels([entry for entry, _ in kept], draw, "strips"),
        numbers=_row_numbers(kept, "stream", readout=True) if numbers else None,
    )


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
    everything = [v for _, values in kept for r in values for v in some(r)]
    low, high = svg.limits(everything, zero=True)
    label = f"Mean write gate of every sublayer, for {_names(kept)}."
    drawn = _by_place(lines, label, "write gate β", low, high, named=len(kept) == 1)
    shades = Shades.of(everything, root=True)

    def draw(place: int) -> Markup:
        entry, values = kept[place]

        def tip(i: int, s: int, v: float) -> str:
            return f"{_read(i, len(values) + 1)}, stream {s}: {significant(v)}"

        return heat.strip(values, shades, f"Write gates of {entry.name}: a column per sublayer, a row per stream.", tip)

    return SPECS("gates").picture(
        drawn + shades.bar("gate (colours by its root)") + panels([entry for entry, _ in kept], draw, "strips"),
        numbers=_row_numbers(kept, "stream") if numbers else None,
    )


def diversity(found: Sequence[tuple[Entry, Row]], *, numbers: bool = True) -> Picture | None:
    """How different the streams are, for every model that has several."""
    kept = [(entry, values) for entry, values in found if some(values)]
    if not kept:
        return None
    lines = [series(entry, by_sublayer(values)) for entry, values in kept]
    low, high = svg.limits([v for line in lines for v in line.values], zero=True)
    label = f"Stream diversity before every sublayer, for {_names(kept)}."
    return SPECS("stream-diversity").picture(
        _by_place([Panel(title="", series=lines)], label, "stream diversity", low, high),
        numbers=_line_numbers(lines) if numbers else None,
    )


def mixing(found: Sequence[tuple[Entry, list[list[Row]]]], *, numbers: bool = True) -> Picture | None:
    """The stream-mixing matrices of hyper-connections: one per sublayer."""
    kept = [(entry, matrices) for entry, matrices in found if any(some(r) for m in matrices for r in m)]
    if not kept:
        return None
    everything = [v for _, matrices in kept for m in matrices for r in m for v in some(r)]
    shades = Shades.of(everything, root=True)

    def draw(place: int) -> Markup:
        entry, matrices = kept[place]

        def tips(site: int) -> heat.Tip:
            name = place_of(site / 2)
            return lambda i, j, v: f"{name}, into stream {i} from stream {j}: {fixed(v)}"

        return heat.matrices(matrices, shades, f"Mixing matrices of {entry.name}, one per sublayer.", tips)

    shown = [(entry, [[v for r in m for v in r] for m in matrices]) for entry, matrices in kept]
    return SPECS("mixing").picture(
        shades.bar("entry (colours by its root)") + panels([entry for entry, _ in kept], draw, "strips"),
        numbers=_row_numbers(shown, "entry") if numbers else None,
    )


def _with_values(found: Found) -> list[tuple[Entry, list[Row]]]:
    return [(entry, values) for entry, values in found if any(some(r) for r in values)]


def _names(found: Sequence[tuple[Entry, object]]) -> str:
    return listed([entry.name for entry, _ in found])


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


def _line_numbers(lines: Sequence[Series]) -> Numbers:
    at = [dict(line.points) for line in lines]
    return Numbers(
        head="sublayer",
        columns=[line.name for line in lines],
        rows=[
            (place_of(x), [significant(values.get(x)) for values in at])
            for x in sorted({x for values in at for x in values})
        ],
    )


def _row_numbers(found: Sequence[tuple[Entry, list[Row]]], column: str, *, readout: bool = False) -> Numbers | None:
    """A row of the table for every sublayer of every model."""
    columns = max(len(r) for _, values in found for r in values)
    if columns * sum(len(values) for _, values in found) > MOST_NUMBERS:
        return None
    return Numbers(
        head="sublayer",
        columns=[f"{column} {i}" for i in range(columns)],
        rows=[
            (
                f"{entry.name}, {_read(i, len(values) + (not readout))}",
                [significant(r[j] if j < len(r) else None) for j in range(columns)],
            )
            for entry, values in found
            for i, r in enumerate(values)
        ],
    )
