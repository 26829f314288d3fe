"""What a probe finds, typed: `to_dict` makes of it what results.json holds, and `from_dict` reads that again.

A part that was not measured is None, and so is a number that is not defined; `leadline.probes.measure_stack` says what
each name means.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from leadline.config import from_dict
from leadline.report.pictures import Entry, Row, some

PerBlock = dict[str, list[int | float | None]]
"""By the name of a measurement a number for every block."""
PerSublayer = dict[str, list[list[int | float | None]]]
"""By the name of a measurement, for every block, a number for each of its sublayers."""
Places = list[int | None]
Matrix = list[Row]


@dataclass(frozen=True)
class Bounds:
    """A value with its 95 % interval."""

    value: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What the model is."""

    blocks: int | None = None
    sublayers: list[list[str]] | None = None
    dim: int | None = None
    parameters: int | None = None
    norms_scale: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Activations:
    """Sizes of what blocks leave and sublayers give."""

    tokens: int | None = None
    input: dict[str, float | None] | None = None
    blocks: PerBlock | None = None
    sublayers: PerSublayer | None = None
    residual_to_update: Row | None = None
    growth: Bounds | None = None


@dataclass(frozen=True, kw_only=True)
class Similarity:
    """States compared with each other."""

    tokens: int | None = None
    angular_distance: Matrix | None = None
    block_influence: Row | None = None
    place_low: Places | None = None
    place_high: Places | None = None
    window_influence: Matrix | None = None
    cka: Matrix | None = None
    effective_rank: Row | None = None
    effective_rank_centred: Row | None = None


@dataclass(frozen=True, kw_only=True)
class Lens:
    """The model ended after each block."""

    tokens: int | None = None
    loss: Row | None = None
    bits_per_byte: Row | None = None
    kl: Row | None = None
    agreement: Row | None = None
    entropy: Row | None = None
    agreement_low: Row | None = None
    agreement_high: Row | None = None
    final: dict[str, float | None] | None = None


@dataclass(frozen=True, kw_only=True)
class Gradients:
    """Where the gradient on this text goes."""

    batches: int | None = None
    rank_batches: int | None = None
    first_half: Bounds | None = None
    blocks: PerBlock | None = None
    sublayers: PerSublayer | None = None


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """What leaving out each block and sublayer costs."""

    tokens: int | None = None
    sequences: int | None = None
    loss: float | None = None
    bits_per_byte: float | None = None
    first_half: Bounds | None = None
    blocks: PerBlock | None = None
    sublayers: PerSublayer | None = None


@dataclass(frozen=True, kw_only=True)
class Connection:
    """What a connection shows of itself."""

    tokens: int | None = None
    depth_weights: Matrix | None = None
    gates: Matrix | None = None
    stream_diversity: Row | None = None
    mixing: list[Matrix] | None = None
    stream_angular_distance: list[Matrix] | None = None


@dataclass(frozen=True, kw_only=True)
class Bhyt:
    """What bounded tanh and layer-norm scaling show of themselves."""

    tokens: int | None = None
    kappa: float | None = None
    bound: float | None = None
    attention: dict[str, list[float | bool | None]] | None = None
    mlp: dict[str, list[float | bool | None]] | None = None
    variance: dict[str, Row] | None = None
    second_moment: dict[str, Row] | None = None


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What `leadline.probes.measure_stack` measures of one model."""

    model: Shape | None = None
    bytes_per_token: float | None = None
    activations: Activations | None = None
    similarity: Similarity | None = None
    lens: Lens | None = None
    gradients: Gradients | None = None
    ablation: Ablation | None = None
    connection: Connection | None = None
    bhyt: Bhyt | None = None
    fan_in: dict[str, list[int | float | None] | None] | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingGradient:
    """The shares of the gradient in a run's gradient.json."""

    steps: int | None = None
    share: Row | None = None


@dataclass(frozen=True, kw_only=True)
class ProbedModel:
    """One model.

    Attributes:
        error: why it failed.
        seconds: how long it was measured.
        tokens, batches: of text that were there to measure on.
        training_gradient: None for models that are no run.
    """

    name: str = ""
    path: str = ""
    kind: str = ""
    tokenizer: str = ""
    context: int | None = None
    vocab_size: int | None = None
    status: Literal["ok", "failed"] = "ok"
    error: str | None = None
    seconds: float | None = None
    tokens: int | None = None
    batches: int | None = None
    data_hash: str = ""
    probe: Measured | None = None
    training_gradient: TrainingGradient | None = None

    @property
    def failed(self) -> bool:
        return self.status == "failed"


