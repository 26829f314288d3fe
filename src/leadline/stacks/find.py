"""From a model to its stack of blocks."""

from __future__ import annotations

from torch import nn

from leadline.errors import UsageError
from leadline.models import Decoder
from leadline.models.resnet import ResNet
from leadline.stacks.base import Stack
from leadline.stacks.causal_lm import CausalLMStack
from leadline.stacks.decoder import DecoderStack
from leadline.stacks.resnet import ResNetStack


def stack_of(model: nn.Module, *, blocks: str | None = None) -> Stack:
    """The model as a stack of blocks: a `leadline.models.Decoder`, a `leadline.models.resnet.ResNet`, or a causal
    language model as it comes.

    Args:
        model: a model that returns logits for tokens.
        blocks: the name of its list of blocks, such as "transformer.h", where structure alone doesn't tell.

    Raises:
        UsageError: the blocks aren't found; the message says how to point at them.
    """
    if isinstance(model, Decoder):
        if blocks is not None:
            raise UsageError(f"blocks={blocks!r} (--layers) is for other models; a Leadline decoder's are known")
        return DecoderStack(model)
    if isinstance(model, ResNet):
        if blocks is not None:
            raise UsageError(f"blocks={blocks!r} (--layers) is for other models; a ResNet's are known")
        return ResNetStack(model)
    return CausalLMStack(model, blocks=blocks)
