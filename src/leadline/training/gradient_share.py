"""How much of the gradient each block and sublayer receives over training, in Leadline's loop or in one's own.

    ḡ_i = Σ_t ‖∇θ_i‖ / Σ_j Σ_t ‖∇θ_j‖

    share = GradientShare(model)             # after DDP or `fully_shard`, a Hugging Face model too
    for batch in batches:
        loss(model, batch).backward()        # all passes of the step; then `scaler.unscale_(optimizer)` if there is one
        share.add(share.measure())           # before clipping
        ...                                  # clip, step, zero_grad
    share.save(folder)                       # gradient.json, which `leadline prune --criterion cfp` reads

L2, before clipping, after un-scaling and after reduction over ranks, read from `.grad` at the end of a step, so that a
shared or repeated parameter counts once. Every step's norms are kept, and the share is there by other definitions too
(`leadline.training.gradient_steps`). Source: arXiv 2606.26538 (the share); what exactly is summed is ours.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from leadline.errors import LeadlineError, UsageError
from leadline.models import DecoderConfig
from leadline.probes.gradients import GradientDiversity, gradient_effective_rank
from leadline.sharded import whole
from leadline.stacks import Stack, Unit, stack_of
from leadline.training.gradient_file import write_gradient
from leadline.training.gradient_norms import Norms, measure_norms
from leadline.training.gradient_steps import DEFINITIONS, Share, StepNorms, empty_norms, share_of, shares


class GradientShare:
    """Accumulates the gradient norm of every block and sublayer over steps.

    Parameters that need no gradient when it is made are left out. A parameter that several blocks share belongs to the
    first of them. Blocks of a Leadline model that repeat earlier ones count as those, so there is one share for each
    block that has parameters of its own, as there is one φ.

    Args:
        model: whatever `leadline.stacks.stack_of` knows, wrapped in DDP or compiled or not, or the stack itself.
        since: the first step that counts; the first that is added is step 1.
        until: the last step that counts; all unless given.
        clip: the norm that training clips to, for the definition `clipped`; None where it does not.
        warmup: steps in which the learning rate rises, for the definition `after-warmup`.
        keep_norms: keep every step's norms, 4 bytes a unit and step; without them there is no share but `sum`.

    Attributes:
        blocks: how many.
        sublayers: the units that have rows of their own.
        parameters: all of the model's, those outside of blocks too.
        steps: how many steps counted.
        seen: how many were added.
        last: the norm of each block's gradient in the last step; None where it had none.
        details: what `note` was told.

    Raises:
        UsageError: no stack of blocks is found, the window is empty, or the model is wrapped in the first FSDP, whose
            gradients can't be told apart by parameter.
    """

    def __init__(
        self,
        model: nn.Module | Stack,
        *,
        since: int = 1,
        until: int | None = None,
        clip: float | None = None,
        warmup: int = 0,
        keep_norms: bool = True,
    ) -> None:
        if since < 1 or (until is not None and until < since):
            raise UsageError(f"since={since} and until={until} leave no step; since is at least 1, until not before it")
        stack = model if isinstance(model, Stack) else stack_of(_unwrapped(model))
        self.stack, self.since, self.until, self.clip, self.warmup = stack, since, until, clip, warmup
        self._layers = _layers(stack)
        self.blocks = len(set(self._layers))
        self.sublayers = [
            unit for unit in stack.units("sublayer") if self._layers.index(self._layers[unit.block]) == unit.block
        ]
        self.parameters = [p for p in stack.model.parameters() if p.requires_grad]
        self._names = {id(p): name for name, p in stack.model.named_parameters()}
        self._rows = torch.tensor(self._places(), dtype=torch.int64)
        owners = [unit.block for unit in self.sublayers] + list(range(self.blocks))
        self._owners = torch.tensor(owners, dtype=torch.int64)
        # Of all units: the sublayers, then the blocks.
        self._sizes = self._by_unit(torch.tensor([parameter.numel() for parameter in self.parameters]))
        self._sums = torch.zeros(len(self._sizes), dtype=torch.float64)
        self._missing = torch.zeros(len(self._sizes), dtype=torch.int64)
        self._never = torch.ones(len(self.parameters), dtype=torch.bool)
        self.steps = self.seen = self.not_finite = 0
        self.last: list[Share] = [None] * self.blocks
        self._before = empty_norms(self.blocks, len(self.sublayers))
        self._added: list[StepNorms] = []
        self._keep_norms = keep_norms
        self.details: list[dict[str, Any]] = []

    @property
    def _total_rows(self) -> int:
        """One row a sublayer, one a block for what is in none of its sublayers, and one for what is in no block."""
        return len(self.sublayers) + self.blocks + 1

    def _places(self) -> list[int]:
        numbers = {unit: row for row, unit in enumerate(self.sublayers)}
        rows: dict[int, int] = {}
        for unit in self.stack.units("sublayer"):
            row = numbers[Unit(self._layers[unit.block], unit.sublayer)]
            for parameter in self.stack.parameters_of(unit).values():
                rows.setdefault(id(parameter), row)
        for block, layer in enumerate(self._layers):
            for parameter in self.stack.parameters_of(Unit(block)).values():
                rows.setdefault(id(parameter), len(self.sublayers) + layer)
        return [rows.get(id(parameter), self._total_rows - 1) for parameter in self.parameters]

    def _by_unit(self, values: Tensor) -> Tensor:
        """The sums of the parameters' values, (P,), over each sublayer and then each block."""
        rows = values.new_zeros(self._total_rows).index_add_(0, self._rows, values)
        blocks = values.new_zeros(self.blocks).index_add_(0, self._owners, rows[:-1])  # each row's but the last one's
        return torch.cat((rows[: len(self.sublayers)], blocks))

    def _split(self, values: Tensor) -> dict[str, Tensor]:
        """Values of all units, those of blocks apart from those of sublayers."""
        sublayers, blocks = values.split((len(self.sublayers), self.blocks))
        return {"block": blocks, "sublayer": sublayers}

    def by_block(self) -> list[list[nn.Parameter]]:
        """Each block's parameters, those that count for it."""
        found: list[list[nn.Parameter]] = [[] for _ in range(self.blocks)]
        owners = self._owners.tolist()
        for parameter, row in zip(self.parameters, self._rows.tolist(), strict=True):
            if row < len(owners):
                found[owners[row]].append(parameter)
        return found

    def measure(self) -> Norms:
        """The norms of the gradients as they are now; see `measure_norms`."""
        return measure_norms(self.parameters)

    def add(self, norms: Norms) -> None:
        """Adds one step: what `measure` returned. Waits for the device unless the norms were brought to the CPU.

        A step with a norm that is not finite counts nothing, as it does where a gradient scaler skips it; `report` says
        how many there were. A unit without any gradient in a step (a block that was dropped, or a gradient that lives
        elsewhere) adds nothing; `report` says in how many steps that was.
        """
        self.seen += 1
        values = norms.values.double().cpu()
        units, there = self._by_unit(values.square()).sqrt(), self._by_unit(norms.present.double()) > 0
        rows = self._split(units.where(there, math.nan))
        blocks = self._split(units)["block"].tolist()
        self.last = [n if has else None for n, has in zip(blocks, self._split(there)["block"].tolist(), strict=True)]
        if self._keep_norms:
            parts = (torch.linalg.vector_norm(values), rows["block"], rows["sublayer"])
            self._added.append(StepNorms(np.array([self.seen]), *(part.float()[None].numpy() for part in parts)))
        if not (self.since <= self.seen <= (self.until or math.inf)):
            return
        if not bool(torch.isfinite(values).all()):
            self.not_finite += 1
            return
        self.steps += 1
        self._sums += units
        self._missing += ~there
        self._never &= ~norms.present

    def norms(self) -> StepNorms:
        """Every step's norms so far, those outside of the window too."""
        parts = (self._before, *self._added)
        self._before, self._added = StepNorms(*(np.concatenate(column) for column in zip(*parts, strict=True))), []
        return self._before

    def _by_definition(self, unit: Literal["block", "sublayer"]) -> dict[str, list[Share]]:
        """Empty where steps before an interruption left no norms."""
        norms = self.norms()
        if len(norms.step) < self.seen:
            return {}
        counted = norms.between(self.since, self.until or math.inf)
        return {name: shares(counted, name, unit=unit, clip=self.clip, warmup=self.warmup) for name in DEFINITIONS}

    def note(self, detail: dict[str, Any]) -> None:
        """Keeps what was measured beside the norms in a step, such as effective rank and diversity."""
        self.details.append(detail)

    def report(self) -> dict[str, Any]:
        """Shares by block and by sublayer, and both for norms divided by √(number of parameters); see the docs.

        A share is None, never 0, where there was no gradient in any step that counted.
        """
        each, per_parameter = (
            self._shares(self._sums),
            self._shares(self._sums / self._sizes.clamp(min=1).double().sqrt()),
        )
        return {
            "steps": self.steps,
            "window": {"from": self.since, "until": self.until},
            "units": {"block": [str(b) for b in range(self.blocks)], "sublayer": [str(u) for u in self.sublayers]},
            "share": each["block"],
            "sublayer_share": each["sublayer"],
            "share_per_parameter": per_parameter["block"],
            "sublayer_share_per_parameter": per_parameter["sublayer"],
            "clip": self.clip,
            "warmup_steps": self.warmup,
            "definitions": {"block": self._by_definition("block"), "sublayer": self._by_definition("sublayer")},
            "parameters": {unit: sizes.tolist() for unit, sizes in self._split(self._sizes).items()},
            "steps_without_gradient": {unit: steps.tolist() for unit, steps in self._split(self._missing).items()},
            "parameters_without_gradient": self._without() if self.steps else [],
            "steps_not_finite": self.not_finite,
            "details": self.details,
        }

    def _shares(self, sums: Tensor) -> dict[str, list[Share]]:
        found = {
            unit: part.tolist() for unit, part in self._split(sums.where(self._missing < self.steps, math.nan)).items()
        }
        return {unit: share_of([None if math.isnan(s) else s for s in part]) for unit, part in found.items()}

    def _without(self) -> list[str]:
        """The parameters that never had a gradient, by name."""
        return [name for name, none in zip(self._ordered(), self._never.tolist(), strict=True) if none]

    def save(self, folder: Path | str) -> Path:
        """Writes `gradient.json` into `folder`, a model's or any other, with every step's norms beside it.

        Raises:
            LeadlineError: no step counted, no block had a gradient, or the file can't be written.
        """
        if self.steps == 0:
            window = f"{self.since} to {self.until or 'the last'}"
            raise LeadlineError(f"no step was added of those that count ({window}), so there is no gradient share")
        if all(share is None for share in self.report()["share"]):
            raise LeadlineError(
                "no block had a gradient in any step; call measure after backward and before zero_grad, and make "
                "GradientShare after fully_shard"
            )
        return write_gradient(folder, self.report(), self.norms())

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps; floats survive JSON exactly."""
        sums, missing = self._split(self._sums), self._split(self._missing)
        return {
            "steps": self.steps,
            "seen": self.seen,
            "not_finite": self.not_finite,
            "sublayers": sums["sublayer"].tolist(),
            "blocks": sums["block"].tolist(),
            "sublayers_missing": missing["sublayer"].tolist(),
            "blocks_missing": missing["block"].tolist(),
            "never": self._without(),
            "details": list(self.details),
        }

    def load(self, state: dict[str, Any], norms: StepNorms | None = None) -> None:
        """Continues from `state()`. One that was kept before there was a window has fewer entries, which are zero.

        Args:
            norms: of the steps until then, as `norms()` returned them; without, there is no share but `sum`.

        Raises:
            ValueError: it is another model's.
        """
        blocks, sublayers = state["blocks"], state["sublayers"]
        if (len(blocks), len(sublayers)) != (self.blocks, len(self.sublayers)):
            raise ValueError(f"the gradient share is that of {len(blocks)} blocks; this model has {self.blocks}")
        if norms is not None and (norms.block.shape[1], norms.sublayer.shape[1]) != (len(blocks), len(sublayers)):
            raise ValueError(
                f"the gradient norms are those of {norms.block.shape[1]} blocks; this model has {self.blocks}"
            )
        self._sums = torch.tensor([*sublayers, *blocks], dtype=torch.float64)
        missing = [state.get(f"{name}_missing", [0] * len(state[name])) for name in ("sublayers", "blocks")]
        self._missing = torch.tensor([*missing[0], *missing[1]], dtype=torch.int64)
        self._before, self._added = norms or empty_norms(self.blocks, len(self.sublayers)), []
        self.steps = int(state["steps"])
        self.seen = int(state.get("seen", self.steps))
        self.not_finite = int(state.get("not_finite", 0))
        never = set(state.get("never", () if self.steps else self._ordered()))
        self._never = torch.tensor([name in never for name in self._ordered()], dtype=torch.bool)
        self.details = list(state.get("details", ()))

    def _ordered(self) -> list[str]:
        return [self._names[id(parameter)] for parameter in self.parameters]


class Diversity:
    """The mean cosine between the gradients of a step's parts, for each block. Keeps one copy of the gradients.

    Args:
        share: knows which parameters are whose.
    """

    def __init__(self, share: GradientShare) -> None:
        self._parameters = share.by_block()
        self._blocks = [GradientDiversity() for _ in self._parameters]

    @property
    def parts(self) -> int:
        """How many parts were added."""
        return max((block.batches for block in self._blocks), default=0)

    def add(self) -> None:
        """The gradients as they are now, those of one part alone."""
        for parameters, block in zip(self._parameters, self._blocks, strict=True):
            block.add([None if p.grad is None else whole(p.grad) for p in parameters])

    def cosines(self) -> list[float | None]:
        """One for each block: 1 where all parts agree, 0 where they are orthogonal; None below two parts."""
        return [block.cosine() for block in self._blocks]


def effective_ranks(share: GradientShare) -> list[float | None]:
    """The effective rank of each block's gradient matrices as they are now, weighted by their entries.

    Costs the singular values of every matrix in the blocks. None for a block without a gradient, or with one of zeros.
    """
    return [
        gradient_effective_rank(None if p.grad is None else whole(p.grad) for p in parameters)
        for parameters in share.by_block()
    ]


def detail_of(step: int, share: GradientShare, diversity: Diversity) -> dict[str, Any]:
    """What `gradient.json` keeps of a step beside the norms."""
    return {
        "step": step,
        "effective_rank": effective_ranks(share),
        "cosine": diversity.cosines(),
        "parts": diversity.parts,
    }


def _layers(stack: Stack) -> list[int]:
    """The block as which each block of the stack counts: one that repeats another counts as that one."""
    config = getattr(stack.model, "config", None)
    if isinstance(config, DecoderConfig) and len(config.block_layers) == stack.blocks:
        return list(config.block_layers)
    return list(range(stack.blocks))


def _unwrapped(model: nn.Module) -> nn.Module:
    """The model inside `torch.compile` and DistributedDataParallel."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if isinstance(model, nn.parallel.DistributedDataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            break
        model = inner
    # Where nothing has imported it, no model is wrapped in it.
    fsdp = getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", None)
    if fsdp is not None and any(isinstance(module, fsdp) for module in model.modules()):
        raise UsageError(
            "FullyShardedDataParallel keeps shards of gradients that can't be told apart by parameter; wrap the model "
            "with torch.distributed.fsdp.fully_shard"
        )
    return model
