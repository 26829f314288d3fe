"""The pictures of what a connection does inside: directions along depth, depth weights, gates, streams, mixing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup

from leadline.compare.report.pictures import middle, names, sublayer
from leadline.compare.report.values import DesignValues, ReportValues, some
from leadline.drawing import heat, svg
from leadline.drawing.heat import Shades
from leadline.drawing.lines import Axis, LinePicture, Panel, Series
from leadline.drawing.pictures import Picture
from leadline.drawing.svg import tag
from leadline.drawing.words import fixed, plain, significant

MOST_TIPS = 6000
"""A picture with more cells than this goes without their words, which would make the page too large."""


def angles(report: ReportValues) -> Picture | None:
    """Angular distance between what the blocks read: a triangle per design, all on one scale."""
    designs = [d for d in report.designs if any(some(r) for r in d.depth.angular_distance)]
    if not designs:
        return None
    everything = [v for d in designs for r in d.depth.angular_distance for v in some(r)]
    shades = Shades.of(everything)
    told = len(everything) / 2 <= MOST_TIPS

    def draw(d: DesignValues) -> Markup:
        last = len(d.depth.angular_distance)
        label = f"Angular distance between what the blocks of {d.name} read."

        def tip(i: int, j: int, v: float) -> str:
            return f"{j + 1} to {'readout' if i + 1 == last else i + 1}: {fixed(v)}"

        return heat.triangle(d.depth.angular_distance, shades, label, tip if told else None)

    return Picture(
        name="angular-distance",
        heading="Angular distance between blocks",
        reading="A cell compares what two blocks read, by the angle between them: faint cells along the slope mean "
        "neighbours that see nearly the same, so the blocks between them change little.",
        note="0 is one direction and 0.5 a right angle. Rows and columns are blocks; the last row is the readout.",
        body=shades.bar("angle ÷ π") + _panels(designs, draw, "small"),
    )


def depth_weights(report: ReportValues) -> Picture | None:
    """How Attention Residuals weigh their sources: a row per read."""
    designs = [d for d in report.designs if any(some(r) for r in d.depth.depth_weights)]
    if not designs:
        return None
    shades = Shades.of([], root=True, high=1.0)
    told = sum(len(r) for d in designs for r in d.depth.depth_weights) <= MOST_TIPS

    def draw(d: DesignValues) -> Markup:
        values = d.depth.depth_weights

        def tip(i: int, j: int, v: float) -> str:
            even = v * len(values[i])
            return f"{_read(i, len(values))}, source {j + 1}: {significant(v)} ({significant(even, 2)} × an even share)"

        label = f"Depth weights of {d.name}: a row per sublayer, a column per source."
        titles = ("↓ one row per sublayer, by block", "← embedding")
        return heat.ragged(values, shades, label, tip if told else None, titles)

    return Picture(
        name="depth-weights",
        heading="Depth weights",
        reading="Each row is one sublayer's read and sums to one: a strong first column means that it goes back to the "
        "embedding, a strong diagonal that it listens to its neighbours, and an even row that it averages all "
        "of depth.",
        note="Sources run from the embedding on the left to the latest output, or the running block's sum, on the "
        "right.",
        body=shades.bar("weight (colours by its root)") + _panels(designs, draw, "large"),
    )


def gates(report: ReportValues) -> Picture | None:
    """The write gates of Multi-Gate Residuals: the mean over streams as lines, every stream as a strip."""
    # Hyper-connections call what they write with gates as well, but it replaces nothing.
    designs = [d for d in report.designs if any(some(r) for r in d.depth.gates) and not d.depth.mixing]
    if not designs:
        return None
    series = []
    for d in designs:
        means = [(1 + i / 2, middle(some(r))) for i, r in enumerate(d.depth.gates)]
        band = [(1 + i / 2, min(some(r)), max(some(r))) for i, r in enumerate(d.depth.gates) if some(r)]
        series.append(Series(index=d.index, name=d.name, key=d.key, points=means, band=band))
    everything = [v for d in designs for r in d.depth.gates for v in some(r)]
    low, high = svg.limits(everything, zero=True)
    lines = _by_block(series, f"Mean write gate of every sublayer, for {names(designs)}.", "write gate β", low, high)
    shades = Shades.of(everything, root=True)

    def draw(d: DesignValues) -> Markup:
        def tip(i: int, s: int, v: float) -> str:
            return f"{_read(i, len(d.depth.gates) + 1)}, stream {s + 1}: {significant(v)}"

        return heat.strip(
            d.depth.gates, shades, f"Write gates of {d.name}: a column per sublayer, a row per stream.", tip
        )

    return Picture(
        name="gates",
        heading="Write gates",
        reading="A gate of 0.1 replaces a tenth of a stream by the sublayer's output: the lines are means over the "
        "streams within a shade from the least to the most open one, and the strips below show every stream.",
        note="The first sublayers, which append streams, have no gate.",
        body=lines + shades.bar("gate (colours by its root)") + _panels(designs, draw, "strips"),
    )


def diversity(report: ReportValues) -> Picture | None:
    """How different the streams are, for every design that has several."""
    designs = [d for d in report.designs if some(d.depth.stream_diversity)]
    if not designs:
        return None
    series = [
        Series(
            index=d.index,
            name=d.name,
            key=d.key,
            points=[(1 + i / 2, v) for i, v in enumerate(d.depth.stream_diversity)],
        )
        for d in designs
    ]
    low, high = svg.limits([v for s in series for v in s.values], zero=True)
    label = f"Stream diversity before every sublayer, for {names(designs)}."
    return Picture(
        name="stream-diversity",
        heading="Stream diversity",
        reading="Zero means that all streams point the same way and could be one, and one that they are at right "
        "angles and carry different things.",
        note="1 − the mean cosine between pairs of streams, before each sublayer.",
        body=_by_block(series, label, "stream diversity", low, high),
    )


def mixing(report: ReportValues) -> Picture | None:
    """The stream-mixing matrices of hyper-connections: one per sublayer."""
    designs = [d for d in report.designs if any(some(r) for m in d.depth.mixing for r in m)]
    if not designs:
        return None
    everything = [v for d in designs for m in d.depth.mixing for r in m for v in some(r)]
    shades = Shades.of(everything, root=True)

    def draw(d: DesignValues) -> Markup:
        def tips(site: int) -> heat.Tip:
            name = sublayer(1 + site / 2, 0.0)
            return lambda i, j, v: f"{name}, into stream {i + 1} from stream {j + 1}: {fixed(v)}"

        return heat.matrices(d.depth.mixing, shades, f"Mixing matrices of {d.name}, one per sublayer.", tips)

    return Picture(
        name="mixing",
        heading="Mixing between streams",
        reading="Each square says how much of every stream goes into every other at one sublayer: a strong diagonal "
        "alone keeps the streams apart, and colour beside it mixes them.",
        note="Rows are the streams written to, columns those read from.",
        body=shades.bar("entry (colours by its root)") + _panels(designs, draw, "strips"),
    )


def inside(report: ReportValues) -> list[Picture]:
    """All of these that have values."""
    found = [depth_weights(report), gates(report), diversity(report), mixing(report)]
    return [p for p in found if p is not None]


def _panels(designs: Sequence[DesignValues], draw: Callable[[DesignValues], Markup], size: str) -> Markup:
    shown = [
        tag("figure", tag("figcaption", tag("span", "", class_="swatch"), d.name), draw(d), class_=f"panel d{d.index}")
        for d in designs
    ]
    return tag("div", *shown, class_=f"panels {size}")


def _by_block(series: Sequence[Series], label: str, axis: str, low: float, high: float) -> Markup:
    last = max(p[0] for s in series for p in s.points)
    whole = svg.whole_ticks(1, max(int(last), 1), 12)
    return LinePicture(
        label=label,
        x=Axis(label="block", low=1.0, high=max(last, 1.5), at=[(float(v), str(v)) for v in whole]),
        y=Axis(label=axis, low=low, high=high, shown=plain),
        panels=[Panel(title="", series=series)],
        tip=lambda name, x, y: f"{name}, {sublayer(x, 0.0)}: {significant(y)}",
    ).draw()


def _read(index: int, count: int) -> str:
    return "readout" if index == count - 1 and count % 2 else sublayer(1 + index / 2, 0.0)
