"""Finding the blocks, and saying how to point at them where they aren't found."""

from __future__ import annotations

import causal_lms
import pytest
import torch
from torch import nn

from leadline.designs import preset_named, resolve
from leadline.errors import UsageError
from leadline.models import Decoder
from leadline.stacks import Unit, stack_of


class Mixer(nn.Module):
    """Attention by no usual name: a causal mean of a matrix's outputs."""

    def __init__(self, width: int, projection: str) -> None:
        super().__init__()
        setattr(self, projection, nn.Linear(width, width))
        self.projection = projection

    def forward(self, x):
        given = getattr(self, self.projection)(x)
        return given.cumsum(dim=1) / torch.arange(1, x.shape[1] + 1).view(1, -1, 1)


class PlainBlock(nn.Module):
    def __init__(self, width: int, projection: str) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Mixer(width, projection)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class PlainModel(nn.Module):
    """A model in plain PyTorch that gives logits and an empty loss, its list of blocks in a dictionary."""

    def __init__(self, projection: str = "c_attn", backwards: bool = False, again: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backwards, self.again = backwards, again
        parts = {
            "wte": nn.Embedding(50, 8),
            "h": nn.ModuleList(PlainBlock(8, projection) for _ in range(3)),
            "other": nn.ModuleList(nn.Linear(8, 8) for _ in range(5)),
            "ln_f": nn.LayerNorm(8),
        }
        self.transformer = nn.ModuleDict(parts)
        self.lm_head = nn.Linear(8, 50, bias=False)

    def forward(self, tokens, targets=None):
        x = self.transformer.wte(tokens)
        for block in reversed(self.transformer.h) if self.backwards else self.transformer.h:
            x = block(x)
        if self.again:
            x = x + self.transformer.wte(tokens)
        for matrix in self.transformer.other:
            x = matrix(x)
        return self.lm_head(self.transformer.ln_f(x)), None


@torch.no_grad()
def test_a_model_in_plain_pytorch(watched):
    stack = stack_of(PlainModel().eval())
    assert stack.path == "transformer.h"
    tokens = torch.arange(14).view(2, 7)
    told, logits = watched(stack, tokens)
    assert told.blocks == [0, 1, 2]
    torch.testing.assert_close(stack.lens(told.after[-1]), logits)
    with stack.skipping([Unit(1)]):
        told, _ = watched(stack, tokens)
    assert told.blocks == [0, 2]
    assert set(stack.parameters_of(Unit(1, "mlp"))) == {
        f"transformer.h.1.{name}"
        for name in ("ln_2.weight", "ln_2.bias", "mlp.0.weight", "mlp.0.bias", "mlp.2.weight", "mlp.2.bias")
    }


def test_an_unknown_layout_says_how_to_point_at_the_blocks(watched):
    model = PlainModel(projection="strange").eval()
    with pytest.raises(UsageError) as found:
        stack_of(model)
    for words in (
        "--layers NAME",
        'blocks="transformer.h"',
        "transformer.h (3 × PlainBlock)",
        "transformer.other (5 × ",
    ):
        assert words in str(found.value)
    stack = stack_of(model, blocks="transformer.h")
    assert stack.blocks == 3
    with torch.no_grad():
        told, _ = watched(stack, torch.arange(6).view(1, 6))
    assert told.blocks == [0, 1, 2]


def test_the_remedy_names_the_largest_list_and_how_attention_is_known():
    model = PlainModel(projection="strange")
    model.layers = model.transformer.pop("h")
    with pytest.raises(UsageError, match=r'by the name of its projection, such as q_proj.*blocks="layers"'):
        stack_of(model)


def test_blocks_that_pass_no_tensor_on_are_refused():
    class State(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.layers = nn.Embedding(50, 8), nn.ModuleList(Step() for _ in range(2))

        def forward(self, tokens):
            state = {"stream": self.embed(tokens)}
            for layer in self.layers:
                state = layer(state)
            return state["stream"]

    class Step(PlainBlock):
        def __init__(self):
            super().__init__(8, "c_attn")

        def forward(self, state):
            return {"stream": super().forward(state["stream"])}

    with pytest.raises(UsageError, match=r"from block to block in this model is not a tensor.*record"):
        stack_of(State())


def test_a_list_that_is_not_all_of_the_blocks_is_refused():
    with pytest.raises(UsageError, match=r"no list of blocks at 'transformer.hh'.*Did you mean transformer.h"):
        stack_of(PlainModel(), blocks="transformer.hh")
    with pytest.raises(UsageError, match="is not called block after block"):
        stack_of(PlainModel(backwards=True))


def test_logits_that_do_not_follow_from_the_last_block_are_refused():
    """What the embedding adds behind the blocks would be missing in everything that a lens shows."""
    with pytest.raises(UsageError, match="its logits don't follow from the output of the last block there"):
        stack_of(PlainModel(again=True))


def test_what_is_no_language_model_is_refused():
    with pytest.raises(UsageError, match="no embedding"):
        stack_of(nn.Linear(3, 3))
    decoder = Decoder(resolve("prenorm").decoder(preset_named("tiny"), 257))
    with pytest.raises(UsageError, match="a Leadline decoder's are known"):
        stack_of(decoder, blocks="blocks")


def test_a_stream_that_is_more_than_hidden_states_is_refused():
    """Gemma 3n carries four streams at once and joins them behind the blocks."""
    import tiny_hub_models

    pytest.importorskip("transformers")
    with pytest.raises(UsageError, match="don't follow from the output of the last block"):
        stack_of(tiny_hub_models.build(tiny_hub_models.CONFIGS["gemma3n"]()))


def test_all_of_the_shared_tiny_models_are_found():
    import tiny_hub_models

    pytest.importorskip("transformers")
    for name, make in tiny_hub_models.CONFIGS.items():
        if name != "gemma3n":
            stack = stack_of(tiny_hub_models.build(make()))
            assert stack.additive, name
            assert stack.blocks == tiny_hub_models.BLOCKS, name
            assert stack.sublayers == (("attention", "mlp"),) * stack.blocks, name


def test_one_block_is_a_stack_too():
    pytest.importorskip("transformers")
    assert stack_of(causal_lms.make("llama", num_hidden_layers=1)).blocks == 1
