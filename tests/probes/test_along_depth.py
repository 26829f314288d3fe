from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from leadline.designs import preset_named, resolve
from leadline.errors import LeadlineError, UsageError
from leadline.models import Decoder, cut
from leadline.probes import (
    ablation,
    angular_distance,
    depth_weights,
    gates,
    measure,
    measure_stack,
    mixing,
    removal,
    stream_diversity,
)
from leadline.stacks import stack_of

Toys = Callable[..., Any]


def test_removal_on_a_linear_stack(toy: Toys, batches: Toys) -> None:
    """Blocks multiply the stream by 4, 1 and 9; the logits are the stream, so every loss is known."""
    eye, zero = torch.eye(2), torch.zeros(2, 2)
    model = toy(0.1 * eye, [eye, eye, zero, zero, 2 * eye, 2 * eye])

    def bits(size: float) -> float:
        return math.log1p(math.exp(-0.1 * size)) / math.log(2)

    expected = [bits(9) - bits(36), 0.0, bits(4) - bits(36)]
    assert removal(model, batches([0, 1], [1, 1, 0])) == pytest.approx(expected, abs=1e-6)
    halved = removal(model, batches([0, 1]), bytes_per_token=2.0)
    assert halved == pytest.approx([value / 2 for value in expected], abs=1e-6)
    assert model.training, "the training mode comes back"


def test_removal_says_what_forward_has_to_take(toy: Toys, batches: Toys) -> None:
    model = toy(torch.eye(2), [torch.eye(2)] * 2)

    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.model(tokens)

    with pytest.raises(UsageError, match=r"Whole.forward takes no skip.*skip=\(4, 5\)"):
        removal(Whole(), batches([0, 1]))


def test_angles_of_a_turning_stack(toy: Toys, batches: Toys) -> None:
    """Block 0 turns the stream by 45 degrees, block 1 by 90 more; the vectors have different lengths."""
    turn = torch.tensor([[0.0, 1.0], [0.0, 0.0]])  # e0 → e0 + e1
    back = torch.tensor([[-1.0, 0.0], [-1.0, 0.0]])  # e0 + e1 → -e0 + e1
    zero = torch.zeros(2, 2)
    model = toy(torch.tensor([[3.0, 0.0], [1.0, 0.0]]), [turn, zero, back, zero])
    got = angular_distance(model, batches([0, 1], [1]))
    quarter = 0.25
    assert got[0] == pytest.approx([0, quarter, 3 * quarter], abs=1e-3)
    assert got[1] == pytest.approx([quarter, 0, 2 * quarter], abs=1e-3)
    assert [got[i][i] for i in range(3)] == [0, 0, 0]


def test_zero_vectors_give_no_nan(toy: Toys, batches: Toys) -> None:
    model = toy(torch.zeros(2, 2), [torch.eye(2)] * 2)
    assert angular_distance(model, batches([0, 1])) == [[0, 0.5], [0.5, 0]]


def test_rows_from_the_connection(toy: Toys, batches: Toys) -> None:
    model = toy(torch.eye(4), [torch.eye(4)] * 4)
    data = batches([0, 1, 2], [3])
    assert [len(row) for row in depth_weights(model, data)] == [1, 2, 3, 4, 5]
    assert gates(model, data) == [[], [0, 1], [0, 1, 2], [0, 1, 2, 3]]
    assert len(stream_diversity(model, data)) == 4
    assert mixing(model, data)[2] == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_measure_is_plain_data_with_every_name(toy: Toys, batches: Toys) -> None:
    model = toy(torch.eye(4), [torch.eye(4)] * 4)
    result = measure(model, batches([0, 1, 2], [3]), removal_batches=1)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert result["tokens"] == 4
    assert len(result["block_output_rms"]) == len(result["removal"]) == 2
    assert len(result["angular_distance"]) == 3


def test_removal_takes_batches_from_all_of_the_text(toy: Toys, batches: Toys) -> None:
    model = toy(torch.eye(4), [torch.diag(torch.tensor([1.0, 2.0, 3.0, 4.0]))] * 2)
    data = batches([0, 0], [1, 1], [2, 2], [3, 3], [3, 3])
    assert measure(model, data, removal_batches=2)["removal"] == removal(model, [data[1], data[3]])
    assert measure(model, data, removal_batches=9)["removal"] == removal(model, data)


def test_no_batches_is_an_error(toy: Toys) -> None:
    model = toy(torch.eye(4), [torch.eye(4)] * 4)
    for probe in (removal, angular_distance):
        with pytest.raises(LeadlineError, match="no tokens"):
            probe(model, [])


def test_a_block_without_a_sublayer_is_a_block(batches: Toys) -> None:
    shape = dataclasses.replace(
        preset_named("tiny").shape, blocks=3, dim=8, heads=2, kv_heads=2, head_dim=4, hidden=12, context=16
    )
    model = cut(Decoder(resolve("mgr").decoder(shape, 11)), [1])  # block 0 without its MLP
    data = batches([0, 1, 2, 3, 4], [5, 6, 7, 8, 9])
    found, expected = measure(model, data), measure_stack(stack_of(model), data, parts=("activations", "similarity"))
    assert found["removal"] == pytest.approx(ablation(stack_of(model), data)["blocks"]["bits_per_byte"], abs=1e-6)
    assert found["block_output_rms"] == pytest.approx(expected["activations"]["blocks"]["rms"], rel=1e-5)
    for row, whole in zip(found["angular_distance"], expected["similarity"]["angular_distance"], strict=True):
        assert row == pytest.approx(whole, abs=1e-5)