@dataclass(frozen=True, kw_only=True)
class ModelValues(ProbedModel):
    """One model on the page, where it has a number; a path such as ("lens", "kl") leads to what was measured."""

    index: int = 0

    @property
    def entry(self) -> Entry:
        return Entry(index=self.index, name=self.name, drawn=not self.failed)

    @property
    def blocks(self) -> int:
        return int(self.at("model", "blocks") or 0)

    @property
    def sublayers(self) -> list[list[str]]:
        """The names of every block's sublayers."""
        return self.values("model", "sublayers")

    @property
    def training_share(self) -> Row:
        """The share of the gradient over training; empty where it was not recorded."""
        return (self.training_gradient and self.training_gradient.share) or []

    @property
    def growth(self) -> Bounds:
        """How many times larger the last block's output is than that of block 1; block 0's jump is the embedding's."""
        return self.at("activations", "growth") or Bounds()

    @property
    def first_half(self) -> Bounds:
        """What the first half of the blocks makes up of all blocks' ΔM."""
        return self.at("ablation", "first_half") or Bounds()

    def at(self, *path: str) -> Any:
        """What was measured; None where it was not."""
        found: Any = self.probe
        for name in path:
            found = found.get(name) if isinstance(found, dict) else getattr(found, name, None)
        return found

    def values(self, *path: str) -> list[Any]:
        """A list of numbers, rows or matrices; empty where it was not measured."""
        return self.at(*path) or []

    def of_sublayer(self, sublayer: str, *path: str) -> Row:
        """One number a block, of the sublayer of that name; None where a block has none."""
        rows = zip(self.values(*path), self.sublayers, strict=False)
        return [dict(zip(names, row, strict=False)).get(sublayer) for row, names in rows]

    def places(self, criterion: str) -> list[tuple[int | None, int | None]]:
        """Between which places each block stands, 1 being the least important; empty where that wasn't measured."""
        path = {"ablation": ("ablation", "blocks"), "similarity": ("similarity",), "gradient": ("gradients", "blocks")}
        low, high = (self.values(*path[criterion], key) for key in ("place_low", "place_high"))
        return list(zip(low, high, strict=False))

    def least(self, criterion: str) -> list[int]:
        """The blocks that the criterion finds least important and can't tell apart; all of them where it tells none.

        Args:
            criterion: "ablation", "similarity" (Block Influence) or "gradient" (the share over training, where the run
                has recorded it: a record of the run, so there is no doubt about the lowest; else that on this text).
        """
        shares = some(self.training_share)
        if criterion == "gradient" and shares:
            return [block for block, share in enumerate(self.training_share) if share == min(shares)]
        return [block for block, (low, _) in enumerate(self.places(criterion)) if low == 1]

    def most(self, criterion: str) -> list[int]:
        """The blocks that the criterion, "ablation" or "similarity", finds most important and can't tell apart."""
        found = self.places(criterion)
        return [block for block, (_, high) in enumerate(found) if high == len(found)]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the probe was asked for."""

    tokens: int | None = None
    context: int | None = None
    batch_size: int | None = None
    parts: list[str] = field(default_factory=list)
    layers: str | None = None
    device: str = ""
    seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class ProbeFile:
    """The content of results.json.

    Attributes:
        leadline: the version that measured.
        machine: what `describe_machine` says.
        data: its name.
    """

    leadline: str = ""
    command: str = ""
    created: str = ""
    seconds: float | None = None
    machine: dict[str, Any] = field(default_factory=dict)
    data: dict[str, str] = field(default_factory=dict)
    settings: Settings = Settings()
    models: tuple[ProbedModel, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ProbeValues(ProbeFile):
    """The same with the models numbered, as the page has them."""

    models: tuple[ModelValues, ...] = ()

    @classmethod
    def read(cls, results: Any) -> ProbeValues:
        """From the content of results.json. Raises UsageError where it holds something else, and names the place."""
        found = from_dict(cls, results, "results.json")
        models = [replace(model, index=i, name=model.name or f"model {i + 1}") for i, model in enumerate(found.models)]
        return replace(found, models=tuple(models))

    @property
    def measured(self) -> list[ModelValues]:
        """The models that have results."""
        return [model for model in self.models if not model.failed]

    @property
    def sublayers(self) -> list[str]:
        """The names of sublayers that occur, in the order in which they run."""
        return list(dict.fromkeys(name for model in self.measured for block in model.sublayers for name in block))
