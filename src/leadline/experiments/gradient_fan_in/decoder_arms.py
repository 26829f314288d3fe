"""The arms that are Transformer decoders: one design, trained in seven ways by options of `leadline.training`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leadline.config import from_dict, to_dict
from leadline.errors import UsageError
from leadline.experiments.gradient_fan_in.arm import ArmKind, ArmPlan, Role, Step

if TYPE_CHECKING:
    from leadline.data import DataSet
    from leadline.experiments.gradient_fan_in.plan import GfaWish
    from leadline.training import RunConfig
    from leadline.training.resolve import Run

STEP_TOKENS = 1024
MOST_FLOPS = 2e11
"""A step that costs more is not timed beforehand: that would take longer than it is worth."""
DETAIL_STEPS = 2.0
"""A record of effective rank and diversity takes about so many steps more."""


@dataclass(frozen=True, kw_only=True)
class DecoderArm(ArmKind):
    """A decoder, trained with some options.

    Attributes:
        options: of `RunConfig`, from the wish.
    """

    name: str
    summary: str
    role: Role
    control: str = ""
    options: Callable[[GfaWish], Mapping[str, Any]] = field(default=lambda wish: {})

    def plan(self, wish: GfaWish, data: DataSet, learning_rate: float | None) -> ArmPlan:
        """See `ArmKind`."""
        from leadline.training.resolve import decide

        config = self._config(wish, learning_rate)
        run = decide(config)
        return ArmPlan(
            name=self.name,
            control=self.control,
            config=to_dict(config),
            blocks=len(run.model.layers),
            tokens=int(run.config.tokens or 0),
            learning_rate=run.learning_rate,
            parameters=_parameters(run),
            flops_per_token=_flops(run),
            cost=_cost(run, wish),
        )

    def _config(self, wish: GfaWish, learning_rate: float | None) -> RunConfig:
        from leadline.training import RunConfig

        steps = wish.steps or 1
        return RunConfig(
            design=wish.design,
            data=wish.data,
            preset=wish.preset,
            shape={} if wish.blocks is None else {"blocks": wish.blocks},
            tokens=wish.tokens,
            batch_size=wish.batch_size,
            context=wish.context,
            learning_rate=learning_rate,
            evaluate_every=max(1, steps // wish.evaluations),
            evaluate_tokens=wish.evaluate_tokens,
            record_every=0,
            keep=1,
            device=wish.device,
            backend=wish.backend,
            precision=wish.precision,
            gradient_every=max(1, steps // wish.details) if wish.details else 0,
            **self.options(wish),
        )

    def train(self, folder: Path, config: dict[str, Any]) -> None:
        """See `ArmKind`."""
        from leadline.experiments.worker import train_run

        train_run(folder, config)

    def measure(self, folder: Path, config: dict[str, Any], tokens: int) -> dict[str, Any]:
        """See `ArmKind`."""
        from leadline.experiments.gradient_fan_in.measure import measure_run

        return measure_run(folder, config, tokens)

    def step(self, plan: ArmPlan) -> Step | None:
        """See `ArmKind`; forward and backward alone. None for large models and for devices other than the CPU."""
        import torch

        from leadline.designs import count_flops
        from leadline.models import Decoder
        from leadline.training import RunConfig
        from leadline.training.evaluation import loss_of
        from leadline.training.resolve import decide

        run = decide(from_dict(RunConfig, plan.config, "plan"))
        sequences = max(1, min(run.batch_size, STEP_TOKENS // run.context))
        flops = count_flops(run.model).training_total * sequences * run.context
        if run.config.device != "cpu" or flops > MOST_FLOPS:
            return None
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(run.data.vocab_size, (sequences, run.context), generator=generator)
        with torch.random.fork_rng(devices=[]):
            model = Decoder(run.model)
        return Step(run=lambda: loss_of(model(tokens), tokens).backward(), flops=float(flops))


def _layerskip(wish: GfaWish) -> Mapping[str, Any]:
    if wish.layer_dropout <= 0 and wish.exit_loss <= 0:
        raise UsageError("--layer-dropout 0 with --exit-loss 0 leaves nothing of layerskip; 0.2 and 1 work")
    return {"layer_dropout": wish.layer_dropout, "exit_loss": wish.exit_loss}


def _flops(run: Run) -> int:
    from leadline.designs import count_flops

    return count_flops(run.model).training_total


def _parameters(run: Run) -> int:
    from leadline.designs import count_parameters

    return count_parameters(run.model).total


def _cost(run: Run, wish: GfaWish) -> float:
    """FLOPs of training with its exits and its records, of the evaluations, and of a forward pass for every block."""
    from leadline.designs import count_flops

    flops = count_flops(run.model)
    skip, steps = run.layerskip, run.steps
    training = float(flops.training_total)
    evaluation = float(flops.forward)
    if skip.drops:
        training *= 1 - sum(skip.rates()) / len(skip.rates())
    if skip.exits:
        training += 3.0 * flops.head * skip.mean_exits
        evaluation += flops.head * len(skip.rates())
    if run.config.gradient_every:
        training *= 1 + DETAIL_STEPS / run.config.gradient_every
    places, layers = len(run.model.block_layers), len(run.model.layers)
    passes = 1 + layers + (places if places > layers else 0)
    trained = int(run.config.tokens or 0)
    read = min(wish.evaluate_tokens, run.data.heldout.tokens) * (1 + steps // run.evaluate_every)
    return training * trained + evaluation * read + flops.forward * passes * wish.ablation_tokens


DECODER_ARMS: tuple[ArmKind, ...] = (
    DecoderArm(name="vanilla", summary="plain training with AdamW", role="plain"),
    DecoderArm(
        name="layerskip",
        summary="LayerSkip: blocks dropped in depth, losses at early exits",
        role="plain",
        control="vanilla",
        options=_layerskip,
    ),
    DecoderArm(
        name="equalised-adamw",
        summary="the gradients of all blocks rescaled to one norm in each step, AdamW",
        role="equalise",
        control="vanilla",
        options=lambda wish: {"equalise": True},
    ),
    DecoderArm(
        name="equalised-updates",
        summary="what AdamW adds to each block rescaled to one norm in each step",
        role="equalise",
        control="vanilla",
        options=lambda wish: {"equalise_updates": True},
    ),
    DecoderArm(
        name="vanilla-sgd",
        summary="plain training with SGD, the control of equalised-sgd",
        role="control",
        options=lambda wish: {"optimizer": "sgd"},
    ),
    DecoderArm(
        name="equalised-sgd",
        summary="the gradients of all blocks rescaled to one norm in each step, SGD",
        role="equalise",
        control="vanilla-sgd",
        options=lambda wish: {"optimizer": "sgd", "equalise": True},
    ),
    DecoderArm(
        name="repeated",
        summary="the last blocks run several times with the same parameters",
        role="repeat",
        control="vanilla",
        options=lambda wish: {"repeat": wish.repeat},
    ),
)
