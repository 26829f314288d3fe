"""How compiled bodies are kept: by what their graph depends on, so that none ever reads memory that is not meant."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from leadline.ops import choice, depth_attention
from leadline.ops.choice import chosen, why_not
from leadline.ops.compiled_body import PRIVATE, Compiled, compiled_bodies, missing_in_torch, once, run

reason = why_not("compiled", "cpu")
pytestmark = pytest.mark.skipif(reason is not None, reason=str(reason))


def total(parts: list[Tensor], scale: float) -> Tensor:
    result = parts[0]
    for part in parts[1:]:
        result = result + part
    return result * scale


def check(parts: list[Tensor], scale: float = 2.0) -> int:
    """Compares with the body itself; how many bodies had to be compiled."""
    before = compiled_bodies()
    torch.testing.assert_close(run(total, parts, scale), total(parts, scale))
    return compiled_bodies() - before


def test_strides_are_told_apart() -> None:
    """Expanded, transposed and sliced tensors, one after the other."""
    x = torch.randn(6, 7)
    assert check([x, x + 1]) == 1
    assert check([torch.randn(9, 11), torch.randn(9, 11)]) == 0
    assert check([x, torch.randn(7).expand(6, 7)]) == 1
    assert check([torch.randn(1, 6, 1).expand(3, 6, 7), torch.randn(3, 6, 7)]) == 1
    check([torch.randn(7, 6).t(), x])
    check([torch.randn(6, 14)[:, ::2], x])
    check([torch.randn(12, 7)[1::2], x])


def test_parts_of_different_sizes_are_not_taken_for_alike() -> None:
    assert check([torch.randn(4, 3), torch.randn(4, 3)], 3.0) == 1
    assert check([torch.randn(4, 3), torch.randn(3)], 3.0) == 1
    assert check([torch.randn(4, 3), torch.randn(4, 1)], 3.0) == 1
    assert check([torch.randn(4, 3), torch.randn(4, 3).double()], 3.0) == 1
    assert check([torch.randn(5, 8), torch.randn(5, 8)], 3.0) == 0


def unrolled(x: Tensor) -> Tensor:
    result = x[:, 0]
    for i in range(1, x.shape[1]):
        result = result * x[:, i].exp()
    return result if x.shape[0] < 7 else -result


def test_what_a_body_takes_for_granted_is_checked() -> None:
    """It goes through the second dimension one by one, and asks for the first."""
    for shape, new in (((5, 2, 6), 1), ((5, 3, 6), 1), ((6, 2, 9), 0), ((6, 3, 4), 0), ((9, 3, 4), 1), ((8, 3, 4), 0)):
        before = compiled_bodies()
        x = torch.randn(shape)
        torch.testing.assert_close(run(unrolled, x), unrolled(x))
        assert compiled_bodies() - before == new, shape


def test_numbers_are_part_of_a_body() -> None:
    x = torch.randn(2, 5)
    assert check([x, x], 5.0) == 1
    assert check([x, x], 7.0) == 1


def test_a_few_numbers_and_many_have_bodies_of_their_own() -> None:
    """A body that was compiled for a few numbers runs on one thread."""
    assert check([torch.randn(3, 17), torch.randn(3, 17)], 11.0) == 1
    assert check([torch.randn(999, 17), torch.randn(999, 17)], 11.0) == 1
    assert check([torch.randn(1999, 17), torch.randn(1999, 17)], 11.0) == 0


def test_no_numbers_at_all() -> None:
    assert check([torch.randn(0, 5), torch.randn(0, 5)]) == 0


def shared_out(x: Tensor) -> tuple[Tensor, None, Tensor]:
    share = (x.square().sum(-1) + 1).rsqrt() / 3
    once(share)
    return x * share.unsqueeze(-1), None, share + 1


def test_what_is_worked_out_once_has_a_buffer_and_is_no_result() -> None:
    x = torch.randn(5, 48)
    found, want = run(shared_out, x), shared_out(x)
    assert len(found) == 3
    assert found[1] is None
    torch.testing.assert_close(found[0], want[0])
    torch.testing.assert_close(found[2], want[2])
    assert len(Compiled(shared_out, (x,)).call([x])) == 3  # x's share, and the two results


@pytest.fixture
def _nothing_known() -> Iterator[None]:
    """As in a process that has not looked at PyTorch yet, nor warned."""
    for cached in (missing_in_torch, choice._say_once):
        cached.cache_clear()
    yield
    for cached in (missing_in_torch, choice._say_once):
        cached.cache_clear()


@pytest.mark.usefixtures("_nothing_known")
def test_this_version_of_pytorch_has_all_that_compiling_takes() -> None:
    assert missing_in_torch() is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert chosen("compiled", torch.zeros(2)) == "compiled"


@pytest.mark.usefixtures("_nothing_known")
@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in PRIVATE.items() for name in names])
def test_where_pytorch_lacks_a_private_function_lean_runs_and_says_so_once(
    module: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    *owners, last = name.split(".")
    owner = importlib.import_module(module)
    for part in owners:
        owner = getattr(owner, part)
    if module != "torch._inductor.config":
        monkeypatch.delattr(owner, last)
    else:  # its options can't be deleted
        monkeypatch.setitem(PRIVATE, module, ("an_option_of_another_version",))
        name = "an_option_of_another_version"
    x, query = torch.randn(3, 4, 40, requires_grad=True), torch.randn(40)
    before = compiled_bodies()
    with pytest.warns(UserWarning, match="runs as 'lean'") as said:
        found = [depth_attention(x.unbind(0), query, query, 1e-6, backend="compiled") for _ in range(2)]
    assert [str(warning.message) for warning in said] == [
        f"backend 'compiled' runs as 'lean': torch {torch.__version__} has no {module}.{name}"
    ]
    assert compiled_bodies() == before
    truth = depth_attention(x.unbind(0), query, query, 1e-6, backend="lean")
    for mix in found:
        assert torch.equal(mix, truth)
        assert torch.equal(*(torch.autograd.grad(t.square().sum(), x, retain_graph=True)[0] for t in (mix, truth)))
