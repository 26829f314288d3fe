"""What a run on images is: the images, the network, the optimiser; and its folder, which holds this run alone."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from leadline.config import to_dict
from leadline.data.image_sources import DIGITS, resolve_images
from leadline.data.images import ImageSet
from leadline.errors import LeadlineError, UsageError
from leadline.files import write_json
from leadline.lock import claimed
from leadline.models.resnet import ResNetConfig
from leadline.reading import read_json
from leadline.training.run_folder import RUN_FILE, check_free

SMALL_IMAGES = 64
"""Pixels up to which the stem "auto" keeps the picture whole. [ours]"""
FREE = ("device", "checkpoint_every", "keep")
"""What may change when a run resumes."""
LEAST = {
    "steps": 1, "batch_size": 2, "keep": 1, "gradient_every": 0, "checkpoint_every": 0, "gradient_from": 1, "seed": 0,
    "evaluate_every": 1,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ImageRunConfig:
    """One run: SGD with momentum and a cosine. The defaults take a minute or two on two cores; the numbers are ours.

    Attributes:
        images: "digits", or a folder; see `leadline.data.image_sources.resolve_images`.
        size: of the images in pixels, where their source leaves a choice.
        layers, width, zero_init_residual: see `ResNetConfig`; ResNet-50 has width 64.
        stem: "auto" is "small" for images of up to 64 pixels, else "imagenet".
        steps: of the optimiser.
        batch_size: images in a step.
        learning_rate: the peak.
        weight_decay: on convolutions and the head's matrix; norms and biases have none.
        warmup: share of the steps in which the rate rises in a line; then it falls along a cosine to zero.
        evaluate_every: steps; five evaluations unless given. There is one at the end always.
        gradient_every: steps between records of the gradients' effective rank and diversity; 0 has none.
        checkpoint_every: steps; 0 saves at the end, and where the run is interrupted.
        keep: so many of the newest checkpoints.
        gradient_from, gradient_until: the steps whose gradients count, both included; all unless given.
        seed: of the start, of the images' order and of their augmentation.
    """

    images: str = DIGITS
    size: int | None = None
    layers: tuple[int, ...] = (3, 4, 6, 3)
    width: int = 16
    stem: Literal["auto", "imagenet", "small"] = "auto"
    zero_init_residual: bool = False
    steps: int = 200
    batch_size: int = 32
    learning_rate: float = 0.02
    momentum: float = 0.9
    weight_decay: float = 5e-4
    warmup: float = 0.05
    evaluate_every: int | None = None
    gradient_every: int = 0
    gradient_from: int = 1
    gradient_until: int | None = None
    checkpoint_every: int = 0
    keep: int = 1
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            if (value := getattr(self, name)) is not None and value < least:
                raise UsageError(f"{name}={value} is too small; {least} or more work")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise UsageError(f"learning_rate={self.learning_rate} must be above 0")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise UsageError(f"weight_decay={self.weight_decay} must be 0 or more")
        for name in ("momentum", "warmup"):
            if not 0 <= getattr(self, name) < 1:
                raise UsageError(f"{name}={getattr(self, name)} must be at least 0 and below 1")
        if self.gradient_from > self.steps:
            raise UsageError(f"gradient_from={self.gradient_from} is after the last of {self.steps} steps; none counts")
        if self.gradient_until is not None and self.gradient_until < self.gradient_from:
            raise UsageError(
                f"gradient_from={self.gradient_from} is after gradient_until={self.gradient_until}; no step counts"
            )

    def open_images(self) -> ImageSet:
        """The images. Raises what `resolve_images` raises."""
        return resolve_images(self.images, size=self.size)

    def model(self, images: ImageSet) -> ResNetConfig:
        """The network for these images.

        Raises:
            UsageError: the images are too small for it.
        """
        channels, height, width = images.shape
        side = min(height, width)
        stem = ("small" if side <= SMALL_IMAGES else "imagenet") if self.stem == "auto" else self.stem
        config = ResNetConfig(
            classes=len(images.classes),
            channels=channels,
            layers=self.layers,
            width=self.width,
            stem=stem,
            zero_init_residual=self.zero_init_residual,
        )
        if side < config.smallest_image:
            raise UsageError(
                f"images of {side} pixels are too small for stem={stem} and {len(self.layers)} stages, which take "
                f"{config.smallest_image} or more; stem=small takes less"
            )
        return config

    @property
    def evaluated_every(self) -> int:
        """Steps between evaluations."""
        return self.evaluate_every or max(1, -(-self.steps // 5))

    @property
    def warmup_steps(self) -> int:
        """In how many steps the learning rate rises."""
        return math.ceil(self.warmup * self.steps)

    def rate_at(self, step: int) -> float:
        """The learning rate in `step`, counted from 1."""
        rising = self.warmup_steps
        if step <= rising:
            return self.learning_rate * step / rising
        done = (step - rising) / max(1, self.steps - rising)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * done))


@contextlib.contextmanager
def run_in(out: Path, config: ImageRunConfig, images: ImageSet) -> Iterator[None]:
    """Makes the folder this run's, or makes sure that it is, and holds it: no other process trains in it meanwhile.

    Raises:
        UsageError: another run, or something else, is there; what differs is named.
        LeadlineError: the folder can't be written, is damaged, or another process trains in it.
    """
    content = {
        "config": to_dict(config),
        "model": to_dict(config.model(images)),
        "images": {
            "name": images.name,
            "hash": images.hash,
            "shape": list(images.shape),
            "classes": list(images.classes),
            "train": len(images.train.labels),
            "heldout": len(images.heldout.labels),
        },
    }
    with claimed(out, "train", lambda: _check(out, content)):
        try:
            write_json(out / RUN_FILE, content)
        except OSError as error:
            raise LeadlineError(f"can't write to --out {out}: {error.strerror or error}") from error
        yield


def _check(out: Path, content: dict[str, Any]) -> None:
    check_free(out)
    if not (out / RUN_FILE).exists():
        return
    before = _fixed(read_json(out / RUN_FILE, dict[str, Any], advice="start in another folder"))
    for name, now in _fixed(content).items():
        if before.get(name) != now:
            raise UsageError(f"--out {out} holds a run with {name}={before.get(name)}, not {now}; name another folder")


def _fixed(content: dict[str, Any]) -> dict[str, Any]:
    """What has to stay the same in a run that resumes."""
    try:
        config = {name: value for name, value in content["config"].items() if name not in FREE}
        return {**config, "image data": content["images"]["hash"]}
    except (KeyError, TypeError, AttributeError):
        return {}
