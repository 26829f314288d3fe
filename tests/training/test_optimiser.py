"""What decays, and how the learning rate goes."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
import torch
from torch import nn

import leadline as ll
from leadline.designs import ShapeConfig, resolve
from leadline.models import Decoder
from leadline.training.optimiser import load_optimiser, make_optimiser, optimiser_tensors, rate_at, split_by_decay

SHAPE = ShapeConfig(dim=8, blocks=3, heads=2, kv_heads=1, head_dim=4, hidden=12, context=16)
DESIGNS = ("prenorm + qk-norm", "attnres", "mgr", "hc", "mhc", "mhc-lite", "bhyt", "dyt", "layerscale", "post-ln")


def model(design: str, *, tied: bool = True) -> Decoder:
    return Decoder(resolve(design).decoder(dataclasses.replace(SHAPE, tied=tied), vocab_size=11))


@pytest.mark.parametrize("design", DESIGNS)
def test_matrices_alone_decay(design: str) -> None:
    decoder = model(design)
    decayed, plain = split_by_decay(decoder, decay_embeddings=False)
    linears = {f"{name}.weight" for name, module in decoder.named_modules() if isinstance(module, nn.Linear)}
    assert set(decayed) == linears
    assert len(linears) == 4 * SHAPE.blocks
    assert set(plain) == {name for name, _ in decoder.named_parameters()} - linears
    assert "embed.weight" in plain


def test_embeddings_decay_when_asked() -> None:
    assert "embed.weight" in split_by_decay(model("mgr"), decay_embeddings=True)[0]
    assert "head.weight" in split_by_decay(model("mgr", tied=False), decay_embeddings=False)[0]


def test_param_groups_are_those_of_the_trainer(config: Any) -> None:
    decoder = model("mhc", tied=False)
    for decay_embeddings in (False, True):
        given = make_optimiser(decoder, config(weight_decay=0.3, decay_embeddings=decay_embeddings), 0.01).param_groups
        found = ll.param_groups(decoder, 0.3, decay_embeddings=decay_embeddings)
        assert [group["weight_decay"] for group in found] == [0.3, 0.0]
        for one, other in zip(found, given, strict=True):
            assert list(map(id, one["params"])) == list(map(id, other["params"]))


def test_a_shared_parameter_is_in_one_group_once() -> None:
    """Tied embeddings, repeated blocks, and a norm that stands twice; a tied head counts as the embedding."""
    config = resolve("hc").decoder(dataclasses.replace(SHAPE, tied=True), 11)
    decoder = Decoder(dataclasses.replace(config, repeat=ll.RepeatConfig(last=1, times=2)))
    body = nn.Linear(3, 3)
    twice = nn.ModuleDict({"embed": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False), "one": body, "two": body})
    twice.head.weight = twice.embed.weight
    for module, matrices in ((decoder, 4 * SHAPE.blocks), (twice, 1)):
        decayed, plain = (list(map(id, group["params"])) for group in ll.param_groups(module, 0.1))
        assert len(decayed) == matrices
        assert sorted(decayed + plain) == sorted(set(map(id, module.parameters())))


def test_groups_without_parameters_are_left_out() -> None:
    assert [group["weight_decay"] for group in ll.param_groups(nn.LayerNorm(3), 0.1)] == [0.0]
    assert [group["weight_decay"] for group in ll.param_groups(nn.Linear(3, 3, bias=False), 0.1)] == [0.1]


def test_adamw(config: Any) -> None:
    optimiser = make_optimiser(model("attnres"), config(weight_decay=0.3), 0.01)
    assert [group["weight_decay"] for group in optimiser.param_groups] == [0.3, 0.0]
    assert all(group["betas"] == (0.9, 0.95) and group["eps"] == 1e-8 for group in optimiser.param_groups)


def test_a_step_is_adamws(config: Any) -> None:
    """Against the update written out: m and v start at zero, so the first step has the gradient's sign."""
    decoder = model("prenorm")
    optimiser = make_optimiser(decoder, config(), 0.01)
    name, weight = next(iter(split_by_decay(decoder, decay_embeddings=False)[0].items()))
    before, grad = weight.detach().clone(), torch.randn_like(weight)
    weight.grad = grad.clone()
    optimiser.step()
    expected = before * (1 - 0.01 * 0.1) - 0.01 * grad / (grad.abs() + 1e-8)
    torch.testing.assert_close(weight.detach(), expected, msg=name)


