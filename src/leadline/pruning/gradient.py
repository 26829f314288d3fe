"""The gradient record of a model that was cut: what is left of it, so that it can be cut again."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from leadline.pruning.candidates import Candidates
from leadline.stacks import Stack, Unit

LISTS = {
    "share": "block",
    "share_per_parameter": "block",
    "sublayer_share": "sublayer",
    "sublayer_share_per_parameter": "sublayer",
}


def kept_gradient(
    gradient: Mapping[str, Any], stack: Stack, found: Candidates, cut: Collection[Unit]
) -> dict[str, Any]:
    """The record of the blocks and sublayers that are left, as `gradient.json` holds it; shares sum to one again.

    A block that lost one of its sublayers keeps that part of its share which the other one has of both (ours: the norm
    of what is left alone was not recorded).

    Args:
        gradient: the record of the whole model.
        stack: the whole model.
        found: the candidates that were cut from.
        cut: those of them that went.
    """
    gone = set(found.expand(cut))
    left = {
        kind: [unit for unit in stack.units(kind) if unit not in gone and Unit(unit.block) not in gone]
        for kind in ("block", "sublayer")
    }
    emptied = {b for b in range(stack.blocks) if not any(unit.block == b for unit in left["sublayer"])}
    left["block"] = [unit for unit in left["block"] if unit.block not in emptied]
    record: dict[str, Any] = {name: gradient.get(name) for name in ("steps", "window", "steps_not_finite")}
    record["units"] = {kind: [str(unit) for unit in _renumbered(units)] for kind, units in left.items()}
    record["units_before"] = {kind: [str(unit) for unit in units] for kind, units in left.items()}
    for name, kind in LISTS.items():
        values = gradient.get(name)
        if isinstance(values, list) and len(values) == len(stack.units(kind)):
            by_unit = dict(zip(stack.units(kind), values, strict=True))
            record[name] = _shares([_part(gradient, stack, unit, by_unit[unit], gone) for unit in left[kind]])
    record["parameters"] = {kind: [_size(stack, unit, gone) for unit in units] for kind, units in left.items()}
    return record


def _size(stack: Stack, unit: Unit, gone: set[Unit]) -> int:
    lost = {id(p) for other in gone if other.block == unit.block for p in stack.parameters_of(other).values()}
    return sum(p.numel() for p in stack.parameters_of(unit).values() if id(p) not in lost)


def _part(gradient: Mapping[str, Any], stack: Stack, unit: Unit, share: float | None, gone: set[Unit]) -> float | None:
    """A block's share, less what went with a sublayer."""
    sublayers = gradient.get("sublayer_share")
    if unit.sublayer is not None or share is None or not isinstance(sublayers, list):
        return share
    own = {u: s or 0.0 for u, s in zip(stack.units("sublayer"), sublayers, strict=True) if u.block == unit.block}
    total = math.fsum(own.values())
    if not gone & own.keys() or total == 0:
        return share
    return share * math.fsum(s for u, s in own.items() if u not in gone) / total


def _renumbered(units: Collection[Unit]) -> list[Unit]:
    numbers = {block: number for number, block in enumerate(dict.fromkeys(unit.block for unit in units))}
    return [Unit(numbers[unit.block], unit.sublayer) for unit in units]


def _shares(values: list[float | None]) -> list[float | None]:
    total = math.fsum(value for value in values if value is not None)
    return [None if value is None else value / total if total > 0 else 0.0 for value in values]
