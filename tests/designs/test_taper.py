"""Tapers: schedules as they are written, widths by layer, what doesn't divide, and how they join other parts."""

from __future__ import annotations

import dataclasses
import re
from fractions import Fraction

import pytest
import torch

from leadline.designs import PRESETS, ShapeConfig, count_flops, levelled, preset_named, reshaped, resolve
from leadline.designs.taper import Schedule, Taper, Widths, read_schedule, spans
from leadline.errors import UsageError
from leadline.models import Decoder

SHAPE = ShapeConfig(dim=48, blocks=15, heads=6, kv_heads=6, head_dim=8, hidden=128, context=16)


def heads(expression: str, shape: ShapeConfig = SHAPE) -> list[int]:
    return [layer.attention.heads for layer in resolve(expression).decoder(shape, 17).layers if layer.attention]


def hidden(expression: str, shape: ShapeConfig = SHAPE) -> list[int]:
    return [layer.mlp.hidden for layer in resolve(expression).decoder(shape, 17).layers if layer.mlp]


def test_the_named_tapers() -> None:
    assert heads("cascade-a1") == [6] * 8 + [3] * 7
    assert heads("cascade-a2") == [6] * 5 + [4] * 5 + [2] * 5
    assert heads("cascade-f1") == [6] * 15
    assert hidden("cascade-a2") == [128] * 15
    assert (hidden("cascade-f1")[0], hidden("cascade-f1")[-1]) == (128, 64)
    assert hidden("cascade-f2")[-1] == 32
    assert (heads("cascade-af"), hidden("cascade-af")) == (heads("cascade-a2"), hidden("cascade-f1"))
    assert heads("cascade-reverse") == heads("cascade-a2")[::-1]
    middle = heads("cascade-middle")
    assert middle[0] == middle[-1] == 6
    assert set(middle[5:10]) == {2}
    assert sorted(middle) == sorted(heads("cascade-a2"))
    costs = {
        count_flops(resolve(f"cascade-{n}").decoder(SHAPE, 17)).training_total for n in ("a2", "reverse", "middle")
    }
    assert len(costs) == 1


@pytest.mark.parametrize(
    ("tapered", "uniform"),
    [
        ("cascade-a2", "taper(heads=2/3)"),
        ("cascade-reverse", "taper(heads=2/3)"),
        ("cascade-f1", "taper(mlp=3/4)"),
        ("cascade-af", "taper(heads=2/3, mlp=3/4)"),
        ("mgr + peri-ln + cascade-a2", "mgr-competitive + peri-ln + taper(heads=2/3)"),
        ("cascade-a1", "taper(heads=5/6)"),
        ("taper(heads=1/3)", "taper(heads=1/3)"),
        ("prenorm", "prenorm"),
    ],
)
def test_levelled_has_the_mean_widths_in_every_layer(tapered: str, uniform: str) -> None:
    found = levelled(resolve(tapered), SHAPE)
    assert found == resolve(uniform)
    costs = [count_flops(design.decoder(SHAPE, 17)).training_total for design in (resolve(tapered), found)]
    # Of 4.6 heads in the mean there are five; everything else comes out even.
    assert (costs[0] == costs[1]) == (tapered != "cascade-a1")


