"""The pictures of `leadline compare`: how designs learn, what blocks do along depth, what connections do inside."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from leadline.report import inside, svg
from leadline.report.lines import Axis, LinePicture, Panel, Point, Series, numbers_of
from leadline.report.over_blocks import by_block, by_sublayer, linear_below, over_blocks, series, signed_note
from leadline.report.pictures import Entry, Picture, Section, some
from leadline.report.specs import Specs
from leadline.report.words import count, fixed, listed, plain

SPECS = Specs("leadline.experiments.compare")

Arm = Mapping[str, Any]
Shown = Sequence[tuple[Entry, Arm]]


def sections(arms: Shown, results: Mapping[str, Any]) -> list[Section]:
    """All pictures that have values."""
    sweeps = results["learning_rates"]
    return [
        SPECS.section("learning", [_curves(arms), _distance(arms)]),
        SPECS.section(
            "depth",
            [
                _growth(arms),
                over_blocks([_panel(arms, lambda arm: by_sublayer(_values(arm, "read_rms")))], SPECS("reads")),
                over_blocks(
                    [
                        _panel(arms, lambda arm: by_block(_values(arm, "output_rms")[0::2]), "attention"),
                        _panel(arms, lambda arm: by_block(_values(arm, "output_rms")[1::2]), "MLP"),
                    ],
                    SPECS("outputs"),
                ),
                _gradients(arms),
                _removal(arms),
                inside.angles(_found(arms, "angular_distance"), numbers=False),
            ],
            opening=f"What {results['preset']['blocks']} blocks do, measured on held-out text after training. A block "
            "is one attention and one MLP sublayer; blocks are counted from 0. Every design stands on the same axis.",
        ),
        SPECS.section(
            "inside",
            [
                inside.depth_weights(_found(arms, "depth_weights"), numbers=False),
                # Hyper-connections call what they write with gates as well, but it replaces nothing.
                inside.gates(_found([one for one in arms if not _values(one[1], "mixing")], "gates"), numbers=False),
                inside.diversity(_found(arms, "stream_diversity"), numbers=False),
                inside.mixing(_found(arms, "mixing"), numbers=False),
            ],
        ),
        SPECS.section("settings", [_learning_rates(arms, sweeps)]),
    ]


def has_pictures(arm: Arm) -> bool:
    """Whether a design is in any picture."""
    return bool(_curve(arm)) or any(arm["depth"].values() if arm["depth"] else ())


def _values(arm: Arm, name: str) -> list[Any]:
    """Numbers along depth, empty where they were not measured."""
    return (arm["depth"] or {}).get(name) or []


def _found(arms: Shown, name: str) -> list[tuple[Entry, list[Any]]]:
    return [(entry, _values(arm, name)) for entry, arm in arms]


def _curve(arm: Arm) -> list[tuple[float, float]]:
    """(tokens, held-out bits per byte)."""
    curve = arm["curve"]
    return list(zip(curve["tokens"], curve["bits_per_byte"], strict=True)) if curve else []


def _curves(arms: Shown) -> Picture | None:
    lines = [series(entry, _curve(arm)) for entry, arm in arms if _curve(arm)]
    if not lines:
        return None
    everything = [y for line in lines for y in line.values]
    last, settled = _settled([_curve(arm) for _, arm in arms])
    low, high = svg.limits([*(settled or everything), *(line.values[-1] for line in lines)])
    cut = max(everything) > high
    picture = LinePicture(
        label=f"Held-out bits per byte over training, for {listed([line.name for line in lines])}.",
        x=_tokens_axis(last),
        y=Axis(label="held-out bits per byte", low=low, high=high if cut else svg.limits(everything)[1]),
        panels=[Panel(title="", series=lines)],
        tip=lambda name, x, y: f"{name}: {fixed(y)} bits per byte after {count(x)} tokens",
    )
    return SPECS("learning-curves", note="The first steps lie above the picture." if cut else "").picture(
        picture.draw(), numbers_of(lines, "tokens", lambda x: f"{x:,.0f}", fixed)
    )


def _settled(curves: Sequence[Sequence[tuple[float, float]]]) -> tuple[float, list[float]]:
    """Where the longest curve ends, and the values of all from a fifth of it on."""
    last = max(x for curve in curves for x, _ in curve)
    return last, [y for curve in curves for x, y in curve if x >= 0.2 * last]


def _distance(arms: Shown) -> Picture | None:
    base = next(((entry, _curve(arm)) for entry, arm in arms if entry.baseline), None)
    if base is None or not base[1]:
        return None
    lines = [
        (entry, [(x, y - other) for x, y in _curve(arm) if (other := _at(base[1], x)) is not None])
        for entry, arm in arms
    ]
    others = [(entry, points) for entry, points in lines if points and not entry.baseline]
    if not others:
        return None
    last, settled = _settled([points for _, points in others])
    low, high = svg.limits(settled or [0.0], zero=True)
    room, name = 0.06 * (high - low), base[0].name
    picture = LinePicture(
        label=f"Bits per byte minus the baseline's over training, for {listed([entry.name for entry, _ in others])}.",
        x=_tokens_axis(last),
        y=Axis(label=f"bits per byte minus {name}'s", low=low - room, high=high + room, shown=_signed),
        panels=[Panel(title="", series=[series(entry, points) for entry, points in others])],
        rule=(0.0, f"{name} = 0"),
        tip=lambda name, x, y: f"{name}: {fixed(y, sign=True)} after {count(x)} tokens",
    )
    return SPECS(
        "distance",
        reading=f"The same losses with {name}'s taken off at the same number of tokens, so a line below zero "
        "is ahead of the baseline at that moment, and its slope says whether the lead grows.",
    ).picture(picture.draw())


def _growth(arms: Shown) -> Picture | None:
    def relative(arm: Arm) -> list[Point]:
        values = _values(arm, "block_output_rms")
        base = values[1] if len(values) > 2 else None
        return by_block(v / base if v is not None else None for v in values)[1:] if base else []

    summed = any(_values(arm, "mixing") for _, arm in arms)
    streams = ", for hyper-connections the mean of their streams" if summed else ""
    return over_blocks(
        [_panel(arms, relative)],
        SPECS(
            "growth",
            note=f"A block's output is what the next block reads; the last point is the readout{streams}. Block 0 is "
            "left out: its jump comes from the small embedding.",
        ),
    )


def _gradients(arms: Shown) -> Picture | None:
    blocks = max((len(_values(arm, "gradient_share")) for _, arm in arms), default=0)
    percent = _panel(arms, lambda arm: by_block(v and 100 * v for v in _values(arm, "gradient_share")))
    return over_blocks([percent], SPECS("gradient-share", rule=(100 / blocks, "an even share") if blocks else None))


def _removal(arms: Shown) -> Picture | None:
    linear = linear_below(v for _, arm in arms for v in some(_values(arm, "removal")))
    return over_blocks(
        [_panel(arms, lambda arm: by_block(_values(arm, "removal")))],
        SPECS("removal", linear=linear, note=signed_note(linear)),
    )


def _learning_rates(arms: Shown, sweeps: Sequence[Mapping[str, Any]]) -> Picture | None:
    place = {entry.name: entry for entry, _ in arms}
    drawn = []
    for sweep in sweeps:
        found = [(p["learning_rate"], p["bits_per_byte"]) for p in sweep["points"] if p["bits_per_byte"] is not None]
        if found and sweep["design"] in place:
            drawn.append((place[sweep["design"]], sorted(found), sweep))
    if not drawn:
        return None
    lines = [_ringed(entry, points, sweep["chosen"]) for entry, points, sweep in drawn]
    rates = sorted({x for line in lines for x, _ in line.points})
    values = sorted(y for line in lines for y in line.values)
    usual = max(min(line.values) for line in lines)
    top = usual + 1.5 * max(usual - values[0], 0.1)
    cut = values[-1] > top * 1.02
    low, high = svg.limits([v for v in values if v <= top] if cut else values, pad=0.07)
    x_low, x_high = svg.limits(rates, log=True)
    picture = LinePicture(
        label=f"Held-out bits per byte against the learning rate, for {listed([line.name for line in lines])}.",
        x=Axis(
            label="learning rate (logarithmic)", low=x_low, high=x_high, log=True, at=[(r, plain(r)) for r in rates]
        ),
        y=Axis(label="held-out bits per byte", low=low, high=high),
        panels=[Panel(title="", series=lines)],
        tip=lambda name, x, y: f"{name} at {plain(x)}: {fixed(y)} bits per byte",
        dots=True,
    )
    sources = list(dict.fromkeys(sweep["source"] for _, _, sweep in drawn))
    above = " Runs beyond the upper edge diverged or nearly so." if cut else ""
    return SPECS("learning-rates", note=f"Points from: {listed(sources)}.{above}").picture(
        picture.draw(), numbers_of(lines, "learning rate", plain, fixed)
    )


def _ringed(entry: Entry, points: Sequence[tuple[float, float]], chosen: float | None) -> Series:
    ring = next(((x, y) for x, y in points if chosen and abs(x / chosen - 1) < 1e-6), None)
    return dataclasses.replace(series(entry, points), ring=ring)


def _panel(arms: Shown, points: Callable[[Arm], Sequence[Point]], title: str = "") -> Panel:
    return Panel(title=title, series=[series(entry, points(arm)) for entry, arm in arms])


def _tokens_axis(last: float) -> Axis:
    return Axis(label="tokens trained on", low=0.0, high=last or 1.0, shown=lambda v: count(v, 2) if v else "0")


def _signed(value: float) -> str:
    return "0" if value == 0 else ("+" if value > 0 else "") + plain(value)


def _at(curve: Sequence[tuple[float, float]], x: float) -> float | None:
    """The curve's value at x by straight lines between its points; None outside of them."""
    for (x0, y0), (x1, y1) in itertools.pairwise(curve):
        if x0 <= x <= x1:
            return y0 if x1 == x0 else y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return curve[0][1] if len(curve) == 1 and curve[0][0] == x else None