def test_cosine(config: Any) -> None:
    rates = [rate_at(step, 100, config(warmup=0.1).schedule) for step in range(1, 101)]
    assert rates[:10] == pytest.approx([0.1 * step for step in range(1, 11)])
    assert rates[9] == 1.0
    assert rates[54] == pytest.approx(0.1 + 0.9 * 0.5)
    assert rates[99] == pytest.approx(0.1)
    assert all(one > two for one, two in itertools.pairwise(rates[9:]))


def test_wsd(config: Any) -> None:
    rates = [
        rate_at(step, 100, config(schedule="wsd", warmup=0.1, decay=0.2, final_fraction=0.0).schedule)
        for step in range(1, 101)
    ]
    assert rates[9:80] == [1.0] * 71
    assert rates[89] == pytest.approx(0.5)
    assert rates[99] == 0.0


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("warmup", [0.0, 0.05, 1.0])
def test_short_runs(config: Any, schedule: str, steps: int, warmup: float) -> None:
    more = {"decay": 0.0 if warmup == 1.0 else 0.2} if schedule == "wsd" else {}
    rates = [rate_at(s, steps, config(schedule=schedule, warmup=warmup, **more).schedule) for s in range(1, steps + 1)]
    assert all(0 < rate <= 1 for rate in rates)


def test_an_optimiser_saved_before_its_first_step_loads(config: Any) -> None:
    decoder = model("prenorm")
    optimiser = make_optimiser(decoder, config(), 1e-3)
    load_optimiser(decoder, optimiser, optimiser_tensors(decoder, optimiser).items())
    assert not optimiser.state


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_a_parameter_without_state_and_one_whose_state_is_lost(config: Any, name: str) -> None:
    """A block that was dropped so far has none, which is not the same as a file that lacks it."""
    decoder = model("prenorm")
    optimiser = make_optimiser(decoder, config(optimizer=name), 1e-3)
    for parameter in list(decoder.parameters())[:3]:
        parameter.grad = torch.ones_like(parameter)
    optimiser.step()
    tensors = optimiser_tensors(decoder, optimiser)
    other = make_optimiser(decoder, config(optimizer=name), 1e-3)
    load_optimiser(decoder, other, tensors.items())
    assert other.state.keys() == optimiser.state.keys()
    assert len(other.state) == 3
    for parameter, state in optimiser.state.items():
        assert all(torch.equal(other.state[parameter][key], value) for key, value in state.items())
    for key in [key for key in tensors if key.startswith("embed.weight:")]:
        with pytest.raises(KeyError, match=r"embed\.weight"):
            load_optimiser(decoder, other, ((k, v) for k, v in tensors.items() if k != key))


def test_sgd(config: Any) -> None:
    """Against the update written out: the second step has 0.5 of the first one's direction."""
    decoder = model("prenorm")
    optimiser = make_optimiser(decoder, config(optimizer="sgd", momentum=0.5, weight_decay=0.2), 0.1)
    assert [group["weight_decay"] for group in optimiser.param_groups] == [0.2, 0.0]
    weight = next(iter(split_by_decay(decoder, decay_embeddings=False)[0].values()))
    expected, momentum = weight.detach().clone(), torch.zeros_like(weight)
    for seed in range(2):
        weight.grad = torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed))
        momentum = 0.5 * momentum + weight.grad + 0.2 * expected
        expected = expected - 0.1 * momentum
        optimiser.step()
    torch.testing.assert_close(weight.detach(), expected)
