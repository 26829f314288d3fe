"""All arms of the study. One more is a file like `decoder_arms.py`, and a place in `ARMS`."""

from __future__ import annotations

from collections.abc import Sequence

from leadline.errors import UsageError, did_you_mean
from leadline.experiments.gradient_fan_in.arm import ArmKind
from leadline.experiments.gradient_fan_in.decoder_arms import DECODER_ARMS
from leadline.experiments.gradient_fan_in.resnet_arm import RESNET_ARM

ARMS: dict[str, ArmKind] = {arm.name: arm for arm in (*DECODER_ARMS, RESNET_ARM)}
"""Every arm by its name, in the order of the report."""


USUAL = tuple(name for name in ARMS if not name.endswith("-sgd"))
"""Those that take part unless arms are named. SGD is far behind AdamW after a short training, and its importance there
is noise."""


def arm_named(name: str) -> ArmKind:
    """The arm of that name.

    Raises:
        UsageError: there is none; names those that there are.
    """
    if name not in ARMS:
        raise UsageError(f"--arms: {name!r} is not known; {', '.join(ARMS)} work.{did_you_mean(name, ARMS)}")
    return ARMS[name]


def chosen(names: Sequence[str] | None) -> list[ArmKind]:
    """The arms of those names with the controls that they need, in the order of the report; `USUAL` without names.

    Raises:
        UsageError: an unknown name, or none.
    """
    if names is None:
        return [ARMS[name] for name in USUAL]
    if not names:
        raise UsageError(f"--arms names no arm; {', '.join(ARMS)} work")
    wanted = {arm_named(name).name for name in names}
    wanted |= {ARMS[name].control for name in wanted if ARMS[name].control}
    return [arm for arm in ARMS.values() if arm.name in wanted]
