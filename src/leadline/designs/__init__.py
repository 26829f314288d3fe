"""Designs: connection, norm, placement, initialisation and taper by name; presets; counting; learning rates."""

from leadline.designs.counting import (
    FlopCount,
    ParameterCount,
    count_flops,
    count_parameters,
    equal_flops,
    tokens_for,
)
from leadline.designs.design import Design, check_two_phase, levelled, resolve
from leadline.designs.equal import Balance, Side, solve
from leadline.designs.parts import PARTS, Part
from leadline.designs.presets import PRESETS, Preset, ShapeConfig, preset_named, reshaped
from leadline.designs.recipes import Placement
from leadline.designs.settings import TABLE, Settings, Swept, settings
from leadline.designs.taper import Taper

__all__ = [
    "PARTS",
    "PRESETS",
    "TABLE",
    "Balance",
    "Design",
    "FlopCount",
    "ParameterCount",
    "Part",
    "Placement",
    "Preset",
    "Settings",
    "ShapeConfig",
    "Side",
    "Swept",
    "Taper",
    "check_two_phase",
    "count_flops",
    "count_parameters",
    "equal_flops",
    "levelled",
    "preset_named",
    "reshaped",
    "resolve",
    "settings",
    "solve",
    "tokens_for",
]