def test_the_mlp_narrows_on_a_line_in_multiples_of_eight() -> None:
    shape = dataclasses.replace(SHAPE, blocks=5, hidden=1000)
    assert hidden("taper(mlp=1~1/2)", shape) == [1000, 872, 752, 624, 504]
    assert hidden("taper(mlp=1:1/2)", shape) == [1000, 1000, 1000, 504, 504]
    assert hidden("taper(mlp=1~1/2)", dataclasses.replace(shape, blocks=1)) == [1000]
    assert hidden("taper(mlp=1/100)", dataclasses.replace(shape, hidden=16)) == [8] * 5
    assert hidden("taper(mlp=1/2)", dataclasses.replace(shape, hidden=4)) == [4] * 5


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("taper(heads=1:2/3:1/3)", "cascade-a2"),
        ("taper(heads=1:0.667:0.333, mlp=1~0.5)", "cascade-af"),
        ("taper(mlp=1.0~.25)", "cascade-f2"),
        ("taper(heads=1:2/4)", "cascade-a1"),
        ("reverse", "cascade-reverse"),
        ("middle", "cascade-middle"),
        ("taper", "prenorm"),
        ("taper(heads=1:1, mlp=1~1)", "prenorm"),
        ("cascade-a2 + mgr + bhyt", "mgr-competitive + bhyt + cascade-a2"),
        ("taper(heads=1:0.5:0.25) + lns", "lns + taper(heads=1:1/2:1/4)"),
        ("taper(mlp=0.653)", "taper(mlp=653/1000)"),
        ("cascade-a2(mlp=1~1/3)", "cascade-a2(mlp=1~1/3)"),
    ],
)
def test_canonical_form(written: str, canonical: str) -> None:
    design = resolve(written)
    assert design.expression == canonical
    assert resolve(canonical) == design


