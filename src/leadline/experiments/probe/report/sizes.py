"""The pictures of sizes along depth: what blocks leave, and what sublayers give."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from leadline.experiments.probe.report.values import ModelValues, ProbeValues
from leadline.report.lines import Panel
from leadline.report.over_blocks import by_block, over_blocks, series
from leadline.report.pictures import Picture, Row


def sizes(report: ProbeValues) -> list[Picture]:
    """Output RMS, largest values, massive activations, kurtosis, and updates against what they are added to."""
    models = report.measured
    found = [
        over_blocks(
            [panel(models, lambda m: m.values("activations", "blocks", "rms"))],
            name="block-rms",
            heading="Size of block outputs",
            label="Root mean square of what each block leaves, on a logarithmic axis",
            axis="RMS of the block's output",
            reading="A line that climbs means that the signal handed to the next block keeps growing, which leaves "
            "each later block a smaller share of it.",
            note="Block 0 often jumps because the embedding is small; judge the slope from block 1 on.",
            tip="{name}, block {x}: RMS {y}",
            log=True,
        ),
        over_blocks(
            [panel(models, lambda m: m.values("activations", "residual_to_update"))],
            name="update",
            heading="Stream against update",
            label="Norm of what a block reads over the norm of what it changes, on a logarithmic axis",
            axis="‖before‖ ÷ ‖after − before‖",
            reading="At 1 a block changes the stream by as much as is there, and at 100 by a hundredth: high blocks "
            "are near to doing nothing.",
            tip="{name}, block {x}: the stream is {y} times the update",
            rule=(1.0, "as large as the stream"),
            log=True,
        ),
        over_blocks(
            [panel(models, lambda m: m.values("activations", "blocks", "massive_ratio"))],
            name="massive",
            heading="Massive activations",
            label="Largest over median magnitude of what each block leaves, on a logarithmic axis",
            axis="largest ÷ median magnitude",
            reading="A jump by orders of magnitude is a massive activation: a few values that stay large over many "
            "blocks, which trained models use as biases and which low precision suffers from.",
            tip="{name}, block {x}: the largest value is {y} times the median",
            log=True,
        ),
        over_blocks(
            [panel(models, lambda m: m.values("activations", "blocks", "max"))],
            name="largest",
            heading="Largest value",
            label="Largest magnitude of what each block leaves, on a logarithmic axis",
            axis="largest magnitude",
            reading="The largest number that a block leaves behind, for whoever has to fit it into a narrow format.",
            tip="{name}, block {x}: {y}",
            log=True,
        ),
        over_blocks(
            [panel(models, lambda m: m.values("activations", "blocks", "kurtosis"))],
            name="kurtosis",
            heading="Kurtosis",
            label="Excess kurtosis of what each block leaves",
            axis="excess kurtosis",
            reading="Zero is the spread of a bell curve; a high value means that few values carry most of the size.",
            tip="{name}, block {x}: {y}",
            rule=(0.0, "normal distribution"),
        ),
        over_blocks(
            by_name(report, "activations", "sublayers", "rms"),
            name="sublayer-rms",
            heading="Size of sublayer outputs",
            label="Root mean square of what each sublayer gives, on a logarithmic axis",
            axis="RMS of the sublayer's output",
            reading="Where outputs grow along depth, later sublayers must write larger updates to have an effect on a "
            "stream that grows as well.",
            tip="{name}, block {x}: RMS {y}",
            log=True,
        ),
        over_blocks(
            by_name(report, "activations", "sublayers", "massive_ratio"),
            name="sublayer-massive",
            heading="Massive activations of sublayers",
            label="Largest over median magnitude of what each sublayer gives, on a logarithmic axis",
            axis="largest ÷ median magnitude",
            reading="The sublayer that makes a massive activation stands out here, mostly one early MLP, and the one "
            "that takes it away again does so near the end.",
            tip="{name}, block {x}: the largest value is {y} times the median",
            log=True,
        ),
    ]
    return [picture for picture in found if picture is not None]


def panel(models: Sequence[ModelValues], values: Callable[[ModelValues], Row], title: str = "") -> Panel:
    """A panel with a line for each model."""
    return Panel(title=title, series=[series(m.entry, by_block(values(m))) for m in models])


def by_name(report: ProbeValues, *path: str) -> list[Panel]:
    """A panel for each kind of sublayer, attention and MLP as a rule."""

    def one(name: str) -> Panel:
        return panel(report.measured, lambda m: m.of_sublayer(name, *path), title(name))

    return [one(name) for name in report.sublayers]


def title(sublayer: str) -> str:
    """A sublayer's name as a heading."""
    return "MLP" if sublayer == "mlp" else sublayer
