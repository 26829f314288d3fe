"""Generation that leaves the stack early, and what becomes of the blocks behind the exit.

    for step in stream_early(model, prompt, 100, exit=EarlyExit(blocks=8, draft=4), temperature=0):
        ...

Attention of a later token needs keys and values of every earlier one, in every block that it runs. A token that has
left early has none behind its exit. There are three ways to live with that, and each says which it is (`filling`):

- *fixed*: no token goes on. The blocks behind the exit run for none and hold nothing.
- *confidence* [after CALM, arXiv 2207.07061]: a token goes on unless the exit is sure of the next one. The states of
  tokens that left wait; when one goes on, they go with it through the later blocks, in one pass. So keys and values are
  those of the full model, not copies of others.
- *draft* (self-speculation, LayerSkip, arXiv 2404.16710): the exit guesses some tokens ahead, and the later blocks
  check them all in one pass that starts from the exit's states and cache. Every token said is the full model's.

Shapes: B batch, T time, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from leadline.connections.base import State
from leadline.errors import UsageError
from leadline.models.block import Block
from leadline.models.decoder import Decoder
from leadline.models.generation import Chooser, Sampling, checked_prompt, stream_tokens
from leadline.models.layers import KVCache


@dataclasses.dataclass(frozen=True, kw_only=True)
class EarlyExit:
    """Where generation leaves the stack, and when.

    Attributes:
        blocks: how many blocks, from the first, lie before the exit: blocks 0 to `blocks` − 1.
        confidence: leave where the exit's most likely token has at least this probability (at temperature 1), and go
            on elsewhere; None leaves always. A batch leaves when all of its sequences would.
        draft: guess so many tokens at the exit and check them with the whole model; None doesn't.

    Raises:
        UsageError: a value out of range, or both ways at once.
    """

    blocks: int
    confidence: float | None = None
    draft: int | None = None

    def __post_init__(self) -> None:
        if self.blocks < 1:
            raise UsageError(f"blocks={self.blocks} must be at least 1: the exit stands behind a block")
        if self.confidence is not None and not 0 < self.confidence <= 1:
            raise UsageError(f"confidence={self.confidence} must be more than 0 and at most 1, such as 0.9")
        if self.draft is not None and self.draft < 1:
            raise UsageError(f"draft={self.draft} must be at least 1, such as 4")
        if self.confidence is not None and self.draft is not None:
            raise UsageError("confidence and draft are two ways to leave early; give one of them")

    def check(self, model: Decoder) -> None:
        """Raises UsageError where `model` has no block behind the exit."""
        total = len(model.blocks)
        if self.blocks >= total:
            works = f"1 to {total - 1} work" if total > 1 else "it has no early exit"
            raise UsageError(f"blocks={self.blocks} leaves no block behind the exit; this model has {total}: {works}")

    @property
    def filling(self) -> str:
        """How cache entries of the blocks behind the exit are filled, as a sentence."""
        if self.draft is not None:
            return (
                "The pass that checks the guesses takes their states through the blocks behind the exit and fills "
                "these blocks' cache entries; those of refused guesses are dropped, on both sides of the exit."
            )
        if self.confidence is not None:
            return (
                "Tokens that leave early have no cache entries behind the exit until one goes on; then their states go "
                "through the later blocks with it, in one pass, so that keys and values are those of the full model."
            )
        return "The blocks behind the exit run for no token and hold no cache entries."


@dataclasses.dataclass
class ExitStatistics:
    """What came of leaving early, summed over steps of generation (a step is one token of every sequence).

    Attributes:
        tokens: steps in all.
        left: steps whose token comes from the exit.
        drafted: tokens guessed at the exit.
        accepted: of these, those that the whole model chose too.
        later_passes: passes through the blocks behind the exit.
    """

    tokens: int = 0
    left: int = 0
    drafted: int = 0
    accepted: int = 0
    later_passes: int = 0

    @property
    def left_share(self) -> float | None:
        """The share of tokens that left early; None before the first."""
        return self.left / self.tokens if self.tokens else None

    @property
    def accepted_share(self) -> float | None:
        """The share of guesses that the whole model accepted; None without any."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def tokens_per_pass(self) -> float | None:
        """Tokens for each pass through the later blocks; None where there was none."""
        return self.tokens / self.later_passes if self.later_passes else None


def stream_early(
    model: Decoder,
    prompt_tokens: Tensor,
    max_new_tokens: int,
    *,
    exit: EarlyExit,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    stop_token: int | None = None,
    skip: Collection[int] = (),
    statistics: ExitStatistics | None = None,
) -> Iterator[Tensor]:
    """Yields the next token of every sequence, (B,) int64, as `leadline.models.stream_tokens` does.

    With `exit.draft` the tokens are those of `stream_tokens` with the same options and seed, at every temperature: the
    full model chooses each token, and guesses only save passes. Rounding may differ, because it sees several at once.

    Args:
        exit: where and when to leave.
        statistics: is added to, as tokens come.
        temperature: see `stream_tokens`.
        top_k: see `stream_tokens`.
        top_p: see `stream_tokens`.
        seed: see `stream_tokens`.
        stop_token: see `stream_tokens`.
        skip: see `stream_tokens`.

    Raises:
        UsageError: a value that can't work, before anything is computed.
        LeadlineError: logits that aren't finite.
    """
    exit.check(model)
    model.check_skip(skip)
    statistics = ExitStatistics() if statistics is None else statistics
    tokens = checked_prompt(model, prompt_tokens, max_new_tokens)
    sampling: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    options: dict[str, Any] = {"seed": seed, "stop_token": stop_token}
    if exit.confidence is None and exit.draft is None:
        behind = [number for pair in model.config.numbers[exit.blocks :] for number in pair if number is not None]
        skip = {*skip, *behind}
        return _counted(stream_tokens(model, tokens, max_new_tokens, skip=skip, **sampling, **options), statistics)
    chooser = Chooser(model, tokens, Sampling(**sampling), **options)
    halves = _Halves(model, exit.blocks, tokens.shape[1] + max_new_tokens, frozenset(skip), statistics)
    if exit.draft is not None:
        return _speculate(halves, tokens, max_new_tokens, chooser, exit.draft)
    return _leave_when_sure(halves, tokens, max_new_tokens, chooser, exit.confidence or 0.0)


