from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from probe_example import PLAIN_PROBE, PROBE, SOURCES_PROBE
from toy_stack import Batch, ToyStack, rows

from leadline.errors import LeadlineError, UsageError
from leadline.probes import PARTS, Activations, Similarity, measure, measure_stack, run_measures
from leadline.probes.measure_stack import finite
from leadline.stacks import stack_of

Toys = Callable[..., Any]


def keys(value: Any, path: str = "") -> Iterator[str]:
    """The paths of all keys."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield f"{path}.{name}"
            yield from keys(item, f"{path}.{name}")


def numbers(value: Any) -> list[float]:
    """All numbers in it, in their order."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if items:
        return [number for item in items for number in numbers(item)]
    return [] if value is None else [value]


def shape(value: Any) -> Any:
    """Nested lists as their lengths, so that the example's shapes can be held against the real ones."""
    return [shape(item) for item in value] if isinstance(value, list) else None


def shapes(value: Any) -> Any:
    return {name: shapes(item) for name, item in value.items()} if isinstance(value, dict) else shape(value)


def test_the_example_is_what_a_real_model_gives(decoder: Toys, some_batches: list[Batch]) -> None:
    """Key by key, and list by list where they don't depend on the connection."""
    found = measure_stack(stack_of(decoder("mgr(streams=2) + bhyt")), some_batches)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert set(keys(found)) == set(keys(PROBE))
    assert shapes(found) == shapes(PROBE)
    found = measure_stack(stack_of(decoder("attnres")), some_batches, parts=["connection"])
    assert shapes(found["connection"]) == shapes(SOURCES_PROBE["connection"])


def test_the_plain_example(decoder: Toys, some_batches: list[Batch]) -> None:
    stack = ToyStack(torch.eye(4), [torch.eye(4)] * 6, sublayers_per_block=2)
    found = measure_stack(stack, rows([0, 1, 2, 3], [0, 2]))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert set(keys(found)) == set(keys(PLAIN_PROBE))
    assert found["connection"] is None
    assert found["bhyt"] is None
    assert found["model"] == {**PLAIN_PROBE["model"], "dim": 4, "parameters": 7 * 16, "norms_scale": False}
    assert found["fan_in"] == {"plain": [3, 2, 1]}


@pytest.mark.parametrize("expression", ["prenorm", "post-ln", "attnres-block(blocks=2)", "hc", "mhc-lite", "bhyt"])
def test_every_kind_of_model(expression: str, decoder: Toys, some_batches: list[Batch]) -> None:
    model = decoder(expression)
    plain = model(some_batches[0].tokens)
    found = measure_stack(stack_of(model), some_batches)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert torch.equal(model(some_batches[0].tokens), plain)
    assert found["lens"]["kl"][-1] == pytest.approx(0, abs=1e-5)
    assert found["lens"]["loss"][-1] == pytest.approx(found["ablation"]["loss"], abs=1e-5)
    assert sum(found["gradients"]["blocks"]["share"]) == pytest.approx(1)
    assert all(found["gradients"]["blocks"]["norm"])
    assert found["connection"] is not None
    assert (found["bhyt"] is not None) == (expression == "bhyt")


def test_sizes_agree_with_the_depth_record(decoder: Toys, some_batches: list[Batch]) -> None:
    """A readout that sums four streams is worth four of them in one as in the other."""
    for expression in ("prenorm", "hc", "mgr"):
        model = decoder(expression)
        old, new = measure(model, some_batches), measure_stack(stack_of(model), some_batches, parts=["activations"])
        assert new["activations"]["blocks"]["rms"] == pytest.approx(old["block_output_rms"], rel=1e-5)
        outputs = [rms for pair in new["activations"]["sublayers"]["rms"] for rms in pair]
        assert outputs == pytest.approx(old["output_rms"], rel=1e-5)


