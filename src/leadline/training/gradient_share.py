"""How much of the gradient each block and sublayer receives over training.

    ḡ_i = Σ_t ‖∇θ_i‖ / Σ_j Σ_t ‖∇θ_j‖

L2, before clipping, read from `.grad` at the end of a step, so that a shared parameter counts once. Source: arXiv
2606.26538 (the share); what exactly is summed is ours.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn

_PLACE = re.compile(r"blocks\.(\d+)\.(attn|attention|mlp)")


class GradientShare:
    """Accumulates the gradient norm of every sublayer over steps.

    Args:
        model: whose parameters are called `blocks.i.attention…`, `blocks.i.attn_site…`, `blocks.i.mlp…`.

    Attributes:
        steps: how many were added.
    """

    def __init__(self, model: nn.Module) -> None:
        self.parameters: list[nn.Parameter] = []
        places: list[int] = []
        blocks = 0
        for name, parameter in model.named_parameters():  # each once, under its first name
            found = _PLACE.match(name)
            self.parameters.append(parameter)
            places.append(-1 if found is None else 2 * int(found[1]) + (found[2] == "mlp"))
            blocks = max(blocks, places[-1] // 2 + 1)
        self.blocks = blocks
        # What belongs to no block goes into one more row, which is dropped.
        self._rows = torch.tensor([2 * blocks if place < 0 else place for place in places])
        sizes = torch.zeros(2 * blocks + 1, dtype=torch.float64)
        for parameter, row in zip(self.parameters, self._rows.tolist(), strict=True):
            sizes[row] += parameter.numel()
        self._sizes = sizes[: 2 * blocks]
        self._sublayers = torch.zeros(2 * blocks, dtype=torch.float64)
        self._blocks = torch.zeros(blocks, dtype=torch.float64)
        self.steps = 0
        self.last: list[float] = [0.0] * blocks

    def measure(self) -> Tensor:
        """The norm of every parameter's gradient, (P,) float32 on the parameters' device; 0 where there is none."""
        grads = [p.grad for p in self.parameters if p.grad is not None]
        norms = iter(torch._foreach_norm(grads)) if grads else iter(())
        device = self.parameters[0].device
        none = torch.zeros((), device=device)
        return torch.stack([none if p.grad is None else next(norms).float() for p in self.parameters])

    def add(self, norms: Tensor) -> None:
        """Adds one step: what `measure` gives, brought to the CPU."""
        squares = torch.zeros(2 * self.blocks + 1, dtype=torch.float64)
        wide = squares.index_add_(0, self._rows, norms.double().square())[: 2 * self.blocks]
        blocks = wide.view(self.blocks, 2).sum(dim=1).sqrt()
        self._sublayers += wide.sqrt()
        self._blocks += blocks
        self.last = blocks.tolist()
        self.steps += 1

    def report(self) -> dict[str, Any]:
        """Shares by block and by sublayer, and both for norms divided by √(number of parameters)."""
        sizes = self._sizes.view(self.blocks, 2).sum(dim=1)
        return {
            "steps": self.steps,
            "share": _shares(self._blocks),
            "sublayer_share": _shares(self._sublayers),
            "share_per_parameter": _shares(self._blocks / sizes.sqrt()),
            "sublayer_share_per_parameter": _shares(self._sublayers / self._sizes.sqrt()),
        }

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps; floats survive JSON exactly."""
        return {"steps": self.steps, "sublayers": self._sublayers.tolist(), "blocks": self._blocks.tolist()}

    def load(self, state: dict[str, Any]) -> None:
        """Continues from `state()`."""
        self.steps = int(state["steps"])
        self._sublayers = torch.tensor(state["sublayers"], dtype=torch.float64)
        self._blocks = torch.tensor(state["blocks"], dtype=torch.float64)


def share_of(norms: list[float]) -> list[float]:
    """Norms as shares of their sum; zeros where the sum is zero."""
    return _shares(torch.tensor(norms, dtype=torch.float64))


def _shares(norms: Tensor) -> list[float]:
    total = float(norms.sum())
    shares: list[float] = (norms / total if total > 0 else torch.zeros_like(norms)).tolist()
    return shares