def _counted(steps: Iterator[Tensor], statistics: ExitStatistics) -> Iterator[Tensor]:
    for step in steps:
        statistics.tokens += 1
        statistics.left += 1
        yield step


class _Halves:
    """The blocks before the exit and those behind it, each half with the cache of the tokens that it has seen.

    States between the halves wait, packed, until the second half takes them all in one pass.
    """

    def __init__(
        self, model: Decoder, blocks: int, capacity: int, skip: Collection[int], statistics: ExitStatistics
    ) -> None:
        self.model = model
        self.statistics = statistics
        self._blocks = range(blocks), range(blocks, len(model.blocks))
        self._skip = skip
        self._caches = KVCache(capacity), KVCache(capacity)
        self._waiting: list[tuple[Tensor, ...]] = []

    @property
    def seen(self) -> int:
        """Tokens that have gone through the first half."""
        return self._caches[0].length

    def first(self, tokens: Tensor) -> State:
        """The state of tokens (B, T) at the exit, which waits from now on."""
        self.model.warn_if_long(self.seen + tokens.shape[1])
        state = self._through(0, self.model.begin(tokens), tokens.shape[1])
        self._waiting.append(self.model.config.connection.pack(state))
        return state

    def second(self) -> State:
        """The state behind the last block of all tokens that waited."""
        block = cast(Block, self.model.blocks[self._blocks[1].start])
        site = block.attn_site or block.mlp_site
        assert site is not None  # a block has at least one
        time = self.seen - self._caches[1].length
        state = self.model.config.connection.unpack(join(self._waiting), site)
        self._waiting.clear()
        self.statistics.later_passes += 1
        return self._through(1, state, time)

    def logits(self, state: State, last: int = 1) -> Tensor:
        """What the head says after the last tokens of a state, (B, last, V)."""
        return self.model.logits(self.model.end(state)[:, -last:])

    def rewind(self, length: int) -> None:
        """Drops what came after the first `length` tokens. None may wait."""
        for cache in self._caches:
            cache.rewind(length)

    def _through(self, half: int, state: State, time: int) -> State:
        cache = self._caches[half]
        at_hand = self.model.at(cache.length, time)
        state = self.model.run(state, at_hand, self._blocks[half], cache=cache, skip=self._skip)
        cache.length += time
        return state


def join(packed: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """States of successive tokens, each as a connection's `pack` gave it, as one state of them all.

    Tensors of a state begin with (batch, time) and are joined along time; an empty one is a note, the same in all.
    """
    first = packed[0]
    if len(packed) == 1:
        return first
    return tuple(parts[0] if parts[0].numel() == 0 else torch.cat(parts, dim=1) for parts in zip(*packed, strict=True))


def _leave_when_sure(
    halves: _Halves, tokens: Tensor, count: int, chooser: Chooser, confidence: float
) -> Iterator[Tensor]:
    for _ in range(count):
        with torch.inference_mode():
            logits = halves.logits(halves.first(tokens))[:, 0]
            wide = torch.promote_types(logits.dtype, torch.float32)
            sure = logits.to(wide).softmax(dim=-1).amax(dim=-1) >= confidence
            leaves = bool((sure | chooser.ended).all())
            chosen = chooser.choose(logits if leaves else halves.logits(halves.second())[:, 0])
            tokens = chosen.unsqueeze(1)
            halves.statistics.tokens += 1
            halves.statistics.left += leaves
            finished = chooser.finished
        yield chosen.clone()
        if finished:
            return


def _speculate(halves: _Halves, tokens: Tensor, count: int, chooser: Chooser, draft: int) -> Iterator[Tensor]:
    statistics = halves.statistics
    while count > 0:
        with torch.inference_mode():
            guesses = _guess(halves, tokens, min(draft, count - 1), chooser)
            checked = halves.logits(halves.second(), len(guesses) + 1)
            before = halves.seen - len(guesses)
            statistics.drafted += len(guesses)
        for index in range(len(guesses) + 1):
            with torch.inference_mode():
                chosen = chooser.choose(checked[:, index])
                finished = chooser.finished
                accepted = index < len(guesses) and torch.equal(chosen, guesses[index])
                statistics.accepted += accepted
                statistics.tokens += 1
                count -= 1
            yield chosen.clone()
            if finished:
                return
            if not accepted:
                break
        halves.rewind(before + index)
        tokens = chosen.unsqueeze(1)


def _guess(halves: _Halves, tokens: Tensor, count: int, chooser: Chooser) -> list[Tensor]:
    """The exit's most likely tokens (B,), one after the other; the states of all, and of `tokens`, wait."""
    state, ended = halves.first(tokens), chooser.ended
    guesses: list[Tensor] = []
    for _ in range(count):
        guess, ended = chooser.stopped(halves.logits(state)[:, 0].argmax(dim=-1), ended)
        guesses.append(guess)
        state = halves.first(guess.unsqueeze(1))
    return guesses
