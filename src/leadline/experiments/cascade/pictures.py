"""The pictures of `leadline study cascade`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from leadline.report import svg
from leadline.report.lines import Axis, LinePicture, Panel, Series
from leadline.report.pictures import Numbers, Picture, Section
from leadline.report.specs import Specs
from leadline.report.words import count, fixed, plain

SPECS = Specs("leadline.experiments.cascade")

Arm = Mapping[str, Any]


def sections(arms: Sequence[Arm]) -> list[Section]:
    """The pictures: where the width is, how the designs learn, how fast they generate."""
    return [
        SPECS.section("shapes", [_shapes(arms)]),
        SPECS.section("learning", [_curves(arms)]),
        SPECS.section("generation", [_speeds(arms)]),
    ]


def _shapes(arms: Sequence[Arm]) -> Picture:
    layers = max(len(arm["widths"]) for arm in arms)
    panels = []
    for title, place in (("attention heads", 0), ("MLP width", 2)):
        whole = max(layer[place] for layer in arms[0]["widths"])
        series = [
            _series(i, arm, [(n, layer[place] / whole) for n, layer in enumerate(arm["widths"], start=1)])
            for i, arm in enumerate(arms)
        ]
        panels.append(Panel(title=title, series=series))
    values = [y for panel in panels for s in panel.series for y in s.values]
    picture = LinePicture(
        label="Heads and MLP width of every layer, as shares of the uniform model's.",
        x=Axis(label="layer", low=1, high=max(2, layers), at=[(n, str(n)) for n in svg.whole_ticks(1, max(2, layers))]),
        y=Axis(label="share of the baseline's", low=0.0, high=1.05 * max(values)),
        panels=panels,
        tip=lambda name, x, y: f"{name}: {plain(y)} of the width in layer {x:.0f}",
    )
    return SPECS("widths").picture(picture.draw())


def _curves(arms: Sequence[Arm]) -> Picture | None:
    lines = []
    for index, arm in enumerate(arms):
        curve = arm["curve"]
        if curve and curve["tokens"]:
            spent = [tokens * arm["flops_per_token"] for tokens in curve["tokens"]]
            lines.append(_series(index, arm, list(zip(spent, curve["bits_per_byte"], strict=True))))
    if not lines:
        return None
    last = max(x for line in lines for x, _ in line.points)
    values = [y for line in lines for x, y in line.points if y is not None and x >= 0.2 * last]
    low, high = svg.limits(values)
    picture = LinePicture(
        label="Held-out bits per byte over training FLOPs.",
        x=Axis(label="training FLOPs", low=0.0, high=last, shown=count),
        y=Axis(label="held-out bits per byte", low=low, high=high),
        panels=[Panel(title="", series=lines)],
        tip=lambda name, x, y: f"{name}: {fixed(y)} bits per byte after {count(x)}FLOPs",
        dots=True,
    )
    return SPECS("curves").picture(
        picture.draw(),
        numbers=Numbers(
            head="design",
            columns=["tokens", "training FLOPs", "bits per byte"],
            rows=[
                (
                    arm["name"],
                    [
                        f"{arm['tokens']:,}",
                        count(arm["tokens"] * arm["flops_per_token"]),
                        fixed(arm["bits_per_byte"]["mean"]),
                    ],
                )
                for arm in arms
                if arm["bits_per_byte"]
            ],
        ),
    )


def _speeds(arms: Sequence[Arm]) -> Picture | None:
    lines = [
        _series(index, arm, list(enumerate(arm["generation"]["control"]["latency_rounds"], start=1)))
        for index, arm in enumerate(arms)
        if arm["generation"] and arm["generation"]["control"] and arm["generation"]["control"]["latency_rounds"]
    ]
    if not lines:
        return None
    rounds = max(len(line.points) for line in lines)
    low, high = svg.limits([*(y for line in lines for y in line.values), 1.0])
    picture = LinePicture(
        label="Latency of a token over the uniform control's in the same round.",
        x=Axis(label="round", low=1, high=max(2, rounds), at=[(n, str(n)) for n in svg.whole_ticks(1, max(2, rounds))]),
        y=Axis(label="latency over the control's", low=low, high=high),
        panels=[Panel(title="", series=lines)],
        rule=(1.0, "control = 1"),
        tip=lambda name, x, y: f"{name}: {fixed(y)} in round {x:.0f}",
    )
    return SPECS("rounds").picture(picture.draw())


def _series(index: int, arm: Arm, points: Sequence[tuple[float, float | None]]) -> Series:
    return Series(index=index, name=arm["name"], key=str(index + 1), points=points)
