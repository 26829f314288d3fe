"""Generation that leaves early: fixed, when sure, and with guesses; cache entries behind the exit are as they say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from leadline.errors import UsageError
from leadline.models import (
    Decoder,
    DecoderConfig,
    EarlyExit,
    ExitStatistics,
    KVCache,
    RepeatConfig,
    cut,
    generate,
    stream_early,
    stream_tokens,
)

MakeConfig = Callable[..., DecoderConfig]
Lively = Callable[..., Decoder]


def early(model: Decoder, prompt: Tensor, count: int, **options: Any) -> tuple[list[list[int]], ExitStatistics]:
    """The tokens of each step, and the statistics."""
    statistics = ExitStatistics()
    steps = stream_early(model, prompt, count, statistics=statistics, **options)
    return [step.tolist() for step in steps], statistics


def plain(model: Decoder, prompt: Tensor, count: int, **options: Any) -> list[list[int]]:
    return [step.tolist() for step in stream_tokens(model, prompt, count, **options)]


def agreeing(model: Decoder) -> Decoder:
    """Weakens the later half, so that the exit is often, but not always, right."""
    with torch.no_grad():
        for block in model.blocks[len(model.blocks) // 2 :]:
            block.attention.output.weight.mul_(0.2)
            block.mlp.down.weight.mul_(0.2)
    return model


@pytest.fixture
def model(make_config: MakeConfig, lively: Lively) -> Decoder:
    return agreeing(lively(make_config(blocks=4, tied=False)))


def test_guesses_change_no_token(make_config: MakeConfig, connection: Any, tokens: Tensor, lively: Lively) -> None:
    model = agreeing(lively(make_config(blocks=4, connection=connection, tied=False)))
    for draft, prompt in ((1, tokens[:1, :4]), (4, tokens[:1, :1]), (3, tokens[:, :5])):
        exit = EarlyExit(blocks=2, draft=draft)
        assert early(model, prompt, 9, exit=exit, temperature=0)[0] == plain(model, prompt, 9, temperature=0)
    sampled = {"temperature": 0.7, "top_k": 5, "seed": 3}
    found, statistics = early(model, tokens[:1, :4], 14, exit=EarlyExit(blocks=2, draft=3), **sampled)
    assert found == plain(model, tokens[:1, :4], 14, **sampled)
    assert statistics.tokens == 14
    assert statistics.later_passes == 14 - statistics.accepted
    assert 0 <= statistics.accepted <= statistics.drafted


def test_guesses_are_accepted_and_refused(model: Decoder, tokens: Tensor) -> None:
    _, statistics = early(model, tokens[:1, :4], 40, exit=EarlyExit(blocks=2, draft=4), temperature=0)
    assert 0 < statistics.accepted < statistics.drafted
    assert statistics.tokens_per_pass == 40 / statistics.later_passes > 1
    with torch.no_grad():
        for block in model.blocks[2:]:
            block.attention.output.weight.zero_()
            block.mlp.down.weight.zero_()
    _, statistics = early(model, tokens[:1, :4], 40, exit=EarlyExit(blocks=2, draft=4), temperature=0)
    assert statistics.accepted == statistics.drafted == 32
    assert (statistics.accepted_share, statistics.later_passes) == (1.0, 8)


def test_guesses_stop_where_the_model_does(model: Decoder, tokens: Tensor) -> None:
    prompt = tokens[:, :4]
    said = plain(model, prompt, 20, temperature=0)
    for stop in (said[3][0], said[6][1], said[9][0]):
        options = {"temperature": 0, "stop_token": stop}
        assert early(model, prompt, 20, exit=EarlyExit(blocks=2, draft=4), **options)[0] == plain(
            model, prompt, 20, **options
        )


@torch.no_grad()
def slow(model: Decoder, prompt: Tensor, count: int, blocks: int, confidence: float) -> tuple[list[list[int]], int]:
    """Leaving when sure, without any cache: both exits of all tokens, each time."""
    text, said, left = prompt, [], 0
    for _ in range(count):
        exit, end = (model.logits(x[:, -1]) for x in model.exits(text, [blocks - 1, len(model.blocks) - 1]))
        leaves = bool((exit.softmax(-1).amax(-1) >= confidence).all())
        left += leaves
        text = torch.cat((text, (exit if leaves else end).argmax(-1, keepdim=True)), dim=1)
        said.append(text[:, -1].tolist())
    return said, left


def test_tokens_that_left_early_catch_up(
    make_config: MakeConfig, connection: Any, tokens: Tensor, lively: Lively
) -> None:
    model = lively(make_config(blocks=4, connection=connection, tied=False))
    with torch.no_grad():  # a little beside the median, because that is a probability met again below
        sure = 0.999 * float(model.logits(model.exits(tokens, [1])[0]).softmax(-1).amax(-1).median())
    seen = 0
    for confidence, prompt in ((sure, tokens[:1, :4]), (0.9 * sure, tokens[:, :5]), (sure, tokens[:1, :1])):
        exit = EarlyExit(blocks=2, confidence=confidence)
        found, statistics = early(model, prompt, 10, exit=exit, temperature=0)
        assert (found, statistics.left) == slow(model, prompt, 10, 2, confidence)
        assert statistics.later_passes == 10 - statistics.left
        seen += 0 < statistics.left < 10
    assert seen > 0


def test_a_model_that_is_never_sure_is_the_full_one(model: Decoder, tokens: Tensor) -> None:
    found, statistics = early(model, tokens[:, :4], 8, exit=EarlyExit(blocks=1, confidence=1.0), seed=2)
    assert found == plain(model, tokens[:, :4], 8, seed=2)
    assert (statistics.left_share, statistics.later_passes, statistics.accepted_share) == (0.0, 8, None)


def test_a_fixed_exit_runs_no_later_block(
    make_config: MakeConfig, connection: Any, tokens: Tensor, lively: Lively, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = lively(make_config(blocks=4, connection=connection, tied=False))
    caches: list[KVCache] = []
    start = KVCache.__init__
    monkeypatch.setattr(KVCache, "__init__", lambda self, *a: (caches.append(self), start(self, *a))[1])
    found, statistics = early(model, tokens[:, :4], 8, exit=EarlyExit(blocks=2), temperature=0)
    smaller = cut(model, [4, 5, 6, 7])
    assert [list(cache._entries) for cache in caches] == [[0, 1]]
    assert found == plain(smaller, tokens[:, :4], 8, temperature=0)
    assert (statistics.left_share, statistics.tokens_per_pass) == (1.0, None)


@pytest.mark.parametrize("options", [{}, {"draft": 2}, {"confidence": 0.9}])
def test_every_way_warns_beyond_the_context(model: Decoder, tokens: Tensor, options: dict[str, Any]) -> None:
    with pytest.warns(UserWarning, match=f"this model was trained on {model.config.context} tokens at a time"):
        early(model, tokens[:1, :4], model.config.context, exit=EarlyExit(blocks=2, **options), temperature=0)


def test_models_that_were_cut_or_repeat(make_config: MakeConfig, tokens: Tensor, lively: Lively) -> None:
    whole = agreeing(lively(make_config(blocks=4, tied=False)))
    repeating = agreeing(lively(make_config(repeat=RepeatConfig(last=2, times=2), tied=False)))
    for model, skip in ((cut(whole, [2, 4]), ()), (repeating, ()), (whole, (2, 5))):
        expected = plain(model, tokens[:, :4], 12, temperature=0, skip=skip)
        found, _ = early(model, tokens[:, :4], 12, exit=EarlyExit(blocks=2, draft=3), temperature=0, skip=skip)
        assert found == expected


def test_skipping_in_plain_generation(model: Decoder, tokens: Tensor) -> None:
    smaller = cut(model, [2, 3, 5])
    for cache in (True, False):
        found = generate(model, tokens[:, :4], 8, temperature=0, cache=cache, skip=[2, 3, 5])
        assert torch.equal(found, generate(smaller, tokens[:, :4], 8, temperature=0))
    with pytest.raises(UsageError, match="skip=8"):
        stream_tokens(model, tokens, 3, skip=[8])


def test_each_way_says_how_entries_are_filled() -> None:
    fixed, sure, draft = EarlyExit(blocks=1), EarlyExit(blocks=1, confidence=0.9), EarlyExit(blocks=1, draft=4)
    assert "hold no cache entries" in fixed.filling
    assert "when one goes on" in sure.filling or "until one goes on" in sure.filling
    assert "checks the guesses" in draft.filling


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"blocks": 0}, "blocks=0 must be at least 1"),
        ({"blocks": 1, "confidence": 0.0}, r"confidence=0\.0"),
        ({"blocks": 1, "confidence": 1.5}, r"confidence=1\.5"),
        ({"blocks": 1, "draft": 0}, "draft=0"),
        ({"blocks": 1, "draft": 2, "confidence": 0.5}, "give one of them"),
    ],
)
def test_wrong_exits(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        EarlyExit(**options)


def test_an_exit_that_the_model_does_not_have(model: Decoder, tokens: Tensor) -> None:
    with pytest.raises(UsageError, match="blocks=4 leaves no block behind the exit; this model has 4: 1 to 3 work"):
        stream_early(model, tokens, 3, exit=EarlyExit(blocks=4))
    with pytest.raises(UsageError, match="it has no early exit"):
        stream_early(cut(model, range(2, 8)), tokens, 3, exit=EarlyExit(blocks=1))


def test_rewinding_a_cache(model: Decoder, tokens: Tensor) -> None:
    with torch.no_grad():
        cache = KVCache()
        model(tokens, cache=cache)
        cache.rewind(6)
        again = model(tokens[:, 6:], cache=cache)
        assert torch.allclose(again, model(tokens)[:, 6:], atol=1e-9)
    with pytest.raises(UsageError, match="length=14"):
        cache.rewind(14)
