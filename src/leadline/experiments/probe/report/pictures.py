"""The pictures of a probe: what they show and how they are read stands in `report.toml`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from leadline.experiments.probe.results import ModelValues, ProbeValues
from leadline.probes.correlation import correlate
from leadline.report import inside
from leadline.report.lines import Panel, Series
from leadline.report.over_blocks import between, by_block, linear_below, over_blocks, series, signed_note
from leadline.report.pictures import Entry, Picture, PictureSpec, Row, Section, some
from leadline.report.scatter import Cloud, scatter, together
from leadline.report.specs import Specs
from leadline.report.words import fixed, listed, plain

SPECS = Specs("leadline.experiments.probe.report")
Models = Sequence[ModelValues]


def sections(report: ProbeValues) -> list[Section]:
    """All pictures that have values."""
    models = report.measured

    def lines(*names: str) -> list[Picture | None]:
        return [over_blocks(_panels(report, spec), spec) for spec in map(SPECS, names)]

    def found(*path: str) -> list[tuple[Entry, list[Row]]]:
        return [(m.entry, m.values(*path)) for m in models]

    # Hyper-connections call what they write with gates as well, but it replaces nothing.
    gated = [m for m in models if not m.values("connection", "mixing")]
    reads = [(m, m.values("connection", "depth_weights")) for m in models]
    moments = SPECS("bhyt-second-moment")
    trained = [series(m.entry, by_block(scaled(m.training_share, 100))) for m in models]
    return [
        SPECS.section(
            "need",
            [_ablation(report, SPECS("ablation")), _ablation(report, SPECS("ablation-sublayers")), _against(models)],
        ),
        SPECS.section(
            "sizes",
            lines("block-rms", "update", "massive", "largest", "kurtosis", "sublayer-rms", "sublayer-massive"),
        ),
        SPECS.section(
            "likeness",
            [
                *lines("block-influence"),
                inside.angles(found("similarity", "angular_distance")),
                inside.triangles(found("similarity", "cka"), SPECS("cka"), high=1.0),
                _ranks(models),
            ],
        ),
        SPECS.section("lens", lines("lens-loss", "lens-kl", "lens-agreement", "lens-entropy")),
        SPECS.section(
            "gradients",
            [
                _shares(_panels(report, SPECS("gradient-share")), SPECS("gradient-share")),
                _shares([Panel(title="", series=trained)], SPECS("training-share")),
                _shares(_panels(report, SPECS("gradient-share-sublayers")), SPECS("gradient-share-sublayers")),
                *lines("gradient-rank", "gradient-cosine"),
            ],
        ),
        SPECS.section(
            "inside",
            [
                inside.depth_weights([(m.entry, rows) for m, rows in reads if not _has_streams(m)]),
                inside.stream_reads([(m.entry, rows) for m, rows in reads if _has_streams(m)]),
                inside.gates([(m.entry, m.values("connection", "gates")) for m in gated]),
                inside.diversity([(m.entry, m.values("connection", "stream_diversity")) for m in models]),
                _stream_angles(models),
                inside.mixing([(m.entry, m.values("connection", "mixing")) for m in models]),
                _ratios(models),
                _variances(models),
                over_blocks(_panels(report, moments, within=True), moments),
            ],
        ),
    ]


def _line(model: ModelValues, *path: str, sublayer: str = "", scale: float = 1.0, within: bool = False) -> Series:
    """What was measured at a path, over the blocks; `within` its interval."""

    def found(end: str = "") -> Row:
        *outer, name = path
        place = (*outer, name + end)
        return scaled(model.of_sublayer(sublayer, *place) if sublayer else model.values(*place), scale)

    return series(model.entry, by_block(found()), between(found("_low"), found("_high")) if within else ())


def _panel(models: Models, title: str, *path: str) -> Panel:
    return Panel(title=title, series=[_line(m, *path) for m in models])


def _panels(report: ProbeValues, spec: PictureSpec, *, within: bool = False) -> list[Panel]:
    """What the measurements hold at the picture's `values`: a panel, or one for each kind of sublayer."""
    options: dict[str, Any] = {"scale": spec.scale, "within": within}
    return [
        Panel(title=_title(name), series=[_line(m, *spec.values, sublayer=name, **options) for m in report.measured])
        for name in (report.sublayers if "sublayers" in spec.values else [""])
    ]


def scaled(values: Row, factor: float) -> Row:
    """The values times a factor."""
    return [value if value is None else factor * value for value in values]


def _title(sublayer: str) -> str:
    return "MLP" if sublayer == "mlp" else sublayer


