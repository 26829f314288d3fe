"""Where a model comes from, and what its training says of a further one."""

from __future__ import annotations

from typing import Any

from leadline.hub.open import OpenedModel
from leadline.reading import read_json
from leadline.training.run_folder import read_run_file

RECORD = "prune.json"
EARLIER = ("origin", "criterion", "unit", "cut", "kept")
"""What is kept of the record of an earlier pruning."""
TRAINING = {name: name for name in ("design", "preset", "data", "seed", "tokens")} | {"learning_rate": "lr"}
"""What is kept of a run's options, and their names there."""
HEAL_SHARE = 0.1
HEAL_RATE = 1e-4


def origin_of(opened: OpenedModel) -> dict[str, Any]:
    """Where a model comes from, as data that JSON can hold."""
    origin: dict[str, Any] = {"model": str(opened.path), "kind": opened.kind}
    if (opened.path / RECORD).is_file():
        before = read_json(opened.path / RECORD, dict[str, Any], advice="remove it to continue without it")
        origin["earlier"] = {name: before.get(name) for name in EARLIER}
    config = run_config(opened)
    return origin | ({name: config.get(option) for name, option in TRAINING.items()} if opened.kind == "run" else {})


def healing_rate(opened: OpenedModel) -> float:
    """The learning rate for healing, unless one is given: a tenth of the run's, or 1e-4."""
    rate = run_config(opened).get("lr")
    return HEAL_SHARE * rate if rate is not None and rate > 0 else HEAL_RATE


def run_config(opened: OpenedModel) -> dict[str, Any]:
    """The options of the run that a model is of; empty where it is of none."""
    return {**read_run_file(opened.path)["config"]} if opened.kind == "run" else {}
