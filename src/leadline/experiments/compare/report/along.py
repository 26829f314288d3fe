"""The pictures along depth: one line per design over the blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from leadline.experiments.compare.report.pictures import line_of
from leadline.experiments.compare.report.values import DesignValues, ReportValues
from leadline.report.lines import Panel, Point
from leadline.report.over_blocks import by_block, by_sublayer, linear_below, over_blocks, signed_note
from leadline.report.pictures import Picture
from leadline.report.reading import some


def along_depth(report: ReportValues) -> list[Picture]:
    """One line per design over the blocks: sizes, gradients, and each block's importance."""
    designs = report.designs
    found = [_growth(designs), _reads(designs), _outputs(designs), _gradients(designs), _removal(designs)]
    return [p for p in found if p is not None]


def _growth(designs: Sequence[DesignValues]) -> Picture | None:
    def relative(d: DesignValues) -> list[Point]:
        values = d.depth.block_output_rms
        base = values[1] if len(values) > 2 else None
        return by_block(v / base if v is not None else None for v in values)[1:] if base else []

    summed = ", for hyper-connections the mean of their streams" if any(d.depth.mixing for d in designs) else ""
    return over_blocks(
        [_panel(designs, relative)],
        log=True,
        name="growth",
        heading="Activation growth",
        label="Block-output RMS relative to block 1, on a logarithmic axis",
        axis="block-output RMS ÷ that of block 1",
        reading="A line that climbs means that the signal handed to the next block keeps growing, which leaves each "
        "later block a smaller share of it, while a level line means that depth stays open.",
        note=f"A block's output is what the next block reads; the last point is the readout{summed}. Block 0 is left "
        "out: its jump comes from the small embedding.",
        rule=(1.0, "as large as after block 1"),
        tip="{name}, block {x}: {y} times block 1",
    )


def _reads(designs: Sequence[DesignValues]) -> Picture | None:
    return over_blocks(
        [_panel(designs, lambda d: by_sublayer(d.depth.read_rms))],
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
        sublayers=True,
    )


def _outputs(designs: Sequence[DesignValues]) -> Picture | None:
    def part(d: DesignValues, first: int) -> list[Point]:
        return by_block(d.depth.output_rms[first::2])

    return over_blocks(
        [_panel(designs, lambda d: part(d, 0), "attention"), _panel(designs, lambda d: part(d, 1), "MLP")],
        log=True,
        name="outputs",
        heading="What each sublayer writes",
        label="RMS of what each sublayer gives back, attention and MLP apart, on a logarithmic axis",
        axis="RMS of the output",
        reading="Where outputs grow along depth, later sublayers must write larger updates to have an effect on a "
        "stream that grows as well.",
        tip="{name}, block {x}: {y}",
    )


def _gradients(designs: Sequence[DesignValues]) -> Picture | None:
    def percent(d: DesignValues) -> list[Point]:
        return by_block(None if v is None else 100 * v for v in d.depth.gradient_share)

    blocks = max((len(d.depth.gradient_share) for d in designs), default=0)
    return over_blocks(
        [_panel(designs, percent)],
        log=True,
        name="gradient-share",
        heading="Gradient share",
        label="Share of the gradient's norm that each block received over training, in percent, on a logarithmic axis",
        axis="share of all blocks' gradient norm, % (logarithmic)",
        reading="Each point is the part of the training signal that reached a block over the whole run; "
        "a line that falls means that the early blocks took most of it.",
        rule=(100 / blocks, "an even share") if blocks else None,
        tip="{name}, block {x}: {y} %",
    )


def _removal(designs: Sequence[DesignValues]) -> Picture | None:
    values = [v for d in designs for v in some(d.depth.removal)]
    linear = linear_below(values)
    return over_blocks(
        [_panel(designs, lambda d: by_block(d.depth.removal))],
        linear=linear,
        zero=True,
        rule=(0.0, ""),
        name="removal",
        heading="Loss when a block is removed",
        label="Rise in held-out bits per byte when one block is left out, on a signed logarithmic axis",
        axis="rise in bits per byte",
        reading="Each point is what the trained model loses when this one block is skipped: a point near zero "
        "means that the block can be skipped at little cost.",
        note=signed_note(linear),
        tip="{name} without block {x}: {y} bits per byte",
        decimals=4,
    )


def _panel(designs: Sequence[DesignValues], points: Callable[[DesignValues], list[Point]], title: str = "") -> Panel:
    return Panel(title=title, series=[line_of(d, points(d)) for d in designs])
