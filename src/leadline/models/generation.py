"""Generation: one token at a time, with or without the KV cache; the logits are the same.

Shapes: B batch, T prompt, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator

import torch
from torch import Tensor

from leadline.errors import LeadlineError, UsageError
from leadline.models.decoder import Decoder
from leadline.models.layers import KVCache

LONGEST = 1 << 31


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is chosen.

    Attributes:
        temperature: divides the logits; 0 takes the most likely token.
        top_k: only the k most likely tokens.
        top_p: only the most likely tokens that together reach this probability (arXiv 1904.09751), after top_k.

    Raises:
        UsageError: a value out of range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if self.temperature != 0 and not 1e-6 <= self.temperature < math.inf:
            raise UsageError(
                f"temperature={self.temperature} can be 0 (the most likely token) or from 1e-6 up, such as 0.8"
            )
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"top_k={self.top_k} must be at least 1, such as 50")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UsageError(f"top_p={self.top_p} must be more than 0 and at most 1, such as 0.9")

    def choose(self, logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Tokens (B,) from logits (B, V)."""
        if not torch.isfinite(logits).all():
            raise LeadlineError("the model's logits are not finite, so there is no next token; did training diverge?")
        if self.temperature == 0:
            return logits.argmax(dim=-1)
        probabilities = torch.softmax(self.filtered(logits), dim=-1)
        return torch.multinomial(probabilities, 1, generator=generator).squeeze(-1)

    def filtered(self, logits: Tensor) -> Tensor:
        """Logits (B, V) in float32 or wider, divided by the temperature; -inf where a token can't be chosen."""
        wide = torch.promote_types(logits.dtype, torch.float32)
        logits = logits.to(wide)
        logits = (logits - logits.amax(dim=-1, keepdim=True)) / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            kept = torch.topk(logits, self.top_k, dim=-1)
            logits = torch.full_like(logits, -math.inf).scatter(-1, kept.indices, kept.values)
        if self.top_p is not None and self.top_p < 1:
            ordered, order = logits.sort(dim=-1, descending=True)
            probabilities = ordered.softmax(dim=-1)
            reached_before = probabilities.cumsum(dim=-1) - probabilities
            ordered = ordered.masked_fill(reached_before >= self.top_p, -math.inf)
            logits = torch.full_like(logits, -math.inf).scatter(-1, order, ordered)
        return logits


def stream_tokens(
    model: Decoder,
    prompt_tokens: Tensor,
    max_new_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    cache: bool = True,
    stop_token: int | None = None,
    skip: Collection[int] = (),
) -> Iterator[Tensor]:
    """Yields the next token of every sequence, (B,) int64, up to `max_new_tokens` times.

    Args:
        model: where its parameters are is where generation runs.
        prompt_tokens: (B, T) or (T,) int64, T at least 1.
        max_new_tokens: how many tokens at most.
        temperature: see `Sampling`.
        top_k: see `Sampling`.
        top_p: see `Sampling`.
        seed: the same seed gives the same tokens on the same kind of device.
        cache: keep keys and values; without, every token costs a pass over all tokens.
        stop_token: ends a sequence, which repeats it until all sequences have ended.
        skip: sublayers to leave out, as in `Decoder.forward`. They hold no cache entries.

    Raises:
        UsageError: a value that can't work, before anything is computed.
        LeadlineError: logits that aren't finite.
    """
    tokens = checked_prompt(model, prompt_tokens, max_new_tokens)
    chooser = Chooser(
        model, tokens, Sampling(temperature=temperature, top_k=top_k, top_p=top_p), seed=seed, stop_token=stop_token
    )
    skip = frozenset(skip)
    model.check_skip(skip)
    kept = KVCache(tokens.shape[1] + max_new_tokens) if cache else None
    return _steps(model, tokens, max_new_tokens, chooser, kept, skip)


