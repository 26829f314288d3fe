"""The pictures of how important blocks are: gradients, what removing them costs, and how far the two go together."""

from __future__ import annotations

from collections.abc import Sequence

from leadline.experiments.probe.report.sizes import by_name, panel, title
from leadline.experiments.probe.report.values import ModelValues, ProbeValues, percent
from leadline.probes.correlation import correlate
from leadline.report.lines import Panel, Series
from leadline.report.over_blocks import between, by_block, linear_below, over_blocks, series, signed_note
from leadline.report.pictures import Picture, Row
from leadline.report.reading import some
from leadline.report.scatter import Cloud, scatter, together
from leadline.report.words import fixed


def importance(report: ProbeValues) -> list[Picture]:
    """What leaving a block or sublayer out costs."""
    models = report.measured
    found = [
        _ablation(
            [Panel(title="", series=[_rise(m) for m in models])],
            name="ablation",
            heading="Loss when a block is left out",
            label="Rise of the loss when one block is left out, on a signed logarithmic axis",
        ),
        _ablation(
            [Panel(title=title(name), series=[_rise(m, name) for m in models]) for name in report.sublayers],
            name="ablation-sublayers",
            heading="Loss when a sublayer is left out",
            label="Rise of the loss when one sublayer is left out, on a signed logarithmic axis",
        ),
        _against(models),
    ]
    return [picture for picture in found if picture is not None]


def gradients(report: ProbeValues) -> list[Picture]:
    """How much of the gradient each block gets, now and over training."""
    models = report.measured
    found = [
        _shares(
            [panel(models, lambda m: percent(m.values("gradients", "blocks", "share")))],
            name="gradient-share",
            heading="Gradient share",
            label="Share of the gradient's norm that each block gets on this text, in percent, on a logarithmic axis",
            reading="The part of the training signal that would reach each block now; a line that falls means that "
            "the early blocks get most of it.",
        ),
        _shares(
            [panel(models, lambda m: percent(m.training_share))],
            name="training-share",
            heading="Gradient share over training",
            label="Share of the gradient's norm that each block got over training, in percent, on a logarithmic axis",
            reading="The part of the training signal that reached each block over the whole run, from the run's own "
            "record; CascadeFlow Pruning ranks blocks by it.",
        ),
        _shares(
            by_name(report, "gradients", "sublayers", "share_per_parameter"),
            name="gradient-share-sublayers",
            heading="Gradient share of sublayers",
            label="Share of the gradient's norm over the root of the number of parameters, by sublayer",
            reading="Divided by the root of the number of parameters, so that a wide MLP and a narrow attention "
            "compare.",
            axis="share of ‖∇‖ ÷ √parameters (logarithmic)",
            even=False,
        ),
        over_blocks(
            [panel(models, lambda m: m.values("gradients", "blocks", "effective_rank"))],
            name="gradient-rank",
            heading="Effective rank of gradients",
            label="Mean effective rank of each block's gradient matrices",
            axis="effective rank",
            reading="About how many directions a step would change in each weight matrix of a block; a low value "
            "means that the batches ask for little that is new.",
            tip="{name}, block {x}: {y}",
        ),
        over_blocks(
            [panel(models, lambda m: m.values("gradients", "blocks", "cosine"))],
            name="gradient-cosine",
            heading="Agreement of batches",
            label="Mean cosine between each block's gradients of different batches",
            axis="cosine between batches",
            reading="Near 1 all batches pull a block the same way, near 0 each pulls its own.",
            tip="{name}, block {x}: {y}",
            zero=True,
        ),
    ]
    return [picture for picture in found if picture is not None]


def _shares(
    panels: Sequence[Panel],
    *,
    name: str,
    heading: str,
    label: str,
    reading: str,
    axis: str = "share of all blocks' gradient norm, % (logarithmic)",
    even: bool = True,
) -> Picture | None:
    blocks = {len(line.points) for p in panels for line in p.series if line.values}
    unit = " %" if even else ""
    return over_blocks(
        panels,
        name=name,
        heading=heading,
        label=label,
        axis=axis,
        reading=reading,
        note="" if len(blocks) < 2 else "A share of more blocks is smaller: compare the slopes of the lines.",
        tip="{name}, block {x}: {y}" + unit,
        log=True,
        rule=(100 / blocks.pop(), "an even share") if even and len(blocks) == 1 else None,
    )


def _rise(model: ModelValues, sublayer: str = "") -> Series:
    """ΔM over the blocks within its interval."""

    def get(key: str) -> Row:
        if sublayer:
            return model.of_sublayer(sublayer, "ablation", "sublayers", key)
        return model.values("ablation", "blocks", key)

    return series(model.entry, by_block(get("nats")), between(get("nats_low"), get("nats_high")))


def _ablation(panels: Sequence[Panel], *, name: str, heading: str, label: str) -> Picture | None:
    linear = linear_below(v for p in panels for line in p.series for v in line.values)
    return over_blocks(
        panels,
        name=name,
        heading=heading,
        label=label,
        axis="rise of the loss, nats a token",
        reading="What the model loses when this one alone is skipped, the connection's own way: a point near zero "
        "means that it can be skipped at little cost.",
        note=f"The shade is the 95 % interval over sequences. {signed_note(linear)}",
        tip="{name} without it in block {x}: {y} nats",
        linear=linear,
        zero=True,
        rule=(0.0, ""),
        decimals=4,
    )


def _against(models: Sequence[ModelValues]) -> Picture | None:
    """Gradient share against ΔM: over training where the run recorded it, else as it is now."""
    clouds = []
    for model in models:
        shares, when = (model.training_share, "over training")
        if not some(shares):
            shares, when = model.values("gradients", "blocks", "share"), "on this text"
        rises = model.values("ablation", "blocks", "nats")
        if len(shares) != len(rises):
            continue
        pairs = zip(percent(shares), rises, strict=True)
        points = [(x, y, str(i)) for i, (x, y) in enumerate(pairs) if x is not None and y is not None]
        if points:
            found = correlate(shares, rises)["spearman"]
            words = together("Spearman", found.value, found.low, found.high, found.reason)
            clouds.append(Cloud(entry=model.entry, points=points, words=f"{words} (share {when})"))
    linear = linear_below(y for cloud in clouds for _, y, _ in cloud.points)
    return scatter(
        clouds,
        name="share-against-removal",
        heading="Gradient share against importance",
        reading="Each point is a block: on a rising slope the blocks that the gradient reached are those that the "
        "model needs, which is what gradient fan-in asymmetry says.",
        note=f"The interval is over resampled blocks. {signed_note(linear)}",
        label="Gradient share of each block against the rise of the loss without it",
        x="share of the gradient's norm, % (logarithmic)",
        y="rise of the loss, nats a token",
        x_log=True,
        y_linear=linear,
        y_shown=lambda v: fixed(v, 4),
    )
