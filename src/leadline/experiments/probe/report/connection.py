"""The pictures of what a connection or a norm shows of itself: weights, gates, streams, BHyT's λ."""

from __future__ import annotations

from collections.abc import Sequence

from leadline.experiments.probe.report.sizes import panel
from leadline.experiments.probe.report.values import ModelValues, ProbeValues
from leadline.report import inside
from leadline.report.lines import Panel
from leadline.report.matrices import triangles
from leadline.report.over_blocks import between, by_block, over_blocks, series
from leadline.report.pictures import Entry, Picture, Row
from leadline.report.reading import some
from leadline.report.words import listed, plain


def connection(report: ProbeValues) -> list[Picture]:
    """These exist only for the models that have such parts."""
    models = report.measured
    # Hyper-connections call what they write with gates as well, but it replaces nothing.
    gated = [m for m in models if not m.matrices("connection", "mixing")]
    reads = [(m, m.matrix("connection", "depth_weights")) for m in models]
    found = [
        inside.depth_weights([(m.entry, rows) for m, rows in reads if not _has_streams(m)]),
        inside.stream_reads([(m.entry, rows) for m, rows in reads if _has_streams(m)]),
        inside.gates([(m.entry, m.matrix("connection", "gates")) for m in gated]),
        inside.diversity([(m.entry, m.values("connection", "stream_diversity")) for m in models]),
        _stream_angles(models),
        inside.mixing([(m.entry, m.matrices("connection", "mixing")) for m in models]),
        _ratios(models),
        _variances(models),
        _second_moments(models),
    ]
    return [picture for picture in found if picture is not None]


def _has_streams(model: ModelValues) -> bool:
    return bool(some(model.values("connection", "stream_diversity")))


def _stream_angles(models: Sequence[ModelValues]) -> Picture | None:
    """A triangle for each stream of every model."""
    return triangles(
        [
            (Entry(index=m.index, name=f"{m.name}, stream {k}"), matrix)
            for m in models
            for k, matrix in enumerate(m.matrices("connection", "stream_angular_distance"))
        ],
        name="stream-angles",
        heading="Angles within streams",
        reading="The angular distance between blocks once more, for each stream by itself: streams that turn at "
        "different places divide depth between them.",
        label="Angular distance of {name} between blocks.",
        note="Cells are empty where the stream is not there yet. 0.5 is a right angle.",
        bar="angle ÷ π",
    )


def _ratios(models: Sequence[ModelValues]) -> Picture | None:
    bounds = {m.name: bound for m in models if (bound := m.number("bhyt", "bound")) is not None}
    values = sorted(set(bounds.values()))
    said = listed([f"{plain(bound)} for {name}" for name, bound in bounds.items()])
    return over_blocks(
        [
            panel(models, lambda m: m.values("bhyt", "attention", "ratio"), "attention"),
            panel(models, lambda m: m.values("bhyt", "mlp", "ratio"), "MLP"),
        ],
        name="bhyt-ratio",
        heading="λ/κ of the bounded tanh",
        label="λ over κ of each block's bounded tanh",
        axis="λ ÷ κ",
        reading="Below 1/√L theory bounds the variance of the outputs below that of layer-norm scaling at every "
        "block; above it the bound says nothing.",
        note=f"1/√L is {said}." if len(values) > 1 else "",
        tip="{name}, block {x}: λ/κ is {y}",
        zero=True,
        rule=(values[0], "1/√L") if len(values) == 1 else None,
    )


def _variances(models: Sequence[ModelValues]) -> Picture | None:
    return over_blocks(
        [
            panel(models, lambda m: m.values("bhyt", "variance", "attention"), "norm before attention"),
            panel(models, lambda m: m.values("bhyt", "variance", "mlp"), "norm before the MLP"),
            panel(models, lambda m: m.values("bhyt", "variance", "blocks"), "block outputs"),
        ],
        name="bhyt-variance",
        heading="Output variance of bounded tanh and layer-norm scaling",
        label="Variance over the width of what norms and blocks give, on a logarithmic axis",
        axis="variance",
        reading="Theorem 3.5 of the BHyT paper puts the variance under bounded tanh below that of layer-norm scaling "
        "at every block where λ/κ < 1/√L; with a model of each, the lines show whether it is.",
        note=" ".join(said for m in models if (said := _condition(m))),
        tip="{name}, block {x}: variance {y}",
        log=True,
    )


def _condition(model: ModelValues) -> str:
    """Whether the theorem's condition is met, in words; empty for a model without bounded tanh."""
    bound = model.number("bhyt", "bound")
    ratios = some([*model.values("bhyt", "attention", "ratio"), *model.values("bhyt", "mlp", "ratio")])
    if bound is None or not ratios:
        return ""
    met = sum(abs(ratio) < bound for ratio in ratios)
    said = "is met" if met == len(ratios) else f"is not met: λ/κ is below 1/√L at {met} of {len(ratios)} norms"
    return f"{model.name}: the theorem's condition {said}."


def _second_moments(models: Sequence[ModelValues]) -> Picture | None:
    def moments(model: ModelValues, key: str) -> Row:
        return model.values("bhyt", "second_moment", key)

    lines = [
        series(m.entry, by_block(moments(m, "ratio")), between(moments(m, "ratio_low"), moments(m, "ratio_high")))
        for m in models
    ]
    return over_blocks(
        [Panel(title="", series=lines)],
        name="bhyt-second-moment",
        heading="Approximate against exact variance",
        label="The second moment that BHyT works out over the exact one, before each MLP, on a logarithmic axis",
        axis="approximate ÷ exact second moment",
        reading="Before the MLP the norm does not measure what it reads but works it out: at 1 it is right, below 1 "
        "it takes the input for smaller than it is and bounds it less.",
        note="The shade reaches from the smallest to the largest ratio of any token.",
        tip="{name}, block {x}: {y}",
        rule=(1.0, "exact"),
        log=True,
    )