def test_only_what_was_asked_for_runs() -> None:
    stack = ToyStack(torch.eye(4), [torch.eye(4)] * 2)
    batches = rows([0, 1], [2], [3])
    found = measure_stack(stack, batches, parts=["activations", "similarity", "lens"])
    assert stack.passes == 3, "they share a pass"
    assert [part for part in PARTS if found[part] is None] == ["gradients", "ablation", "connection", "bhyt"]
    stack.passes = 0
    found = measure_stack(stack, batches, parts=["gradients"])
    assert stack.passes == 3
    assert found["model"]["dim"] is None


def test_batches_of_its_own_and_progress() -> None:
    stack = ToyStack(torch.eye(4), [torch.eye(4)] * 2)
    said: list[tuple[str, int, int]] = []
    found = measure_stack(
        stack,
        rows([0, 1], [2], [3]),
        apart={"lens": rows([0, 1], [2]), "ablation": rows([0, 1])},
        progress=lambda *what: said.append(what),
        bytes_per_token=2.0,
    )
    assert found["activations"]["tokens"] == 4
    assert found["lens"]["tokens"] == 3
    assert found["ablation"]["tokens"] == 2
    assert found["bytes_per_token"] == 2.0
    expected = [("activations, similarity", n, 3) for n in (1, 2, 3)] + [("lens", n, 2) for n in (1, 2)]
    assert said == [*expected, *[("gradients", n, 3) for n in (1, 2, 3)], ("ablation", 1, 1)]


def test_a_loader_is_read_as_a_list_is() -> None:
    """It has a length and begins anew, and no more than its parts ask for is made."""
    made: list[int] = []

    class Loader:
        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Iterator[Batch]:
            for number, batch in enumerate(rows([0, 1], [2], [3])):
                made.append(number)
                yield batch

    stack = ToyStack(torch.eye(4), [torch.eye(4)] * 2)
    loader: Any = Loader()
    found = measure_stack(stack, loader, parts=["activations", "lens"])
    assert found == measure_stack(stack, rows([0, 1], [2], [3]), parts=["activations", "lens"])
    assert made == [0, 0, 1, 2], "the first once more, to see what a batch is"


@pytest.mark.parametrize("apart", [False, True])
def test_batches_are_a_list_of_what_has_tokens_and_targets(apart: bool) -> None:
    stack = ToyStack(torch.eye(4), [torch.eye(4)])
    pair = (torch.zeros(1, 2, dtype=torch.int64),) * 2
    for wrong, said in ((iter(rows([0])), "can be read once; a list"), ([pair], "a batch is a tuple; .*Batch, works")):
        given: Any = {"batches": rows([0]), "apart": {"lens": wrong}} if apart else {"batches": wrong}
        with pytest.raises(UsageError, match=said):
            measure_stack(stack, **given)


def test_wrong_parts_are_named() -> None:
    stack = ToyStack(torch.eye(4), [torch.eye(4)])
    with pytest.raises(UsageError, match=r"'lense' is not a part; .* Did you mean lens"):
        measure_stack(stack, rows([0]), parts=["lense"])
    with pytest.raises(UsageError, match=r"'lense' is not a part"):
        measure_stack(stack, rows([0]), apart={"lense": rows([0])})
    with pytest.raises(LeadlineError, match="no tokens"):
        measure_stack(stack, [])


def test_a_model_that_diverged_gives_none_not_nan() -> None:
    stack = ToyStack(torch.tensor([[1.0, float("inf")], [float("nan"), 1.0]]), [torch.eye(2)])
    found = measure_stack(stack, rows([0, 1], [1]))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["activations"]["blocks"]["rms"] == [None]
    assert finite({"a": [float("nan"), (1.0, float("-inf"))], "b": "nan"}) == {"a": [None, [1.0, None]], "b": "nan"}


