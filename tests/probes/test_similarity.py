from __future__ import annotations

import math

import pytest
import torch
from toy_stack import Batch, ToyStack, rows

from leadline.errors import LeadlineError
from leadline.probes import MinibatchCKA, Similarity, effective_rank, run_measures
from leadline.probes.effective_rank import SecondMoment
from leadline.probes.passes import States, chunks
from leadline.stacks import Unit


def turn(degrees: float, size: float = 1.0) -> torch.Tensor:
    """What a block adds to turn x by an angle, and to scale it."""
    angle = math.radians(degrees)
    rows = [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]]
    return size * torch.tensor(rows, dtype=torch.float64) - torch.eye(2)


def measured(stack: ToyStack, batches: list[Batch]) -> dict[str, object]:
    measure = Similarity(stack)
    run_measures(stack, batches, [measure])
    return measure.result()


def test_a_stack_of_rotations() -> None:
    """Blocks turn by 30, 60 and 90 degrees, and scale: angles add, sizes don't matter."""
    embedding = torch.tensor([[3.0, 0.0], [1.0, 1.0]]).double()
    stack = ToyStack(embedding, [turn(30, 2.0), turn(60, 0.5), turn(90)])
    found = measured(stack, rows([0, 1], [1]))
    expected = torch.tensor([[0, 30, 90, 180], [30, 0, 60, 150], [90, 60, 0, 90], [180, 150, 90, 0]]) / 180
    assert torch.allclose(torch.tensor(found["angular_distance"]), expected, atol=1e-7)
    cosine = {angle: math.cos(math.radians(angle)) for angle in (30, 60, 90, 150, 180)}
    assert found["block_influence"] == pytest.approx([1 - cosine[30], 1 - cosine[60], 1], abs=1e-12)
    assert found["window_influence"] == [
        found["block_influence"],
        pytest.approx([1 - cosine[90], 1 - cosine[150]]),
        pytest.approx([2.0]),
    ]


def test_a_block_that_only_scales_has_no_influence() -> None:
    stack = ToyStack(torch.randn(5, 8, generator=torch.Generator().manual_seed(0)), [0 * torch.eye(8), torch.eye(8)])
    found = measured(stack, rows([0, 1, 2, 3, 4]))
    assert found["block_influence"] == [0.0, 0.0]
    assert torch.tensor(found["angular_distance"]).max() == 0
    assert found["cka"] == [pytest.approx([1, 1, 1])] * 3


def test_zero_vectors_count_as_orthogonal_and_give_no_nan() -> None:
    stack = ToyStack(torch.zeros(2, 2), [torch.eye(2)])
    found = measured(stack, rows([0, 1]))
    assert found["angular_distance"] == [[0, 0.5], [0.5, 0]]
    assert found["block_influence"] == [1.0]
    assert found["effective_rank"] == [None, None]
    assert found["cka"] is None, "two tokens are too few"


def test_a_block_left_out_leaves_its_state() -> None:
    stack = ToyStack(torch.tensor([[1.0, 0.0]]), [turn(90).float(), turn(45).float(), turn(90).float()])
    with stack.skipping([Unit(1)]):
        found = measured(stack, rows([0]))
    assert found["block_influence"] == pytest.approx([1, 0, 1], abs=1e-6)
    with stack.skipping([Unit(0), Unit(2)]):
        found = measured(stack, rows([0]))
    assert found["block_influence"] == pytest.approx([0, 1 - math.sqrt(0.5), 0], abs=1e-6)
    with stack.skipping(stack.units("block")), pytest.raises(LeadlineError, match="no block"):
        measured(stack, rows([0]))


def test_chunks_take_every_token_once() -> None:
    state = torch.arange(22).view(2, 11, 1)
    parts = list(chunks([state, -state], 6))
    assert [part.shape[1] for part in parts] == [6, 6, 5, 5]
    assert torch.equal(torch.cat(parts, dim=1)[0].flatten(), torch.arange(22).double())


def test_states_are_let_go() -> None:
    states = States(1)
    states.add(0, torch.ones(1), torch.ones(1))
    assert len(states.take()) == 2
    with pytest.raises(LeadlineError, match="no block"):
        states.take()


def biased_cka(x: torch.Tensor, y: torch.Tensor) -> float:
    x, y = x - x.mean(0), y - y.mean(0)
    return float((x.T @ y).square().sum() / ((x.T @ x).norm() * (y.T @ y).norm()))


