"""Designs: connection, norm, placement and initialisation by name; presets; counting; learning rates."""

from leadline.designs.counting import (
    FlopCount,
    ParameterCount,
    count_flops,
    count_parameters,
    equal_flops,
    tokens_for,
)
from leadline.designs.design import Design, Placement, resolve
from leadline.designs.parts import PARTS, Part
from leadline.designs.presets import PRESETS, Preset, ShapeConfig, preset_named
from leadline.designs.settings import TABLE, Settings, Swept, settings

__all__ = [
    "PARTS",
    "PRESETS",
    "TABLE",
    "Design",
    "FlopCount",
    "ParameterCount",
    "Part",
    "Placement",
    "Preset",
    "Settings",
    "ShapeConfig",
    "Swept",
    "count_flops",
    "count_parameters",
    "equal_flops",
    "preset_named",
    "resolve",
    "settings",
    "tokens_for",
]
