"""The pictures of `leadline study gfa`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

from leadline.experiments.gradient_fan_in.verdict import DECIDES
from leadline.experiments.page import Arm, Shown, loss_curves
from leadline.report.bars import Bar, bars
from leadline.report.lines import Panel
from leadline.report.over_blocks import between, by_block, over_blocks, series, signed_note
from leadline.report.pictures import Numbers, Picture, PictureSpec, Row, Section, some
from leadline.report.scatter import Cloud, scatter, together
from leadline.report.specs import Specs
from leadline.report.words import fixed, significant

SPECS = Specs("leadline.experiments.gradient_fan_in")

Run = Mapping[str, Any]
Rows = tuple[Row, Row, Row]
"""Mean, smallest and largest by block."""
DELTA_FLOOR = 1e-4
"""Nats; what costs less than this, or does the model good, lies on the lower edge."""


def sections(arms: Shown, results: Mapping[str, Any]) -> list[Section]:
    """The pictures: gradient, importance, both together, late importance, learning."""

    def lines(name: str, of_run: Callable[[Run], Row | None]) -> Picture | None:
        return over_blocks([_panel(arms, lambda arm: over_runs(arm, of_run))], SPECS(name))

    signed = signed_note(DELTA_FLOOR)
    delta = SPECS("delta", note=f"{signed} A repeated block is left out in all of its places.", linear=DELTA_FLOOR)
    return [
        SPECS.section(
            "gradient",
            [
                lines("share", itemgetter("share")),
                over_blocks(_phases(arms), SPECS("phases")),
                lines("fan-in", lambda run: [value / sum(run["fan_in"]) for value in run["fan_in"]]),
                lines("rank", itemgetter("effective_rank")),
                lines("diversity", itemgetter("cosine")),
            ],
        ),
        SPECS.section(
            "importance",
            [
                over_blocks([_panel(arms, delta_over_runs)], delta),
                _bars(arms, _late_rows(arms, results, ""), SPECS("late")),
                _bars(arms, _late_rows(arms, results, "_rest"), SPECS("late-rest")),
            ],
        ),
        SPECS.section(
            "correlation",
            [
                _scatter(arms, "fan_in", SPECS("share-fan-in")),
                _scatter(arms, "delta", SPECS("share-delta", linear=DELTA_FLOOR, note=signed)),
            ],
        ),
        SPECS.section("learning", [_curves(arms)]),
    ]


def over_runs(arm: Arm, of_run: Callable[[Run], Row | None]) -> Rows:
    """Over the arm's runs; None where a block has no value."""
    rows = [row for run in arm["runs"] if run is not None and (row := of_run(run)) is not None]
    blocks = [some(list(values)) for values in zip(*rows, strict=True)]
    lows, highs = ([end(known) if len(known) > 1 else None for known in blocks] for end in (min, max))
    return [sum(known) / len(known) if known else None for known in blocks], lows, highs


def delta_over_runs(arm: Arm) -> Rows:
    """ΔM by block: of several runs as `over_runs`, of one with its interval over sequences."""
    runs = [run for run in arm["runs"] if run is not None]
    if len(runs) == 1:
        delta = runs[0]["delta"]
        return delta["nats"], delta["low"], delta["high"]
    return over_runs(arm, lambda run: run["delta"]["nats"])


def _panel(arms: Shown, rows: Callable[[Arm], Rows], title: str = "") -> Panel:
    drawn = [(entry, rows(arm)) for entry, arm in arms]
    return Panel(title=title, series=[series(entry, by_block(mean), between(*ends)) for entry, (mean, *ends) in drawn])


def _phases(arms: Shown) -> list[Panel]:
    def panel(number: int, title: str) -> Panel:
        having = [(entry, arm) for entry, arm in arms if len(arm["phases"]) > number]
        return _panel(having, lambda arm: over_runs(arm, lambda run: run["phases"][number]["share"]), title)

    phases = max((len(arm["phases"]) for _, arm in arms), default=0)
    return [panel(number, title) for number, title in enumerate(("the first tenth of the steps", "the rest")[:phases])]


def _late_rows(arms: Shown, results: Mapping[str, Any], rest: str) -> dict[str, str]:
    last = results["last_blocks"]
    if all(arm["late_blocks"] == last for _, arm in arms):
        return {f"last{rest}": f"the last {last}"}
    return {f"third{rest}": "the last third", f"last{rest}": f"the last {last}"}


def _bars(arms: Shown, rows: Mapping[str, str], spec: PictureSpec) -> Picture | None:
    by_name = {arm["name"]: arm for _, arm in arms}
    groups = []
    for part, words in rows.items():
        group = []
        for entry, arm in arms:
            found = (arm["late"] or {}).get(part)
            if found:
                expected = _expected(arm, by_name.get(arm["control"]), part)
                bar = Bar(entry=entry, value=found["mean"], low=found["low"], high=found["high"], expected=expected)
                group.append(bar)
        groups.append((words, group))
    return bars(groups, spec, shown=lambda value: fixed(value, 2))


def _expected(arm: Arm, control: Arm | None, part: str) -> float | None:
    """Where φ would put the late importance of repeated blocks."""
    start = ((control or {}).get("late") or {}).get(part)
    rise = ((arm["against"] or {}).get("predicted") or {}).get(part)
    return start["mean"] + rise if arm["role"] == "repeat" and start and rise is not None else None


def _scatter(arms: Shown, pair: str, spec: PictureSpec) -> Picture | None:
    clouds = []
    for entry, arm in arms:
        if arm["correlations"]:
            x, y = over_runs(arm, itemgetter("share"))[0], delta_over_runs(arm)[0]
            if pair == "fan_in":
                x, y = over_runs(arm, itemgetter("fan_in"))[0], x
            points = [
                (a, b, str(block))
                for block, (a, b) in enumerate(zip(x, y, strict=True))
                if a is not None and b is not None
            ]
            clouds.append(Cloud(entry=entry, points=points, words=_said(arm["correlations"][f"share_{pair}"])))
    return scatter(clouds, spec)


def _said(found: Mapping[str, Any]) -> str:
    rho = found[DECIDES]
    said = together("Spearman", rho["value"], rho["low"], rho["high"], rho["reason"])
    alone = found["over"] == "blocks" and rho["low"] is not None
    return f"{said} (over blocks alone)" if alone else said


def _curves(arms: Shown) -> Picture | None:
    texts = [(entry, arm) for entry, arm in arms if arm["loss_per"] == "byte"]
    found = [(entry, arm["curve"]) for entry, arm in texts if arm["curve"] and arm["curve"]["tokens"]]
    rows = [
        (arm["name"], [f"{arm['tokens']:,}", significant(arm["bits_per_byte"]["mean"], 4)])
        for _, arm in texts
        if arm["bits_per_byte"]
    ]
    return loss_curves(
        [series(entry, list(zip(curve["tokens"], curve["bits_per_byte"], strict=True))) for entry, curve in found],
        SPECS("curves"),
        Numbers(head="arm", columns=["tokens", "bits per byte"], rows=rows),
        " tokens",
    )
