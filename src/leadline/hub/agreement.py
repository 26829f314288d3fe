"""Whether two causal language models say the same, and whether one generates the same with its cache and without."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from leadline.errors import LeadlineError
from leadline.hub.library import one_line

_SAME = {torch.float64: 1e-10, torch.float32: 1e-5}
# Models compute softmax and rotary angles in float32, whatever their dtype.
_CACHED = {torch.float64: 1e-4, torch.float32: 1e-3}
_SAME_HALF, _CACHED_HALF = 2e-2, 1e-1
"""Of the largest logit. On a CPU the same sums give the same bits; a GPU may choose other kernels for other shapes.
Half precision is wide for that reason; that weights come back bit for bit is compared beside it."""
TOKENS = 40
STEPS = 6


def sample_tokens(model: Any, *, seed: int = 0) -> Tensor:
    """Tokens to compare models with: (2, T) int64 drawn evenly from the vocabulary, T at most 40."""
    config = model.config.get_text_config(decoder=True)
    context = getattr(config, "max_position_embeddings", None) or TOKENS
    generator = torch.Generator().manual_seed(seed)
    shape = (2, max(2, min(TOKENS, context - STEPS)))
    return torch.randint(0, config.vocab_size, shape, generator=generator).to(model.device)


@contextlib.contextmanager
def passing_through(blocks: nn.ModuleList, removed: Collection[int]) -> Iterator[None]:
    """Blocks give on what they read, until the context ends: the reference for removing them, without a cache."""
    read: dict[nn.Module, Tensor] = {}

    def keep(module: nn.Module, args: Any, kwargs: Any) -> None:
        # A copy, as a block may add to its input in place.
        read[module] = (args[0] if args else kwargs["hidden_states"]).clone()

    def give_on(module: nn.Module, args: Any, output: Any) -> Any:
        kept = read.pop(module)
        return type(output)((kept, *output[1:])) if type(output) in (tuple, list) else kept

    hooks = [blocks[block].register_forward_pre_hook(keep, with_kwargs=True) for block in removed]
    hooks += [blocks[block].register_forward_hook(give_on) for block in removed]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def logits_of(model: Any, tokens: Tensor) -> Tensor:
    """Logits (B, T, V) in evaluation mode, without a cache; the mode comes back."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            return model(input_ids=tokens, use_cache=False).logits
    finally:
        model.train(training)


def check_same_logits(expected: Tensor, got: Tensor, what: str) -> float:
    """The largest difference, absolute.

    Raises:
        LeadlineError: it is above 1e-10 (float64), 1e-5 (float32) or 2e-2 (narrower) of the largest logit.
    """
    return check_logits(expected, got, _SAME.get(expected.dtype, _SAME_HALF), what)


def check_same_weights(expected: nn.Module, got: nn.Module, what: str) -> None:
    """Makes sure that every parameter and every saved buffer has the same values, bit for bit.

    Raises:
        LeadlineError: one is missing, left over or different; names it.
    """
    one, other = expected.state_dict(), got.state_dict()
    for name in sorted(one.keys() | other.keys()):
        if name not in one or name not in other:
            raise LeadlineError(f"{what}: {name} is {'left over' if name in other else 'missing'}")
        if not torch.equal(one[name].cpu(), other[name].cpu().to(one[name].dtype)):
            raise LeadlineError(f"{what}: {name} has other values than were saved")


def check_cache(model: Any, tokens: Tensor, steps: int = STEPS) -> int:
    """Generates greedily with the cache, and computes the logits of every step again without it.

    Logits are compared, not tokens: a small model with a tied head repeats itself and would pass.

    Args:
        tokens: the prompt, (B, T) int64; its first half is used, so that windows are passed in generation.

    Returns:
        The number of steps compared.

    Raises:
        LeadlineError: it cannot generate, or they differ by more than 1e-4 (float64), 1e-3 (float32) or 0.1 (narrower)
            of the largest logit.
    """
    from transformers import GenerationConfig

    prompt = tokens[:, : max(1, tokens.shape[1] // 2)]
    settings = GenerationConfig(
        do_sample=False, num_beams=1, use_cache=True, max_new_tokens=steps, min_new_tokens=steps, pad_token_id=0,
        return_dict_in_generate=True, output_logits=True,
    )  # fmt: skip
    training, own = model.training, model.generation_config
    model.eval()
    # The model's own settings would fill in what these leave open: more sequences, stop strings, another cache.
    model.generation_config = settings
    try:
        with torch.no_grad():
            generated = model.generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=settings)
    except Exception as error:  # A layer that finds another's entries fails in many ways.
        raise LeadlineError(f"{type(model).__name__} cannot generate with its cache: {one_line(error)}") from error
    finally:
        model.train(training)
        model.generation_config = own
    tolerance = _CACHED.get(model.dtype, _CACHED_HALF)
    for step, cached in enumerate(generated.logits):
        prefix = generated.sequences[:, : prompt.shape[1] + step]
        fresh = logits_of(model, prefix)[:, -1]
        check_logits(fresh, cached.to(fresh), tolerance, f"step {step + 1} of generation with the cache")
    return len(generated.logits)


def check_logits(expected: Tensor, got: Tensor, tolerance: float, what: str) -> float:
    """The largest difference, absolute.

    Raises:
        LeadlineError: it is above `tolerance` of the largest logit, or the shapes differ.
    """
    if expected.shape != got.shape:
        raise LeadlineError(f"{what}: logits are {list(got.shape)} instead of {list(expected.shape)}")
    difference = float((expected.double() - got.double()).abs().max())
    largest = float(expected.double().abs().max())
    if not difference <= tolerance * max(largest, 1e-30):  # NaN is a difference too.
        raise LeadlineError(f"{what}: logits differ by {difference:.3g} where the largest is {largest:.3g}")
    return difference
