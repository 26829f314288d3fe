"""AdamW with decay on matrices alone, and the learning rate's course."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from leadline.connections.base import Readout, Site
from leadline.training.config import RunConfig

BETAS = (0.9, 0.95)
EPS = 1e-8


def make_optimiser(model: nn.Module, config: RunConfig, learning_rate: float) -> torch.optim.AdamW:
    """AdamW (0.9, 0.95). Norms, gains, biases and all of a connection's parameters take no weight decay."""
    decayed, plain = split_by_decay(model, decay_embeddings=config.decay_embeddings)
    groups = [
        {"params": list(decayed.values()), "weight_decay": config.weight_decay},
        {"params": list(plain.values()), "weight_decay": 0.0},
    ]
    given = [group for group in groups if group["params"]]
    fused = all(p.device.type in ("cpu", "cuda") for p in model.parameters())
    return torch.optim.AdamW(given, lr=learning_rate, betas=BETAS, eps=EPS, fused=fused)


def split_by_decay(model: nn.Module, *, decay_embeddings: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Parameters by name: those with weight decay, those without."""
    spared = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, Site | Readout) or (isinstance(module, nn.Embedding) and not decay_embeddings)
        for parameter in module.parameters()
    }
    decayed: dict[str, Tensor] = {}
    plain: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        matrix = parameter.dim() >= 2 and id(parameter) not in spared
        (decayed if matrix else plain)[name] = parameter
    return decayed, plain


def rate_at(step: int, steps: int, config: RunConfig) -> float:
    """The share of the peak rate in step `step`, counted from 1, of `steps`."""
    warmup = math.ceil(config.warmup * steps)
    if step <= warmup:
        return step / warmup
    final = config.final_fraction
    if config.schedule == "wsd":
        decay = max(1, math.ceil(config.decay * steps))
        left = min(1.0, (steps - step) / decay)
        return final + (1 - final) * left
    done = (step - warmup) / max(1, steps - warmup)
    return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * done))


def optimiser_tensors(model: nn.Module, optimiser: torch.optim.AdamW) -> dict[str, Tensor]:
    """The optimiser's state by parameter name, for safetensors."""
    tensors = {}
    for name, parameter in model.named_parameters():
        for key, value in optimiser.state.get(parameter, {}).items():
            tensors[f"{name}:{key}"] = value.detach().contiguous()
    return tensors


def load_optimiser(model: nn.Module, optimiser: torch.optim.AdamW, tensors: dict[str, Tensor]) -> None:
    """The inverse of `optimiser_tensors`. An optimiser that was saved before its first step has no state.

    Raises:
        KeyError: a parameter's state is missing.
    """
    if not any(key.endswith(":exp_avg") for key in tensors):
        return
    for name, parameter in model.named_parameters():
        state = {}
        for key in ("exp_avg", "exp_avg_sq", "step"):
            value = tensors[f"{name}:{key}"]
            # Copied: a file's tensors lie unaligned in memory, and sums over them round differently.
            state[key] = value.to(parameter.device, copy=True)
        optimiser.state[parameter] = state
