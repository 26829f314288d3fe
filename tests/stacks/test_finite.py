"""A model whose values stop being finite is refused with the block where that begins."""

from __future__ import annotations

import causal_lms
import pytest
import torch

from leadline.errors import LeadlineError
from leadline.stacks import stack_of

pytest.importorskip("transformers")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("model.layers.1.mlp.down_proj.weight", "in block 1 of model.layers"),
        ("model.layers.0.self_attn.q_proj.weight", "in block 0 of model.layers"),
        ("model.embed_tokens.weight", "before block 0 of model.layers"),
        ("model.norm.weight", "behind the last block of model.layers"),
    ],
)
@torch.no_grad()
def test_a_weight_that_is_not_a_number_is_named(name: str, said: str) -> None:
    model = causal_lms.make("llama")
    model.get_parameter(name).fill_(float("nan"))
    with pytest.raises(LeadlineError, match=rf"stop being finite {said}.*: {name} holds weights that are not finite$"):
        stack_of(model)


@torch.no_grad()
def test_a_dtype_that_overflows_is_told_with_one_that_may_not() -> None:
    model = causal_lms.make("llama").half()
    model.get_parameter("model.layers.2.mlp.down_proj.weight").fill_(6e4)
    with pytest.raises(LeadlineError, match=r"in block 2 of .*float16 holds nothing above 6\.55e\+04; float32 helps"):
        stack_of(model)
    assert stack_of(model.float()).blocks == causal_lms.BLOCKS
