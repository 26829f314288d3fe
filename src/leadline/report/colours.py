"""Colours: a line colour per design and colour ramps for heat maps, for light and for dark pages.

The line colours were searched for: at least 3:1 against the page, and as far apart as they get in OKLab for normal
sight and for simulated protanopia, deuteranopia and tritanopia. The baseline is the text's colour, dashed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LINES_LIGHT = ("#16429c", "#cd2a23", "#217b56", "#b18a29", "#8966df", "#3599a5", "#71375d", "#971901")
LINES_DARK = ("#4c80f0", "#eb8430", "#36b390", "#e6c860", "#9789d2", "#15cefb", "#c05a9b", "#d64029")
DASHES = ("none", "9 3 2 3", "2 3", "12 3 2 3 2 3")
"""More designs than colours go round once more, with another dash."""

LEVELS = 24
"""Steps of the ramp for values from zero up."""
LEVELS_BELOW = 12
"""Steps of the ramp for values below zero."""

_RAMP_LIGHT = ("#f4f1e9", "#b5d6ca", "#559fb0", "#2d6399", "#251c52")
_RAMP_DARK = ("#1f2229", "#22406e", "#2c7f98", "#79c2a4", "#f4f0c8")
_BELOW_LIGHT = ("#f4f1e9", "#e39a74", "#8f2412")
_BELOW_DARK = ("#1f2229", "#8f3d27", "#ffb794")

_FROM_LINEAR = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def variables(dark: bool) -> str:
    """The declarations of all colour variables: `--line-0` …, `--heat-0` …, `--below-0` …."""
    lines = LINES_DARK if dark else LINES_LIGHT
    heat = ramp(_RAMP_DARK if dark else _RAMP_LIGHT, LEVELS)
    below = ramp(_BELOW_DARK if dark else _BELOW_LIGHT, LEVELS_BELOW)
    named = {"line": lines, "heat": heat, "below": below}
    return "".join(f"--{name}-{i}:{colour};" for name, group in named.items() for i, colour in enumerate(group))


def classes() -> str:
    """The rules that fill heat-map cells: `.h0` …, `.b0` …."""
    heat = "".join(f".h{i}{{fill:var(--heat-{i})}}" for i in range(LEVELS))
    return heat + "".join(f".b{i}{{fill:var(--below-{i})}}" for i in range(LEVELS_BELOW))


def design_rule(index: int, order: int, baseline: bool) -> str:
    """The rule that gives design number `index` its colour; `order` counts the designs that are not the baseline."""
    if baseline:
        return f".d{index}{{--c:var(--ink);--dash:7 4;--width:2.4px}}"
    dash = DASHES[order // len(LINES_LIGHT) % len(DASHES)]
    return f".d{index}{{--c:var(--line-{order % len(LINES_LIGHT)});--dash:{dash};--width:2px}}"


def ramp(stops: Sequence[str], levels: int) -> list[str]:
    """`levels` colours along the stops, evenly spaced in OKLab, as #rrggbb."""
    lab = np.array([_to_lab(stop) for stop in stops])
    at = np.linspace(0, len(stops) - 1, levels)
    mixed = np.stack([np.interp(at, np.arange(len(stops)), lab[:, axis]) for axis in range(3)], axis=1)
    linear = np.clip(((mixed @ np.linalg.inv(_TO_LAB).T) ** 3) @ np.linalg.inv(_FROM_LINEAR).T, 0, 1)
    shown = np.where(linear <= 0.0031308, linear * 12.92, 1.055 * linear ** (1 / 2.4) - 0.055)
    return ["#" + "".join(f"{round(float(v) * 255):02x}" for v in colour) for colour in shown]


def contrast(first: str, second: str) -> float:
    """The WCAG contrast ratio of two colours, from 1 to 21."""
    bright, dim = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def _luminance(colour: str) -> float:
    return float(_linear(colour) @ np.array([0.2126, 0.7152, 0.0722]))


def _linear(colour: str) -> np.ndarray:
    shown = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(shown <= 0.04045, shown / 12.92, ((shown + 0.055) / 1.055) ** 2.4)


def _to_lab(colour: str) -> np.ndarray:
    return np.asarray(np.cbrt(_linear(colour) @ _FROM_LINEAR.T) @ _TO_LAB.T)
