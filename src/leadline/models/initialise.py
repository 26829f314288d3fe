"""How a decoder's parameters start: every matrix from a generator of its own, seeded by the seed and its name.

So the same seed gives the same embedding, attention and MLP whatever the connection and the norms are, on every
device, and after meta-device construction too.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from leadline.models.config import InitConfig
from leadline.models.layers import Attention, Embedding, Linear, SwiGLU


@torch.no_grad()
def initialise(
    model: nn.Module, init: InitConfig, dim: int, blocks: int, seed: int, numbers: Sequence[int] = ()
) -> None:
    """Sets every parameter and buffer of `model` to its start.

    Matrices are normal with `init.std`; modules that set themselves (norms, sites, the readout) do so.

    Args:
        model: holds no matrices but those of `Linear` and `Embedding`.
        init: standard deviation and scales.
        dim: model width, for the default standard deviation.
        blocks: number of blocks, for the depth-dependent scales.
        seed: any whole number.
        numbers: the number that each block had before others were cut out; its matrices start as they did there.
    """
    std = 0.02 * math.sqrt(512 / dim) if init.std is None else init.std
    for name, module in model.named_modules():
        if isinstance(module, Linear | Embedding):
            _fill_normal(module.weight, std, f"{seed}:{_first_name(name, numbers)}.weight")
        elif module is not model and callable(getattr(module, "reset_parameters", None)):
            module.reset_parameters()
    for module in model.modules():
        if isinstance(module, Attention):
            _scale(module.output.weight, _output_factor(init, blocks))
            _scale(module.value_weight, _deepnorm_gain(init, blocks))
        elif isinstance(module, SwiGLU):
            _scale(module.gate_up.weight, _deepnorm_gain(init, blocks))
            _scale(module.down.weight, _output_factor(init, blocks))


def _first_name(name: str, numbers: Sequence[int]) -> str:
    """A module's name before blocks were cut out."""
    home, _, rest = name.partition(".")
    if home != "blocks" or not numbers:
        return name
    index, _, rest = rest.partition(".")
    return f"blocks.{numbers[int(index)]}.{rest}"


def _output_factor(init: InitConfig, blocks: int) -> float:
    depth = 1 / math.sqrt(2 * blocks) if init.output_scale == "depth" else 1.0
    return depth * _deepnorm_gain(init, blocks)


def _deepnorm_gain(init: InitConfig, blocks: int) -> float:
    return float(8 * blocks) ** -0.25 if init.deepnorm else 1.0


def _scale(weight: Tensor, factor: float) -> None:
    if factor != 1.0:
        weight.mul_(factor)


def _fill_normal(weight: Tensor, std: float, key: str) -> None:
    """Draws on the CPU in float32, so that device and dtype change nothing but rounding."""
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1
    generator = torch.Generator().manual_seed(seed)
    weight.copy_(torch.empty(weight.shape, dtype=torch.float32).normal_(0.0, std, generator=generator))
