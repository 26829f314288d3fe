"""The pictures along depth: one line per design over the blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from leadline.compare.report.pictures import line_of, sublayer
from leadline.compare.report.values import DesignValues, ReportValues, some
from leadline.drawing import svg
from leadline.drawing.lines import Axis, LinePicture, Panel, Point
from leadline.drawing.pictures import Numbers, Picture, Row
from leadline.drawing.words import fixed, listed, plain, significant


def along_depth(report: ReportValues) -> list[Picture]:
    """One line per design over the blocks: sizes, gradients, and what each block is worth."""
    designs = report.designs
    found = [_growth(designs), _reads(designs), _outputs(designs), _gradients(designs), _removal(designs)]
    return [p for p in found if p is not None]


def _growth(designs: Sequence[DesignValues]) -> Picture | None:
    def relative(d: DesignValues) -> list[Point]:
        values = d.depth.block_output_rms
        base = values[1] if len(values) > 2 else None
        return (
            [(i + 1.0, v / base if v is not None and base else None) for i, v in enumerate(values)][1:] if base else []
        )

    summed = ", for hyper-connections the mean of their streams" if any(d.depth.mixing for d in designs) else ""
    return _depth_picture(
        designs,
        relative,
        log=True,
        name="growth",
        heading="Activation growth",
        label="Block-output RMS relative to block 2, on a logarithmic axis",
        axis="block-output RMS ÷ that of block 2",
        reading="A line that climbs means that the signal handed to the next block keeps growing, which leaves each "
        "later block a smaller share of it, while a level line means that depth stays open.",
        note=f"A block's output is what the next block reads; the last point is the readout{summed}. Block 1 is left "
        "out: its jump comes from the small embedding.",
        rule=(1.0, "as large as after block 2"),
        tip="{name}, block {x}: {y} times block 2",
    )


def _reads(designs: Sequence[DesignValues]) -> Picture | None:
    return _depth_picture(
        designs,
        lambda d: _by_sublayer(d.depth.read_rms),
        log=True,
        name="reads",
        heading="What each sublayer reads",
        label="RMS of what each sublayer reads before its norm, on a logarithmic axis",
        axis="RMS of the read, before the norm",
        reading="Each point is the size of what one sublayer sees of depth, so compare the slopes rather than "
        "the heights.",
        note="A read that averages k sources is about √k times smaller than their sum, by averaging alone; hence the "
        "picture of outputs below.",
        tip="{name}, {part}: {y}",
        by_sublayer=True,
    )


def _outputs(designs: Sequence[DesignValues]) -> Picture | None:
    def part(d: DesignValues, first: int) -> list[Point]:
        return [(i + 1.0, v) for i, v in enumerate(d.depth.output_rms[first::2])]

    return _depth_picture(
        designs,
        lambda d: part(d, 0),
        second=lambda d: part(d, 1),
        titles=("attention", "MLP"),
        log=True,
        name="outputs",
        heading="What each sublayer writes",
        label="RMS of what each sublayer gives back, attention and MLP apart, on a logarithmic axis",
        axis="RMS of the output",
        reading="Where outputs grow along depth, later sublayers have to shout to be heard over a stream that "
        "grows as well.",
        tip="{name}, block {x}: {y}",
    )


def _gradients(designs: Sequence[DesignValues]) -> Picture | None:
    def percent(d: DesignValues) -> list[Point]:
        return [(i + 1.0, None if v is None else 100 * v) for i, v in enumerate(d.depth.gradient_share)]

    blocks = max((len(d.depth.gradient_share) for d in designs), default=0)
    return _depth_picture(
        designs,
        percent,
        zero=True,
        name="gradient-share",
        heading="Gradient share",
        label="Share of the gradient's norm that each block received over training, in percent",
        axis="share of all blocks' gradient norm, %",
        reading="Each point is the part of the training signal that reached a block over the whole run; "
        "a line that falls means that the early blocks took most of it.",
        rule=(100 / blocks, "an even share") if blocks else None,
        tip="{name}, block {x}: {y} %",
    )


def _removal(designs: Sequence[DesignValues]) -> Picture | None:
    values = sorted(v for d in designs for v in some(d.depth.removal))
    if not values:
        return None
    floor = min(0.001, max(values[-1], 1e-6) / 100)
    under = values[0] < floor
    return _depth_picture(
        designs,
        lambda d: [(i + 1.0, v) for i, v in enumerate(d.depth.removal)],
        log=True,
        floor=floor,
        name="removal",
        heading="Loss when a block is removed",
        label="Rise in held-out bits per byte when one block is left out, on a logarithmic axis",
        axis="rise in bits per byte",
        reading="Each point is what the trained model loses when this one block is skipped, so a block low down "
        "does next to nothing and a high one is needed.",
        note=f"On the lower edge lie rises under {plain(floor)}, and falls: models that are better without the block."
        if under
        else "",
        tip="{name} without block {x}: {y} bits per byte",
        decimals=4,
    )


def _depth_picture(
    designs: Sequence[DesignValues],
    points: Callable[[DesignValues], list[Point]],
    *,
    name: str,
    heading: str,
    label: str,
    axis: str,
    reading: str,
    tip: str,
    note: str = "",
    log: bool = False,
    zero: bool = False,
    floor: float | None = None,
    rule: tuple[float, str] | None = None,
    second: Callable[[DesignValues], list[Point]] | None = None,
    titles: tuple[str, str] = ("", ""),
    decimals: int | None = None,
    by_sublayer: bool = False,
) -> Picture | None:
    """A picture with the blocks along its x axis; None where no design has values."""
    functions = [points, second] if second else [points]
    panels = []
    for title, function in zip(titles, functions, strict=False):
        lines = [line_of(d, _positive(function(d)) if log and floor is None else function(d)) for d in designs]
        panels.append(Panel(title=title, series=[s for s in lines if s.values]))
    series = [s for p in panels for s in p.series]
    if not series:
        return None
    values = [v for s in series for v in s.values]
    low, high = svg.limits(values if floor is None else [max(v, floor) for v in values], log=log, zero=zero)
    if rule:
        low, high = min(low, rule[0]), max(high, rule[0])
    x_low, x_high = min(p[0] for s in series for p in s.points), max(p[0] for s in series for p in s.points)
    end = int(x_high) - by_sublayer
    whole = svg.whole_ticks(int(x_low), max(end, int(x_low)), 12 if not second else 5)
    at = [(float(v), str(v)) for v in whole] + ([(x_high, "out")] if by_sublayer else [])

    def written(design: str, x: float, y: float) -> str:
        value = fixed(y, decimals) if decimals else significant(y)
        return tip.format(name=design, x=plain(x), y=value, part=sublayer(x, x_high))

    picture = LinePicture(
        label=f"{label}, for {listed([s.name for s in panels[0].series])}.",
        x=Axis(label="block", low=x_low, high=max(x_high, x_low + 1e-6), at=at),
        y=Axis(label=axis, low=low, high=high, log=log),
        panels=panels,
        rule=rule,
        floor=floor is not None,
        tip=written,
    )
    numbers = _depth_numbers(panels, lambda v: fixed(v, decimals) if decimals else significant(v), by_sublayer)
    return Picture(name=name, heading=heading, reading=reading, note=note, body=picture.draw(), numbers=numbers)


def _depth_numbers(panels: Sequence[Panel], shown: Callable[[float | None], str], by_sublayer: bool) -> Numbers:
    several = len(panels) > 1
    columns = [f"{s.name}, {p.title}" if several else s.name for p in panels for s in p.series]
    at = [dict(s.points) for p in panels for s in p.series]
    places = sorted({x for values in at for x in values})
    label = (lambda x: sublayer(x, places[-1])) if by_sublayer else plain
    return Numbers(
        head="sublayer" if by_sublayer else "block",
        columns=columns,
        rows=[(label(x), [shown(values.get(x)) for values in at]) for x in places],
    )


def _by_sublayer(values: Row) -> list[Point]:
    return [(1 + i / 2, v) for i, v in enumerate(values)]


def _positive(points: Iterable[Point]) -> list[Point]:
    return [(x, y if y is not None and y > 0 else None) for x, y in points]