class Chooser:
    """Chooses the next token of every sequence, one step after the other.

    Args:
        model: for its vocabulary.
        tokens: the prompt (B, T), for its batch and device.
        sampling: how tokens are chosen.
        seed: of the generator.
        stop_token: ends a sequence, which repeats it from then on.

    Attributes:
        ended: which sequences have ended, (B,) bool.

    Raises:
        UsageError: a seed or a stop token out of range.
    """

    def __init__(
        self, model: Decoder, tokens: Tensor, sampling: Sampling, *, seed: int, stop_token: int | None
    ) -> None:
        if stop_token is not None and not 0 <= stop_token < model.config.vocab_size:
            raise UsageError(
                f"stop_token={stop_token} is not a token; this model has 0 to {model.config.vocab_size - 1}"
            )
        if not -(2**63) <= seed < 2**64:
            raise UsageError(f"seed={seed} is out of range; it can be a number of 64 bits, such as 0")
        self.sampling = sampling
        self.stop_token = stop_token
        self.ended = torch.zeros(tokens.shape[0], dtype=torch.bool, device=tokens.device)
        self._generator = torch.Generator(device=tokens.device).manual_seed(seed)

    def choose(self, logits: Tensor) -> Tensor:
        """Tokens (B,) from logits (B, V)."""
        chosen, self.ended = self.stopped(self.sampling.choose(logits, self._generator), self.ended)
        return chosen

    def stopped(self, tokens: Tensor, ended: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens (B,) with the stop token where a sequence has ended; and which have ended after them."""
        if self.stop_token is None:
            return tokens, ended
        tokens = torch.where(ended, self.stop_token, tokens)
        return tokens, ended | (tokens == self.stop_token)

    @property
    def finished(self) -> bool:
        """Whether every sequence has ended."""
        return self.stop_token is not None and bool(self.ended.all())


def _steps(
    model: Decoder, tokens: Tensor, count: int, chooser: Chooser, cache: KVCache | None, skip: Collection[int]
) -> Iterator[Tensor]:
    for _ in range(count):
        with torch.inference_mode():
            # The head sees the last token and no other.
            chosen = chooser.choose(model.logits(model.hidden(tokens, cache=cache, skip=skip)[:, -1]))
            following = chosen.unsqueeze(1)
            tokens = following if cache is not None else torch.cat((tokens, following), dim=1)
            finished = chooser.finished
        yield chosen.clone()
        if finished:
            return


def generate(
    model: Decoder,
    prompt_tokens: Tensor,
    max_new_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    cache: bool = True,
    stop_token: int | None = None,
    skip: Collection[int] = (),
) -> Tensor:
    """The prompt and what follows it, (B, T + new) int64 (or without B, as the prompt). See `stream_tokens`.

    Generation ends early when every sequence has reached `stop_token`.
    """
    prompt = checked_prompt(model, prompt_tokens, max_new_tokens)
    steps = stream_tokens(
        model,
        prompt,
        max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        cache=cache,
        stop_token=stop_token,
        skip=skip,
    )
    tokens = torch.cat([prompt, *(step.unsqueeze(1) for step in steps)], dim=1)
    return tokens.squeeze(0) if prompt_tokens.dim() == 1 else tokens


def checked_prompt(model: Decoder, tokens: Tensor, max_new_tokens: int) -> Tensor:
    """The prompt as (B, T) on the model's device.

    Raises:
        UsageError: it isn't one, or it and `max_new_tokens` can't be.
    """
    if tokens.dim() not in (1, 2) or tokens.dtype not in (torch.int64, torch.int32):
        raise UsageError(
            f"prompt_tokens is {tokens.dtype} of shape {tuple(tokens.shape)}; it should be int64 of shape (batch, time)"
        )
    if tokens.shape[-1] == 0:
        raise UsageError("prompt_tokens is empty; generation needs at least one token to follow")
    vocab_size = model.config.vocab_size
    if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab_size:
        raise UsageError(f"prompt_tokens holds numbers outside this model's vocabulary of 0 to {vocab_size - 1}")
    if max_new_tokens < 0:
        raise UsageError(f"max_new_tokens={max_new_tokens} must be 0 or more")
    if tokens.shape[-1] + max_new_tokens > LONGEST:
        raise UsageError(f"max_new_tokens={max_new_tokens} is too many; prompt and text can be {LONGEST} at most")
    tokens = tokens.to(model.embed.weight.device, torch.int64)
    return tokens.unsqueeze(0) if tokens.dim() == 1 else tokens
