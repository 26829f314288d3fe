"""Generation: the cache changes no logits; sampling does what its options say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from leadline.errors import LeadlineError, UsageError
from leadline.models import Decoder, DecoderConfig, KVCache, Sampling, generate, stream_tokens
from leadline.norms import NormConfig

MakeConfig = Callable[..., DecoderConfig]
Lively = Callable[..., Decoder]


@pytest.fixture
def model(make_config: MakeConfig, lively: Lively) -> Decoder:
    return lively(make_config(tied=False))


def stepwise(model: Decoder, tokens: Tensor, chunks: list[int], **options: Any) -> Tensor:
    """Logits of `tokens` given to a cache in chunks of these sizes, the rest one by one."""
    cache = KVCache()
    outputs, start = [], 0
    for size in [*chunks, *[1] * (tokens.shape[1] - sum(chunks))]:
        outputs.append(model(tokens[:, start : start + size], cache=cache, **options))
        start += size
    assert cache.length == tokens.shape[1]
    return torch.cat(outputs, dim=1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_cache_changes_nothing(
    make_config: MakeConfig, connection: Any, tokens: Tensor, lively: Lively, dtype: torch.dtype, mode: Any
) -> None:
    model = lively(make_config(connection=connection, tied=False), dtype)
    tolerance = 1e-9 if dtype == torch.float64 else 1e-4
    with mode():
        whole = model(tokens)
        assert whole.std() > 0.3
        for chunks in ([5], [], [4, 3, 2], [13]):
            assert torch.allclose(stepwise(model, tokens, chunks), whole, atol=tolerance, rtol=tolerance)


def test_the_cache_changes_nothing_with_any_norm(
    make_config: MakeConfig, norm: NormConfig, tokens: Tensor, lively: Lively
) -> None:
    for layer in ({}, {"attention_output_norm": norm, "mlp_output_norm": norm}, {"norm_scale": 0.5}):
        model = lively(make_config(norm=norm, layer=layer, tied=False))
        assert torch.allclose(stepwise(model, tokens, [4, 3]), model(tokens), atol=1e-9)


@pytest.mark.parametrize("skip", [{0}, {1}, {2, 3}, {4}, {0, 1, 2, 3, 4, 5}])
def test_the_cache_changes_nothing_with_skipped_sublayers(
    make_config: MakeConfig, connection: Any, tokens: Tensor, lively: Lively, skip: set[int]
) -> None:
    model = lively(make_config(connection=connection, tied=False))
    whole = model(tokens, skip=skip)
    assert torch.allclose(stepwise(model, tokens, [4, 3], skip=skip), whole, atol=1e-9)


def test_generation_is_the_same_without_the_cache(
    make_config: MakeConfig, connection: Any, tokens: Tensor, lively: Lively
) -> None:
    model = lively(make_config(connection=connection, tied=False))
    cached, uncached = (generate(model, tokens[:, :4], 12, temperature=0, cache=cache) for cache in (True, False))
    assert torch.equal(cached, uncached)
    assert torch.equal(cached[:, :4], tokens[:, :4])
    assert cached.shape == (2, 16)


def test_skipping_later_what_was_not_skipped_before(model: Decoder, tokens: Tensor) -> None:
    cache = KVCache()
    model(tokens, cache=cache, skip={2})
    with pytest.raises(LeadlineError, match=r"block 1 .* 0 tokens .* 13"):
        model(tokens[:, :1], cache=cache)


def test_an_interrupted_pass_can_be_repeated(model: Decoder, tokens: Tensor) -> None:
    cache = KVCache()
    model(tokens[:, :6], cache=cache)
    handle = model.blocks[1].register_forward_pre_hook(lambda *_: pytest.fail("stop"))
    with pytest.raises(pytest.fail.Exception):
        model(tokens[:, 6:], cache=cache)
    handle.remove()
    assert torch.allclose(model(tokens[:, 6:], cache=cache), model(tokens)[:, 6:], atol=1e-9)


def test_a_cache_of_another_batch(model: Decoder, tokens: Tensor) -> None:
    cache = KVCache()
    model(tokens, cache=cache)
    with pytest.raises(UsageError, match="batch of 2, not 1"):
        model(tokens[:1], cache=cache)


def test_no_sequences_at_all(model: Decoder, tokens: Tensor) -> None:
    assert generate(model, tokens[:0], 3).shape == (0, 16)


def test_streaming_gives_the_same_tokens(model: Decoder, tokens: Tensor) -> None:
    options = {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "seed": 5}
    streamed = list(stream_tokens(model, tokens, 6, **options))
    assert all(step.shape == (2,) for step in streamed)
    assert torch.equal(torch.stack(streamed, dim=1), generate(model, tokens, 6, **options)[:, 13:])
    assert not torch.is_inference_mode_enabled()


def test_seeds(model: Decoder, tokens: Tensor) -> None:
    first, again, other = (generate(model, tokens, 12, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_one_sequence_without_a_batch(model: Decoder, tokens: Tensor) -> None:
    single = generate(model, tokens[0], 5, temperature=0)
    assert single.shape == (18,)
    assert torch.equal(single, generate(model, tokens, 5, temperature=0)[0])


def test_a_stop_token_ends_each_sequence(model: Decoder, tokens: Tensor) -> None:
    free = generate(model, tokens, 12, temperature=0)[:, 13:]
    stop = int(free[0, 2])
    stopped = generate(model, tokens, 12, temperature=0, stop_token=stop)[:, 13:]
    for row, expected in zip(stopped.tolist(), free.tolist(), strict=True):
        end = expected.index(stop) + 1 if stop in expected else len(expected)
        assert row[:end] == expected[:end][: len(row)]
        assert all(token == stop for token in row[end:])
    alone = generate(model, tokens[0], 12, temperature=0, stop_token=stop)[13:]
    assert alone.tolist() == free[0, : free[0].tolist().index(stop) + 1].tolist()


def test_nothing_new(model: Decoder, tokens: Tensor) -> None:
    assert torch.equal(generate(model, tokens, 0), tokens)


def test_beyond_the_context(make_config: MakeConfig, tokens: Tensor, lively: Lively) -> None:
    model = lively(make_config(context=15, tied=False))
    with pytest.warns(UserWarning, match="15 tokens at a time"):
        assert generate(model, tokens, 10).shape == (2, 23)


def test_sampling_keeps_what_it_should() -> None:
    logits = torch.tensor([[0.5, 0.2, 0.15, 0.1, 0.05], [0.05, 0.1, 0.15, 0.2, 0.5]]).log()

    def kept(**options: Any) -> list[list[int]]:
        return [row.isfinite().nonzero().flatten().tolist() for row in Sampling(**options).filtered(logits)]

    assert kept() == [[0, 1, 2, 3, 4]] * 2
    assert kept(top_k=2) == [[0, 1], [3, 4]]
    assert kept(top_k=99) == [[0, 1, 2, 3, 4]] * 2
    assert kept(top_p=0.6) == [[0, 1], [3, 4]]
    assert kept(top_p=1e-9) == [[0], [4]]
    assert kept(top_p=1.0) == [[0, 1, 2, 3, 4]] * 2
    assert kept(top_k=3, top_p=0.8) == [[0, 1], [3, 4]]


def test_top_k_keeps_k_of_equal_logits() -> None:
    assert Sampling(top_k=3).filtered(torch.zeros(1, 9)).isfinite().sum() == 3


def test_sampling_frequencies() -> None:
    probabilities = torch.tensor([0.6, 0.3, 0.1])
    generator = torch.Generator().manual_seed(0)
    for temperature in (1.0, 0.5):
        logits = probabilities.log().expand(20000, 3)
        counts = torch.bincount(Sampling(temperature=temperature).choose(logits, generator), minlength=3) / 20000
        expected = torch.softmax(probabilities.log() / temperature, dim=0)
        assert torch.allclose(counts, expected, atol=0.015)


def test_a_tiny_temperature_is_the_most_likely_token() -> None:
    logits = torch.randn(40, 61) * 10
    assert torch.equal(Sampling(temperature=1e-6).choose(logits), logits.argmax(dim=-1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "temperature=-1.0"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"temperature": float("inf")}, "temperature=inf"),
        ({"top_k": 0}, "top_k=0 must be at least 1"),
        ({"top_p": 0.0}, "top_p=0.0 must be more than 0"),
        ({"top_p": 1.5}, "top_p=1.5"),
        ({"stop_token": 61}, "stop_token=61 .* 0 to 60"),
        ({"max_new_tokens": -1}, "max_new_tokens=-1"),
        ({"prompt_tokens": torch.tensor([], dtype=torch.int64)}, "at least one token"),
        ({"prompt_tokens": torch.tensor([1.0])}, "float32"),
        ({"prompt_tokens": torch.tensor([61])}, "0 to 60"),
        ({"prompt_tokens": torch.tensor([-1])}, "0 to 60"),
        ({"prompt_tokens": torch.tensor(3)}, "shape"),
    ],
)
def test_values_that_can_not_work(model: Decoder, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        stream_tokens(model, **{"prompt_tokens": torch.tensor([1]), "max_new_tokens": 3} | options)


def test_logits_that_are_not_finite(model: Decoder) -> None:
    with torch.no_grad():
        model.embed.weight.fill_(float("nan"))
    with pytest.raises(LeadlineError, match="not finite"):
        generate(model, torch.tensor([1]), 1)
