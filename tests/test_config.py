"""Configuration to and from plain data."""

from __future__ import annotations

import dataclasses
from typing import Literal

import pytest

from leadline.config import from_dict, kind, to_dict
from leadline.errors import UsageError, did_you_mean


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    pass


@kind("test-circle")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Circle(Shape):
    radius: float = 1.0


@kind("test-square")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Square(Shape):
    side: int = 1
    corner: Literal["sharp", "round"] = "sharp"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drawing:
    shapes: tuple[Shape, ...]
    title: str | None = None
    scale: float | Literal["fit"] = 1.0
    framed: bool = False


DRAWING = Drawing(shapes=(Circle(radius=2.0), Square(corner="round")), scale="fit")


def test_round_trip() -> None:
    data = to_dict(DRAWING)
    assert data["shapes"][0] == {"kind": "test-circle", "radius": 2.0}
    assert from_dict(Drawing, data) == DRAWING


def test_an_integer_is_a_float() -> None:
    assert from_dict(Circle, {"radius": 3}).radius == 3.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shapes": [{"kind": "test-circel"}]}, "Did you mean test-circle"),
        (
            {"shapes": [{"kind": "test-circle", "radios": 1}]},
            "unknown key 'radios'; known: radius.",
        ),
        ({"shapes": [{"kind": "test-square", "corner": "odd"}]}, "it can be sharp, round"),
        ({"shapes": [{"kind": "test-square", "side": True}]}, "should be int"),
        ({"shapes": {}}, "should be a list"),
        ({"shapes": [3]}, "should be a mapping"),
        ({"scale": "fill"}, "scale"),
        ({"framed": 1}, "true or false"),
    ],
)
def test_wrong_data_is_an_error_that_names_its_place(change: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("?", r"\?")):
        from_dict(Drawing, {**to_dict(DRAWING), **change})


def test_two_classes_may_not_share_a_kind() -> None:
    with pytest.raises(RuntimeError, match="test-circle"):
        kind("test-circle")(Square)


def test_did_you_mean() -> None:
    assert did_you_mean("prenrom", ["prenorm", "mgr"]) == " Did you mean prenorm?"
    assert did_you_mean("zzz", ["prenorm"]) == ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    at: tuple[float, str]


def test_a_tuple_of_several_types() -> None:
    assert from_dict(Rule, {"at": [1, "even"]}) == Rule(at=(1.0, "even"))
    assert from_dict(Rule, to_dict(Rule(at=(0.5, "half")))) == Rule(at=(0.5, "half"))
    with pytest.raises(UsageError, match=r"at should have 2 entries, not 1"):
        from_dict(Rule, {"at": [1.0]})
    with pytest.raises(UsageError, match=r"at\[1\] should be str"):
        from_dict(Rule, {"at": [1.0, 2.0]})
