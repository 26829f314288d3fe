from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from toy_stack import ToyStack

from leadline.errors import LeadlineError
from leadline.probes import diversity, record

Toys = Callable[..., Any]


@pytest.fixture
def doubling(toy: Toys) -> Toys:
    """Every sublayer gives its input, so that each read is twice the one before."""
    return lambda sublayers=4, dim=4: toy(torch.eye(dim) * 2.0, [torch.eye(dim) for _ in range(sublayers)]).eval()


def test_a_doubling_stack_doubles_every_read(doubling: Toys) -> None:
    model = doubling()
    with record(model) as depth:
        model(torch.tensor([[0, 1, 2]]))
    # A row of 2·I at width 4 has the root mean square 1.
    assert depth.read_rms == pytest.approx([1, 2, 4, 8, 16])
    assert depth.output_rms == pytest.approx([1, 2, 4, 8])
    assert depth.block_output_rms == pytest.approx([4, 16])
    assert depth.connection == {}


def test_means_weigh_tokens_not_batches(toy: Toys, batches: Toys) -> None:
    model = toy(torch.tensor([[1.0, 1.0], [4.0, 4.0]]), [torch.eye(2), torch.eye(2)]).eval()
    with record(model) as depth:
        model(torch.tensor([[0, 0, 0]]))
        model(torch.tensor([[1]]))
        model(torch.zeros(0, 3, dtype=torch.int64))
    assert depth.read_rms[0] == pytest.approx((3 * 1 + 4) / 4)
    assert depth.read_rms[-1] == pytest.approx(4 * (3 * 1 + 4) / 4)


def test_what_the_connection_shows(doubling: Toys) -> None:
    model = doubling(3)
    with record(model, inspect=True) as depth:
        model(torch.tensor([[0, 1], [2, 3]]))
        model(torch.tensor([[1, 1]]))
    shown = depth.connection
    assert shown["weights"] == [
        [1.0], pytest.approx([0.5] * 2), pytest.approx([1 / 3] * 3), pytest.approx([0.25] * 4)
    ]  # fmt: skip
    assert shown["gates"] == [None, [0, 1], [0, 1, 2], None]
    assert shown["mixing"][1] == [[1, 0], [0, 1]]
    # All streams point the same way here.
    assert shown["diversity"][:3] == pytest.approx([0, 0, 0], abs=1e-6)
    assert shown["diversity"][3] is None


def test_instances_are_restored_even_after_an_error(doubling: Toys) -> None:
    model = doubling()
    mine = model.site_list[1].write
    model.site_list[1].write = mine
    with pytest.raises(IndexError), record(model):
        model(torch.tensor([[99]]))
    for site in model.site_list:
        assert "read" not in site.__dict__
    assert "forward" not in model.readout.__dict__
    assert model.site_list[1].__dict__["write"] is mine
    assert "write" not in model.site_list[0].__dict__


def test_nested_records_are_an_error_and_leave_the_first_alive(doubling: Toys) -> None:
    model = doubling()
    with record(model) as depth:
        with pytest.raises(LeadlineError, match="recorded already"), record(model):
            pass
        model(torch.tensor([[0]]))
    assert depth.read_rms[0] == pytest.approx(1)
    with record(model):
        pass


def test_a_model_without_sites_is_an_error() -> None:
    with pytest.raises(LeadlineError, match="Linear has no connection sites"), record(nn.Linear(2, 2)):
        pass


def test_gradients_are_untouched(doubling: Toys) -> None:
    model, tokens = doubling(), torch.tensor([[0, 3]])
    model(tokens).square().sum().backward()
    plain = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    with record(model, inspect=True) as depth:
        model(tokens).square().sum().backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(plain, model.parameters(), strict=True))
    assert depth.read_rms[-1] is not None
    assert not any(m.total.requires_grad for m in depth._reads)


def test_skipped_sites_are_none(doubling: Toys) -> None:
    model = doubling()
    with record(model) as depth:
        model(torch.tensor([[0]]), skip=(0, 1))
    assert depth.read_rms[:2] == [None, None]
    assert depth.read_rms[2:] == pytest.approx([1, 2, 4])