def test_memory_is_flat_in_the_number_of_batches() -> None:
    """Tensors that are alive after 30 batches are no more than after 3, and so is what Python holds."""
    stack = ToyStack(torch.randn(8, 8, generator=torch.Generator().manual_seed(0)), [0.1 * torch.eye(8)] * 3)

    def batches(count: int) -> Iterator[Batch]:
        for seed in range(count):
            tokens = torch.randint(0, 8, (2, 8), generator=torch.Generator().manual_seed(seed))
            yield Batch(tokens, tokens)

    def held(count: int) -> tuple[int, int]:
        measures = [Activations(stack), Similarity(stack)]
        tracemalloc.start()
        run_measures(stack, batches(count), measures)
        python = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return sum(size_of(measure, set()) for measure in measures), python

    few, many = held(3), held(30)
    assert few[0] == many[0] > 8 * 8 * 8
    assert many[1] < few[1] + 20_000


def size_of(thing: Any, seen: set[int]) -> int:
    """Bytes of all tensors that can be reached through attributes and containers, but for the stack's own."""
    if id(thing) in seen or isinstance(thing, ToyStack):
        return 0
    seen.add(id(thing))
    if isinstance(thing, torch.Tensor):
        return thing.numel() * thing.element_size()
    if isinstance(thing, dict):
        return sum(size_of(item, seen) for item in thing.values())
    if isinstance(thing, list | tuple | set):
        return sum(size_of(item, seen) for item in thing)
    return size_of(vars(thing), seen) if hasattr(thing, "__dict__") else 0


@pytest.mark.parametrize("part", ["lens", "gradients", "ablation"])
def test_a_target_that_does_not_count_counts_nowhere(part: str) -> None:
    """The toy's tokens don't see each other, so leaving targets out is leaving tokens out."""
    generator = torch.Generator().manual_seed(0)
    matrices = [0.5 * torch.randn(5, 5, generator=generator) for _ in range(4)]
    stack = ToyStack(torch.randn(5, 5, generator=generator), matrices, sublayers_per_block=2)
    tokens = torch.tensor([[0, 1, 2, 3], [4, 3, 2, 1]])
    some = torch.tensor([[-100, 1, 2, -100], [-100, 3, 2, -100]])
    none = torch.full((2, 4), -100)
    found = measure_stack(stack, [Batch(tokens, some), Batch(tokens, none)], parts=[part])[part]
    truth = measure_stack(stack, [Batch(tokens[:, 1:3], some[:, 1:3])], parts=[part])[part]
    assert numbers(found) == pytest.approx(numbers(truth), rel=1e-6, abs=1e-6)
    if part == "ablation":
        assert found["tokens"] == 4
        assert found["sequences"] == 2


def test_sequences_weigh_by_what_counts_of_them() -> None:
    """Of two sequences one counts three targets and the other one: the loss is the mean over four."""
    stack = ToyStack(torch.eye(4), [torch.eye(4)])
    tokens = torch.tensor([[0, 1, 2], [3, 3, 3]])
    targets = torch.tensor([[0, 1, 2], [0, -100, -100]])
    right, wrong = (-torch.tensor([2.0, 0, 0, 0]).log_softmax(0)[i] for i in (0, 1))
    found = measure_stack(stack, [Batch(tokens, targets)], parts=["ablation"])["ablation"]
    assert found["loss"] == pytest.approx(float(3 * right + wrong) / 4)
    assert found["tokens"] == 4


def test_an_empty_batch_is_passed_by_and_nothing_but_those_is_an_error(
    decoder: Toys, some_batches: list[Batch]
) -> None:
    stack = stack_of(decoder("bhyt"))
    nothing = [Batch(*torch.zeros(2, *size, dtype=torch.int64)) for size in ((0, 8), (2, 0))]
    assert measure_stack(stack, [*nothing, *some_batches]) == measure_stack(stack, some_batches)
    for part in PARTS:
        with pytest.raises(LeadlineError, match="no tokens"):
            measure_stack(stack, nothing, parts=[part])


def test_inside_inference_mode_all_is_the_same(decoder: Toys, some_batches: list[Batch]) -> None:
    stack = stack_of(decoder("mgr"))
    truth = measure_stack(stack, some_batches)
    with torch.inference_mode():
        own = [Batch(batch.tokens.clone(), batch.targets.clone()) for batch in some_batches]
        assert measure_stack(stack, own) == truth