def _shares(panels: Sequence[Panel], spec: PictureSpec) -> Picture | None:
    """Shares of the gradient, beside an even share where all models have as many blocks."""
    blocks = {len(line.points) for p in panels for line in p.series if line.values}
    more = "A share of more blocks is smaller: compare the slopes of the lines."
    even = len(blocks) == 1 and "sublayers" not in spec.values
    return over_blocks(
        panels,
        dataclasses.replace(
            spec, note=more if len(blocks) > 1 else "", rule=(100 / blocks.pop(), "an even share") if even else None
        ),
    )


def _ablation(report: ProbeValues, spec: PictureSpec) -> Picture | None:
    panels = _panels(report, spec, within=True)
    linear = linear_below(v for p in panels for line in p.series for v in line.values)
    note = f"The shade is the 95 % interval over sequences. {signed_note(linear)}"
    return over_blocks(panels, dataclasses.replace(spec, linear=linear, note=note))


def _against(models: Models) -> Picture | None:
    """Gradient share against ΔM: over training where the run recorded it, else as it is now."""
    clouds = []
    for model in models:
        shares, when = (model.training_share, "over training")
        if not some(shares):
            shares, when = model.values("gradients", "blocks", "share"), "on this text"
        rises = model.values("ablation", "blocks", "nats")
        if len(shares) != len(rises):
            continue
        pairs = zip(scaled(shares, 100), rises, strict=True)
        points = [(x, y, str(i)) for i, (x, y) in enumerate(pairs) if x is not None and y is not None]
        if points:
            found = correlate(shares, rises)["spearman"]
            words = together("Spearman", found.value, found.low, found.high, found.reason)
            clouds.append(Cloud(entry=model.entry, points=points, words=f"{words} (share {when})"))
    linear = linear_below(y for cloud in clouds for _, y, _ in cloud.points)
    note = f"The interval is over resampled blocks. {signed_note(linear)}"
    spec = SPECS("share-against-removal", linear=linear, note=note)
    return scatter(clouds, spec, y_shown=lambda v: fixed(v, 4))


def _ranks(models: Models) -> Picture | None:
    """Over states: place i is what block i reads."""
    names = {"effective_rank": "as it is", "effective_rank_centred": "mean taken off"}
    centred = any(m.values("similarity", "effective_rank_centred") for m in models)
    panels = [
        _panel(models, title, "similarity", name)
        for name, title in names.items()
        if centred or name == "effective_rank"
    ]
    return over_blocks(panels, SPECS("effective-rank"))


def _has_streams(model: ModelValues) -> bool:
    return bool(some(model.values("connection", "stream_diversity")))


def _stream_angles(models: Models) -> Picture | None:
    """A triangle for each stream of every model."""
    found = [
        (Entry(index=m.index, name=f"{m.name}, stream {k}"), matrix)
        for m in models
        for k, matrix in enumerate(m.values("connection", "stream_angular_distance"))
    ]
    return inside.triangles(found, SPECS("stream-angles"))


def _ratios(models: Models) -> Picture | None:
    bounds = {m.name: bound for m in models if (bound := m.at("bhyt", "bound")) is not None}
    values = sorted(set(bounds.values()))
    said = listed([f"{plain(bound)} for {name}" for name, bound in bounds.items()])
    return over_blocks(
        [_panel(models, _title(norm), "bhyt", norm, "ratio") for norm in ("attention", "mlp")],
        SPECS(
            "bhyt-ratio",
            note=f"1/√L is {said}." if len(values) > 1 else "",
            rule=(values[0], "1/√L") if len(values) == 1 else None,
        ),
    )


def _variances(models: Models) -> Picture | None:
    return over_blocks(
        [
            _panel(models, "norm before attention", "bhyt", "variance", "attention"),
            _panel(models, "norm before the MLP", "bhyt", "variance", "mlp"),
            _panel(models, "block outputs", "bhyt", "variance", "blocks"),
        ],
        SPECS("bhyt-variance", note=" ".join(said for m in models if (said := _condition(m)))),
    )


def _condition(model: ModelValues) -> str:
    """Whether the theorem's condition is met, in words; empty for a model without bounded tanh."""
    bound = model.at("bhyt", "bound")
    ratios = some([*model.values("bhyt", "attention", "ratio"), *model.values("bhyt", "mlp", "ratio")])
    if bound is None or not ratios:
        return ""
    met = sum(abs(ratio) < bound for ratio in ratios)
    said = "is met" if met == len(ratios) else f"is not met: λ/κ is below 1/√L at {met} of {len(ratios)} norms"
    return f"{model.name}: the theorem's condition {said}."