def test_ragged_rows_that_change_are_an_error(doubling: Toys) -> None:
    model = doubling()
    with record(model, inspect=True):
        model(torch.tensor([[0]]))
        with pytest.raises(LeadlineError, match="skip different layers apart"):
            model(torch.tensor([[0]]), skip=(0, 1))


@pytest.mark.parametrize("design", ["prenorm", "mgr"])
@pytest.mark.parametrize("recompute", [False, True])
def test_of_several_exits_in_a_pass_the_last_is_the_readout(design: str, recompute: bool, decoder: Toys) -> None:
    model = decoder(design, blocks=4)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    model.recompute = recompute
    one, other = torch.randint(0, 11, (2, 3, 8), generator=generator)
    with record(model, inspect=True) as whole:
        for tokens in (one, other[:1]):
            model.hidden(tokens)
    with record(model, inspect=True) as depth:
        for tokens in (one, other[:1]):
            sum(hidden.square().sum() for hidden in model.exits(tokens, [0, 1, 2, 3])).backward()
    assert depth.read_rms == pytest.approx(whole.read_rms)
    assert depth.block_output_rms == pytest.approx(whole.block_output_rms)
    if design == "mgr":
        assert depth.connection["weights"][-1] == pytest.approx(whole.connection["weights"][-1])
    with record(model) as early, torch.no_grad():
        model.exits(one, [0, 2])
        both = early.read_rms
    with record(model) as alone, torch.no_grad():
        model.exits(one, [2])
    assert both == pytest.approx(alone.read_rms)


def test_bfloat16_is_measured_in_float32(doubling: Toys) -> None:
    model = doubling(2).to(torch.bfloat16)
    with record(model) as depth:
        model(torch.tensor([[0, 1]]))
    assert depth._reads[0].total.dtype == torch.float32
    assert depth.read_rms == pytest.approx([1, 2, 4])


def test_diversity_of_known_streams() -> None:
    e = torch.eye(3)
    assert diversity(torch.stack([e[0], e[1], e[2]])) == pytest.approx(1)
    assert diversity(torch.stack([e[0], 5 * e[0]])) == pytest.approx(0)
    assert diversity(torch.stack([e[0], -e[0]])) == pytest.approx(2)
    assert diversity(torch.stack([e[0], torch.zeros(3)])) == pytest.approx(1)
    assert diversity(e[:1]) == 0
    assert diversity(torch.randn(4, 2, 5, 8)).shape == (2, 5)


def test_a_stack_without_sites_is_recorded_by_its_blocks() -> None:
    """Two blocks of two sublayers, each of which doubles the stream."""
    stack = ToyStack(2.0 * torch.eye(4), [torch.eye(4)] * 4, sublayers_per_block=2)
    with record(stack) as depth:
        stack.logits(torch.tensor([[0, 1], [2, 3]]))
        stack.logits(torch.tensor([[1]]))
    assert depth.read_rms == [pytest.approx(1), None, pytest.approx(4), None, pytest.approx(16)]
    assert depth.output_rms == pytest.approx([1, 2, 4, 8])
    assert depth.block_output_rms == pytest.approx([4, 16])
    assert depth.connection == {}
    with record(stack), pytest.raises(LeadlineError, match="watched already"), record(stack):
        pass


def test_a_language_model_from_elsewhere_is_recorded() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=11, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    tokens = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        plain = model(tokens).logits
        with record(model) as depth:
            assert torch.equal(model(tokens).logits, plain)
        states = model(tokens, output_hidden_states=True).hidden_states
        middle = model.model.layers[1](
            states[1], position_embeddings=model.model.rotary_emb(states[1], torch.arange(3)[None])
        )
    size = [float(state.square().mean(-1).sqrt().mean()) for state in (states[0], states[1], middle)]
    assert depth.read_rms[0] == pytest.approx(size[0], rel=1e-5)
    # The library's last hidden state is behind the final norm; the record's is not.
    assert depth.block_output_rms == pytest.approx(size[1:], rel=1e-4)
    assert all(rms > 0 for rms in depth.output_rms)
    assert len(depth.output_rms) == 4