def unbiased_hsic(x: torch.Tensor, y: torch.Tensor) -> float:
    """HSIC₁ by the formula of Song et al., not by U-centring."""
    n = len(x)
    k, m = (v @ v.T * (1 - torch.eye(n)) for v in (x, y))
    one = torch.ones(n).double()
    middle = (one @ k @ one) * (one @ m @ one) / ((n - 1) * (n - 2))
    return float((torch.trace(k @ m) + middle - 2 / (n - 2) * (one @ k @ m @ one)) / (n * (n - 3)))


def test_cka_is_the_unbiased_estimate_summed_over_batches() -> None:
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randn(3, n, 5, generator=generator, dtype=torch.float64) for n in (6, 9)]
    cka = MinibatchCKA()
    for batch in batches:
        cka.add(batch)
    cka.add(batches[0][:, :3])  # too small to count

    def summed(i: int, j: int) -> float:
        return sum(unbiased_hsic(batch[i], batch[j]) for batch in batches)

    for i in range(3):
        for j in range(3):
            expected = summed(i, j) / math.sqrt(summed(i, i) * summed(j, j))
            assert cka.result()[i][j] == pytest.approx(expected, abs=1e-12)


def test_cka_comes_near_the_plain_one_on_many_tokens() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 6, generator=generator, dtype=torch.float64)
    y = x @ torch.randn(6, 6, generator=generator, dtype=torch.float64) + 3.0
    cka = MinibatchCKA()
    for part in range(0, 2000, 200):
        cka.add(torch.stack([x, y])[:, part : part + 200])
    assert cka.result()[0][1] == pytest.approx(biased_cka(x, y), abs=0.03)


def test_rounding_is_no_likeness() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 200, 64, dtype=torch.float64, generator=generator)
    x[1] = torch.randn(64, dtype=torch.float64, generator=generator)  # one vector for all tokens
    cka = MinibatchCKA()
    cka.add(x)
    assert [row[1] for row in cka.result() or []] == [None, None, None]
    assert cka.result()[0][0] == 1.0


def test_cka_ignores_rotation_and_scale_and_says_none_of_constants() -> None:
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64))[0]
    cka = MinibatchCKA()
    cka.add(torch.stack([x, 7 * x @ rotation, torch.zeros_like(x)]))
    found = cka.result()
    assert found[0][1] == pytest.approx(1.0)
    assert found[2] == [None, None, None]


def test_effective_rank_of_known_spectra() -> None:
    assert effective_rank(torch.tensor([2.0, 2.0, 2.0, 0.0])) == pytest.approx(3)
    assert effective_rank(torch.tensor([5.0])) == pytest.approx(1)
    assert effective_rank(torch.zeros(3)) is None
    assert effective_rank(torch.tensor([1.0, 3.0])) == pytest.approx(
        math.exp(-0.25 * math.log(0.25) - 0.75 * math.log(0.75))
    )


def test_effective_rank_of_tokens_is_that_of_their_singular_values() -> None:
    x = torch.randn(50, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * torch.arange(1, 7) + 2
    moment = SecondMoment()
    for part in x.split(7):
        moment.add(part)
    assert moment.effective_rank(centred=False) == pytest.approx(effective_rank(torch.linalg.svdvals(x)))
    assert moment.effective_rank(centred=True) == pytest.approx(effective_rank(torch.linalg.svdvals(x - x.mean(0))))


@pytest.mark.parametrize(("mean", "centred"), [(0.0, False), (0.0, True), (1e5, True)])
def test_rounding_is_no_direction(mean: float, centred: bool) -> None:
    """One direction in 64 dimensions, also far from zero: the rounding of the other 63 must not count."""
    moment = SecondMoment()
    direction = torch.randn(64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    moment.add(mean + torch.linspace(-1, 2, 300).double()[:, None] * direction)
    assert moment.effective_rank(centred=centred) == pytest.approx(1.0, abs=1e-9)


def test_effective_rank_of_states() -> None:
    """The block maps all of a 4-dimensional spread onto one direction."""
    stack = ToyStack(torch.eye(4), [torch.full((4, 4), 0.25) - torch.eye(4)])
    found = measured(stack, rows([0, 1, 2, 3]))
    assert found["effective_rank"] == pytest.approx([4.0, 1.0], abs=1e-5)
    assert found["effective_rank_centred"][0] == pytest.approx(3.0)
