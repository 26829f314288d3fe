"""The gradient shares that training recorded, by their definition, and what is left of them in a pruned model."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from leadline.errors import LeadlineError, UsageError
from leadline.hub.open import OpenedModel
from leadline.pruning.select import Candidates
from leadline.stacks import Stack, Unit
from leadline.training.gradient_file import gradient_path, load_gradient
from leadline.training.gradient_steps import Definition

LISTS = {
    "share": "block",
    "share_per_parameter": "block",
    "sublayer_share": "sublayer",
    "sublayer_share_per_parameter": "sublayer",
}


def has_gradient(opened: OpenedModel) -> bool:
    """Whether there is a record for `recorded_gradient` to read, good or not."""
    try:
        return gradient_path(opened.path).is_file()
    except UsageError:
        return False


def recorded_gradient(opened: OpenedModel) -> dict[str, Any]:
    """The gradient shares that were recorded in training.

    Raises:
        UsageError: there is no record; it says how to make one.
    """
    try:
        return load_gradient(opened.path)
    except UsageError as error:
        raise UsageError(f"--criterion cfp: {error}") from error


def recorded_shares(
    gradient: Mapping[str, Any], kind: str, definition: Definition, normalised: bool
) -> tuple[str, Any]:
    """The shares by a definition, and what `gradient.json` calls them; the list is as it was found, which may be wrong.

    Args:
        gradient: the content of `gradient.json`.
        kind: "block" or "sublayer".
        normalised: of norms divided by √(number of parameters). The mean of shares is divided behind the mean.

    Raises:
        UsageError: the record has no shares by this definition.
        LeadlineError: shares and parameters do not fit each other.
    """
    name = f"{'' if kind == 'block' else 'sublayer_'}share{'_per_parameter' if normalised else ''}"
    if definition == "sum":
        return name, gradient.get(name)
    by_name = (gradient.get("definitions") or {}).get(kind) or {}
    if definition not in by_name:
        raise UsageError(
            f"--gradient-definition {definition}: gradient.json has no shares by it, because the norms of each step "
            "were not kept; sum works"
        )
    values, name = by_name[definition], f"definitions {kind} {definition}"
    if not normalised:
        return name, values
    try:
        sizes = gradient["parameters"][kind]
        return name, _shares([None if v is None else v / max(1, n) ** 0.5 for v, n in zip(values, sizes, strict=True)])
    except (KeyError, TypeError, ValueError) as error:
        raise LeadlineError(f"gradient.json is damaged: {name} and its parameters do not fit ({error})") from error


def kept_gradient(
    gradient: Mapping[str, Any], stack: Stack, found: Candidates, cut: Collection[Unit]
) -> dict[str, Any] | None:
    """The record of the blocks and sublayers that are left, as `gradient.json` holds it; shares sum to one again.

    None where the record is another model's: it says nothing of these blocks, and without their shares it is none.

    A block that repeats has one entry, as in the whole model's record. A block that lost one of its sublayers keeps
    that part of its share which the other one has of both (ours: the norm of what is left alone was not recorded).

    Args:
        gradient: the record of the whole model.
        stack: the whole model.
        found: the candidates that were cut from.
        cut: those of them that went.
    """
    gone = set(found.expand(cut))
    runs = {unit.block: [run.block for run in runs] for unit, runs in found.runs.items()}
    whole = {kind: [unit for unit in stack.units(kind) if unit.block in runs] for kind in ("block", "sublayer")}
    left = {
        kind: [unit for unit in units if unit not in gone and Unit(unit.block) not in gone]
        for kind, units in whole.items()
    }
    own = gradient.get("sublayer_share")
    sublayers: dict[Unit, float] = {}
    if isinstance(own, list) and len(own) == len(whole["sublayer"]):
        sublayers = {unit: share or 0.0 for unit, share in zip(whole["sublayer"], own, strict=True)}
    emptied = {b for b in runs if stack.sublayers[b] and not any(unit.block == b for unit in left["sublayer"])}
    left["block"] = [unit for unit in left["block"] if unit.block not in emptied]
    record: dict[str, Any] = {name: gradient.get(name) for name in ("steps", "window", "steps_not_finite")}
    record["units"] = {kind: [str(unit) for unit in _renumbered(units)] for kind, units in left.items()}
    record["units_before"] = {kind: [str(unit) for unit in units] for kind, units in left.items()}

    def kept(values: Any, kind: str) -> list[float | None] | None:
        if not isinstance(values, list) or len(values) != len(whole[kind]):
            return None
        by_unit = dict(zip(whole[kind], values, strict=True))
        return _shares([_part(sublayers, unit, by_unit[unit], gone) for unit in left[kind]])

    record |= {name: shares for name, kind in LISTS.items() if (shares := kept(gradient.get(name), kind)) is not None}
    if "definitions" in gradient:
        record |= {name: gradient.get(name) for name in ("clip", "warmup_steps")}
        record["definitions"] = {
            kind: {name: shares for name, values in found_by.items() if (shares := kept(values, kind)) is not None}
            for kind, found_by in gradient["definitions"].items()
        }
    if "share" not in record:
        return None
    record["parameters"] = {
        kind: [sum(_size(stack, Unit(run, unit.sublayer), gone) for run in runs[unit.block]) for unit in units]
        for kind, units in left.items()
    }
    return record


def _size(stack: Stack, unit: Unit, gone: set[Unit]) -> int:
    lost = {id(p) for other in gone if other.block == unit.block for p in stack.parameters_of(other).values()}
    return sum(p.numel() for p in stack.parameters_of(unit).values() if id(p) not in lost)


def _part(sublayers: Mapping[Unit, float], unit: Unit, share: float | None, gone: set[Unit]) -> float | None:
    """A block's share, less what went with a sublayer."""
    if unit.sublayer is not None or share is None:
        return share
    own = {other: part for other, part in sublayers.items() if other.block == unit.block}
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
