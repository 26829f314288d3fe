"""What an arm of the study is: a way to train a stack. One more is a file with an `ArmKind`, and its name in
`registry.py`.

An arm plans its runs, trains one and measures one; the rest of the study knows only what these leave on disk:
`summary.json`, `evals.jsonl`, `steps.jsonl` and `gradient.json` as `leadline.training` writes them, and what
`measure` returns (see `leadline.experiments.gradient_fan_in.measure`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from leadline.data import DataSet
    from leadline.experiments.gradient_fan_in.plan import GfaWish

Role = Literal["plain", "control", "equalise", "repeat"]
"""What an arm is for: "plain" ones test G1, "equalise" and "repeat" test G2 against their control."""


@dataclass(frozen=True, kw_only=True)
class ArmPlan:
    """One arm, worked out before anything runs.

    Attributes:
        control: the arm that it is held against; empty for one that is only that.
        config: of a run, as the arm's `train` takes it; the seed is put in under `seed`.
        blocks: those with parameters of their own.
        tokens: that a run trains on.
        learning_rate: the peak.
        flops_per_token: of training.
        data_hash: of what it learns, where that is not the study's text.
        cost: FLOPs of a whole run, evaluations and measurements too, roughly; says how long it takes beside others.
    """

    name: str
    control: str
    config: dict[str, Any]
    blocks: int
    tokens: int
    learning_rate: float
    parameters: int
    flops_per_token: int
    cost: float
    data_hash: str = ""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A piece of training to be timed for an estimate: what runs it, and its FLOPs."""

    run: Callable[[], None]
    flops: float


class ArmKind(ABC):
    """A way to train.

    Attributes:
        name: as `--arms` takes it, and in the names of folders.
        summary: what is done, in a sentence's words.
        role: what it is for.
        control: the arm that it is held against, if any.
        loss_per: what its loss in bits is of: a byte of text, or an image.
    """

    name: str
    summary: str
    role: Role
    control: str = ""
    loss_per: Literal["byte", "image"] = "byte"

    @abstractmethod
    def plan(self, wish: GfaWish, data: DataSet, learning_rate: float | None) -> ArmPlan:
        """The arm's runs. Raises UsageError where the wish does not suit it."""

    @abstractmethod
    def train(self, folder: Path, config: dict[str, Any]) -> None:
        """Trains in `folder`, or goes on with what is there; writes `summary.json` last."""

    @abstractmethod
    def measure(self, folder: Path, config: dict[str, Any], tokens: int) -> dict[str, Any]:
        """What a trained run's blocks are worth on `tokens` held-out tokens, and their φ."""

    def step(self, plan: ArmPlan) -> Step | None:
        """A short piece of the arm's training; None where it is not worth the time."""
        return None


def amount_of(loss_per: str) -> str:
    """What an arm trains on, for people, from its `loss_per`."""
    return "images" if loss_per == "image" else "tokens"
