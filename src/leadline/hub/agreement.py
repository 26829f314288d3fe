"""Whether two causal language models compute the same, and whether one generates the same with its cache as without."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from leadline.errors import LeadlineError
from leadline.hub.library import one_line
from leadline.stacks.base import measuring

_WIDE = (torch.float64, torch.float32)
TOLERANCES = {
    "same": (1e-10, 1e-5, 2e-2),
    "cached": (1e-8, 1e-3, 1e-1),
    # Its models compute softmax and rotary angles in float32, whatever their dtype.
    "cached by transformers": (1e-4, 1e-3, 1e-1),
}
"""In float64, float32 and anything narrower, as a share of the largest logit. On a CPU the same sums give the same
bits; a GPU may choose other kernels for other shapes. Half precision is wide for that reason; that weights come back
bit for bit is compared beside it."""
TOKENS = 40
STEPS = 6


def sample_tokens(model: Any, *, seed: int = 0) -> Tensor:
    """Tokens to compare models with: (2, T) int64 drawn evenly from the vocabulary, T at most 40."""
    config = model.config.get_text_config(decoder=True)
    context = getattr(config, "max_position_embeddings", None) or TOKENS
    generator = torch.Generator().manual_seed(seed)
    shape = (2, max(2, min(TOKENS, context - STEPS)))
    return torch.randint(0, config.vocab_size, shape, generator=generator).to(model.device)


def logits_of(model: Any, tokens: Tensor) -> Tensor:
    """Logits (B, T, V) in evaluation mode, without a cache; the mode comes back."""
    with measuring(model):
        logits: Tensor = model(input_ids=tokens, use_cache=False).logits
    return logits


def check_logits(expected: Tensor, got: Tensor, what: str, compared: str = "same") -> float:
    """The largest difference, absolute.

    Args:
        compared: which of the `TOLERANCES` hold.

    Raises:
        LeadlineError: it is above the tolerance, or the shapes differ.
    """
    if expected.shape != got.shape:
        raise LeadlineError(f"{what}: logits are {list(got.shape)} instead of {list(expected.shape)}")
    difference = float((expected.double() - got.double()).abs().max())
    largest = float(expected.double().abs().max())
    tolerance = TOLERANCES[compared][_WIDE.index(expected.dtype) if expected.dtype in _WIDE else -1]
    if not difference <= tolerance * max(largest, 1e-30):  # NaN is a difference too.
        raise LeadlineError(f"{what}: logits differ by {difference:.3g} where the largest is {largest:.3g}")
    return difference


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


def generate_greedily(model: Any, prompt: Tensor, steps: int, **options: Any) -> Any:
    """What `generate` of a transformers model returns: the most likely tokens, with a cache, never ended early."""
    from transformers import GenerationConfig

    settings = GenerationConfig(
        do_sample=False, num_beams=1, use_cache=True, max_new_tokens=steps, min_new_tokens=steps, pad_token_id=0,
        **options,
    )  # fmt: skip
    return model.generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=settings)


def check_cache(model: Any, tokens: Tensor, steps: int = STEPS) -> int:
    """Generates greedily with the cache of a transformers model, and recomputes the logits of every step without it.

    Logits are compared, not tokens: a small model with a tied head repeats itself and would pass.

    Args:
        tokens: the prompt, (B, T) int64; its first half is used, so that windows are passed in generation.

    Returns:
        The number of steps compared.

    Raises:
        LeadlineError: it cannot generate, or the logits differ by more than the tolerance.
    """
    prompt, own = tokens[:, : max(1, tokens.shape[1] // 2)], model.generation_config
    # The model's own settings would fill in what others leave open: more sequences, stop strings, another cache.
    model.generation_config = type(own)()
    try:
        with measuring(model):
            generated = generate_greedily(model, prompt, steps, return_dict_in_generate=True, output_logits=True)
    except Exception as error:  # A layer that finds another's entries fails in many ways.
        raise LeadlineError(f"{type(model).__name__} cannot generate with its cache: {one_line(error)}") from error
    finally:
        model.generation_config = own
    for step, cached in enumerate(generated.logits):
        fresh = logits_of(model, generated.sequences[:, : prompt.shape[1] + step])[:, -1]
        what = f"step {step + 1} of generation with the cache"
        check_logits(fresh, cached.to(fresh), what, "cached by transformers")
    return len(generated.logits)