def test_slugs_of_steps_lines_and_fractions_differ() -> None:
    expressions = ["taper(mlp=1:2)", "taper(mlp=1/2)", "taper(mlp=1~2)", "taper(mlp=2)", "taper(mlp=1, heads=1:2)"]
    slugs = {resolve(expression).slug for expression in expressions}
    assert len(slugs) == len(expressions)
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", slug) for slug in slugs)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("taper(heads=1~1/2)", "heads taper in steps, not on a line; 1:2/3:1/3"),
        ("taper(heads=1:half)", "'half' is not a share"),
        ("taper(mlp=1~1/2~1/4)", "a line has two ends"),
        ("taper(mlp=0)", "0 is out of range; shares are more than 0 and 8 at most"),
        ("taper(mlp=9)", "9 is out of range"),
        ("taper(mlp=1/0)", "'1/0' is not a share"),
        ("taper(mlp=-1)", "'-1' is not a share"),
        ("taper(heads=1:)", "'' is not a share"),
        ("taper(width=1)", "no option 'width'; it has heads, mlp"),
        ("cascade-a1 + cascade-a2", "are both tapers, and a design has one"),
    ],
)
def test_schedules_that_cannot_be_read(expression: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        resolve(expression)


def test_the_first_layer_whose_heads_do_not_divide_is_named_and_what_works() -> None:
    with pytest.raises(UsageError) as error:
        resolve("cascade-a1").decoder(preset_named("tiny"), 257)
    said = str(error.value)
    assert "layer 13 of 24: 3 heads × 1/2 = 1.5 is not a whole number of heads" in said
    assert "Multiples of 2 heads work, such as 2 and 4, as in preset S, M, L, 374M, 1B, 3B" in said
    assert "with 3 heads, shares of 1, 2/3, 1/3" in said
    # What the message promises holds.
    for preset in ("S", "M", "L", "374M", "1B", "3B"):
        assert resolve("cascade-a1").taper.widths(PRESETS[preset])
    assert resolve("taper(heads=1:2/3:1/3)").taper.widths(PRESETS["tiny"])
    with pytest.raises(UsageError, match="layer 7 of 16: 16 heads × 2/3"):
        resolve("cascade-a2").decoder(preset_named("374M"), 257)


def test_key_heads_follow_and_always_divide() -> None:
    def keys(heads: int, kv_heads: int, schedule: str) -> list[tuple[int, int]]:
        shape = dataclasses.replace(SHAPE, blocks=3, heads=heads, kv_heads=kv_heads)
        return [(w.heads, w.kv_heads) for w in Taper(heads=schedule).widths(shape)]

    assert keys(6, 6, "1:2/3:1/3") == [(6, 6), (4, 4), (2, 2)]
    assert keys(12, 3, "1:2/3:1/3") == [(12, 3), (8, 2), (4, 1)]
    assert keys(24, 8, "1:2/3:1/3") == [(24, 8), (16, 4), (8, 2)]
    assert keys(6, 2, "1:1/2:1/6") == [(6, 2), (3, 1), (1, 1)]
    notes = Taper(heads="1:2/3:1/3").notes(dataclasses.replace(SHAPE, heads=24, kv_heads=8))
    assert any(note.startswith("key and value heads by layer: 8 in 1–5, 4 in 6–10, 2 in 11–15") for note in notes)


def test_notes_say_the_widths_and_how_gradient_shares_compare() -> None:
    notes = resolve("cascade-af").notes(SHAPE)
    assert "heads by layer: 6 in 1–5, 4 in 6–10, 2 in 11–15" in notes
    assert any(note.startswith("MLP width by layer: 128 in layer 1 to 64 in layer 15") for note in notes)
    assert any("√parameters" in note for note in notes)
    assert resolve("prenorm").notes(SHAPE) == []
    few = resolve("cascade-middle").notes(dataclasses.replace(SHAPE, blocks=4))
    assert any("more steps than the stack has layers" in note for note in few)


def test_schedules_as_values() -> None:
    assert read_schedule("1:2/3:1/3", "heads", linear=False) == Schedule((Fraction(1), Fraction(2, 3), Fraction(1, 3)))
    assert str(read_schedule("1 ~ 0.5", "mlp", linear=True)) == "1~1/2"
    assert read_schedule("0.6667", "mlp", linear=True).shares == (Fraction(2, 3),)
    assert [Schedule((Fraction(1), Fraction(1, 2))).at(n, 3) for n in (1, 2, 3)] == [1, 1, Fraction(1, 2)]
    assert spans([6, 6, 4]) == "6 in 1–2, 4 in 3"
    assert Taper().widths(SHAPE) == (Widths(6, 6, 128),) * 15


@pytest.mark.parametrize(
    "expression", ["cascade-af", "cascade-a2 + mgr + bhyt", "cascade-reverse + attnres-block + peri-ln"]
)
def test_a_tapered_model_computes_and_learns_in_every_layer(expression: str) -> None:
    shape = dataclasses.replace(SHAPE, blocks=3)
    model = Decoder(resolve(expression).decoder(shape, 17))
    logits = model(torch.arange(16).remainder(17).unsqueeze(0))
    logits.logsumexp(-1).sum().backward()
    assert logits.shape == (1, 16, 17)
    for block in model.blocks:
        assert all(float(matrix.weight.grad.abs().sum()) > 0 for matrix in (block.attention.qkv, block.mlp.gate_up))


def test_another_width_number_of_heads_and_depth() -> None:
    tiny = preset_named("tiny").shape
    assert reshaped(tiny) == tiny
    assert reshaped(tiny, blocks=15, dim=96, heads=6) == dataclasses.replace(
        tiny, blocks=15, dim=96, heads=6, kv_heads=6, head_dim=16, hidden=256
    )
    wide = reshaped(PRESETS["374M"].shape, heads=8)
    assert (wide.heads, wide.kv_heads, wide.head_dim, wide.hidden) == (8, 2, 128, 4096)
    with pytest.raises(UsageError, match=r"heads=5 do not share dim=96.*1, 2, 3, 4, 6, 8, 12, 16, 24, 48 heads work"):
        reshaped(tiny, dim=96, heads=5)
    with pytest.raises(UsageError, match="the width must be even"):
        reshaped(tiny, dim=97, heads=1)


def test_heads_of_another_width_stay_as_wide_or_else_as_many() -> None:
    def heads(preset: str, dim: int) -> tuple[int, int, int]:
        shape = reshaped(PRESETS[preset].shape, dim=dim)
        return shape.heads, shape.kv_heads, shape.head_dim

    assert heads("tiny", 96) == (4, 4, 24)
    assert heads("tiny", 36) == (3, 3, 12)
    assert heads("tiny", 32) == (1, 1, 32)
    assert heads("374M", 512) == (8, 2, 64)
    assert heads("374M", 128) == (2, 2, 64)
    assert reshaped(PRESETS["374M"].shape, dim=1024) == PRESETS["374M"].shape
