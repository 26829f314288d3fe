"""AdamW or SGD with decay on matrices alone, and the learning rate's course."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from leadline.connections.base import Readout, Site
from leadline.sharded import laid_out
from leadline.training.config import RunConfig, Schedule

BETAS = (0.9, 0.95)
EPS = 1e-8
NO_STATE = "none"


def make_optimiser(model: nn.Module, config: RunConfig, learning_rate: float) -> torch.optim.Optimizer:
    """AdamW (0.9, 0.95), or SGD with momentum. Norms, gains, biases and all of a connection's take no weight decay.

    SGD's decay is PyTorch's: `weight_decay · w` joins the gradient after clipping, and so the momentum.
    """
    given = param_groups(model, config.optimizer.weight_decay, decay_embeddings=config.optimizer.decay_embeddings)
    if config.optimizer.optimizer == "sgd":
        # Not fused: that one asks for momentum of all parameters or of none, and a dropped block has none yet.
        return torch.optim.SGD(given, lr=learning_rate, momentum=config.optimizer.sgd_momentum)
    fused = all(p.device.type in ("cpu", "cuda") for p in model.parameters())
    return torch.optim.AdamW(given, lr=learning_rate, betas=BETAS, eps=EPS, fused=fused)


def param_groups(model: nn.Module, weight_decay: float, *, decay_embeddings: bool = False) -> list[dict[str, Any]]:
    """Parameter groups for `torch.optim.AdamW` and its like: decay for the matrices of sublayers and the head alone.

        optimizer = torch.optim.AdamW(ll.param_groups(model, weight_decay=0.1), lr=3e-4)

    Parameters of connections take no decay, whatever their shape, and neither do embeddings (`nn.Embedding`), norms,
    biases and anything else of fewer than two dimensions. Every parameter is in one group, once, where modules share it
    too; a head tied to the embedding counts as the embedding. Source: the choice is ours; nanoGPT decays whatever has
    two dimensions, so hyper-connections' matrices as well.

    Args:
        model: any model with connections in it, Leadline's or yours; build the groups after `fully_shard`.
        weight_decay: of the matrices.
        decay_embeddings: whether embeddings decay too.

    Returns:
        One or two groups, `{"params": [...], "weight_decay": ...}`: what decays, and what doesn't.
    """
    decayed, plain = split_by_decay(model, decay_embeddings=decay_embeddings)
    groups = [
        {"params": list(decayed.values()), "weight_decay": weight_decay},
        {"params": list(plain.values()), "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


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


def warmup_steps(steps: int, schedule: Schedule) -> int:
    """In how many of `steps` steps the rate rises."""
    return math.ceil(schedule.warmup * steps)


def decay_start(steps: int, schedule: Schedule) -> int | None:
    """The step after which "wsd" decays; None for a schedule without a steady part."""
    if schedule.schedule != "wsd":
        return None
    return steps - max(1, math.ceil(schedule.decay_share * steps))


def rate_at(step: int, steps: int, schedule: Schedule) -> float:
    """The share of the peak rate in step `step`, counted from 1, of `steps`.

    A run that was extended keeps the warm-up that it began with; "cosine" begins anew where the run had ended, from the
    final rate, with a warm-up of the same share of the new steps.
    """
    first, final = min((*schedule.extended, steps)), schedule.final_fraction
    steady = decay_start(steps, schedule)
    if steady is not None:
        warmup = warmup_steps(first, schedule)
        left = min(1.0, (steps - step) / (steps - steady))
        return step / warmup if step <= warmup else final + (1 - final) * left
    begin = max((end for end in schedule.extended if end < step), default=0)
    end = min(end for end in (*schedule.extended, steps) if end >= step)
    warmup = warmup_steps(end - begin, schedule)
    step -= begin
    if step <= warmup:
        return step / warmup if not begin else final + (1 - final) * step / warmup
    done = (step - warmup) / max(1, end - begin - warmup)
    return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * done))


def optimiser_tensors(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state by parameter name, for safetensors.

    A parameter that has none, because its block was dropped in every step so far, has an empty tensor instead.
    """
    tensors = {}
    for name, parameter in model.named_parameters():
        state = {key: value for key, value in optimiser.state.get(parameter, {}).items() if value is not None}
        for key, value in state.items():
            tensors[f"{name}:{key}"] = value.detach().contiguous()
        if not state and _keys(optimiser) and optimiser.state:
            tensors[f"{name}:{NO_STATE}"] = torch.zeros(0)
    return tensors


def load_optimiser(model: nn.Module, optimiser: torch.optim.Optimizer, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """The inverse of `optimiser_tensors`. An optimiser that was saved before its first step has no state.

    Args:
        tensors: by name; each is copied before the next is asked for.

    Raises:
        KeyError: a parameter's state is missing.
        ValueError: it is another parameter's.
    """
    keys, parameters = _keys(optimiser), dict(model.named_parameters())
    states: dict[str, dict[str, Tensor]] = {}
    for full, value in tensors:
        name, _, key = full.rpartition(":")
        parameter = parameters.get(name)
        if parameter is None:
            continue
        state = states.setdefault(name, {})
        if key in keys:
            if key != "step" and (value.shape, value.dtype) != (parameter.shape, parameter.dtype):
                raise ValueError(f"{full} is not of the parameter's shape and type")
            # Copied: a file's tensors lie unaligned in memory, and sums over them round differently.
            whole = value.to(parameter.device, copy=True)
            state[key] = whole if key == "step" else laid_out(whole, parameter)
        del value  # before the next is read
    if not keys or not any(states.values()):
        return
    for name, parameter in parameters.items():
        kept = states.get(name)
        lacking = [key for key in keys if kept is None or (kept and key not in kept)]
        if lacking:
            raise KeyError(f"{name}:{lacking[0]}")
        if kept:
            optimiser.state[parameter] = {key: kept[key] for key in keys}


def _keys(optimiser: torch.optim.Optimizer) -> tuple[str, ...]:
    """What the optimiser keeps of each parameter."""
    if isinstance(optimiser, torch.optim.SGD):
        return ("momentum_buffer",) if optimiser.defaults["momentum"] else ()
    return ("exp_avg", "exp_avg_sq", "step")
