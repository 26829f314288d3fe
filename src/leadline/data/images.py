"""Real images with labels, in batches whose order and augmentation depend on the seed and the data alone.

    images = resolve_images("digits")            # or a folder: CIFAR's binary files, or a sub-folder for each class
    loader = ImageLoader(images, batch_size=32, seed=0)
    batch = loader.next()                        # images (B, C, H, W) float32, labels (B,) int64
    for batch in evaluation_images(images, batch_size=100): ...

Where the images come from is in `leadline.data.image_sources`.

Shapes: B batch, N images, C channels, H, W height and width.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from leadline.data.loader import key_of, permute, spread
from leadline.errors import LeadlineError, UsageError

if TYPE_CHECKING:
    import torch

Pixels = NDArray[np.uint8]
Rows = NDArray[np.int64]

STATISTICS_FROM = 2048
"""Mean and deviation are those of so many training images, spread evenly. [ours]"""


class ImageBatch(NamedTuple):
    """`images` (B, C, H, W) float32, normalised, and `labels` (B,) int64, on the CPU.

    For probes, which know tokens, an image is a sequence of one prediction.
    """

    images: torch.Tensor
    labels: torch.Tensor

    @property
    def tokens(self) -> torch.Tensor:
        """What the model reads: the images."""
        return self.images

    @property
    def targets(self) -> torch.Tensor:
        """(B, 1): the labels."""
        return self.labels.unsqueeze(1)


class ImageSplit(Protocol):
    """Images that are read when they are needed."""

    @property
    def labels(self) -> Rows:
        """(N,): the class of every image."""
        ...

    def read(self, rows: Rows) -> Pixels:
        """The images of those numbers, (n, C, H, W)."""
        ...


@dataclass(frozen=True)
class HeldImages:
    """A split in memory: pixels (N, C, H, W) and labels (N,)."""

    pixels: Pixels
    labels: Rows

    def read(self, rows: Rows) -> Pixels:
        """The images of those numbers, (n, C, H, W)."""
        return self.pixels[rows]


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """What is done to training images, drawn for every image and epoch.

    Attributes:
        flip: turn half of them left to right.
        padding: put so many black pixels around and cut the old size out of that anywhere.
    """

    flip: bool = False
    padding: int = 0


@dataclass(frozen=True, kw_only=True)
class ImageSet:
    """Images for training and others that are held out.

    Attributes:
        name: for people.
        train, heldout: the splits.
        classes: the names of the labels.
        augmentation: what suits these images.
        hash: of what the set holds; of names and sizes of files for a folder of them.
    """

    name: str
    train: ImageSplit
    heldout: ImageSplit
    classes: tuple[str, ...]
    augmentation: Augmentation
    hash: str

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        channels, height, width = self.train.read(np.zeros(1, dtype=np.int64)).shape[1:]
        return channels, height, width

    @cached_property
    def statistics(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Mean and standard deviation of each channel over training images, (C, 1, 1), in [0, 1]."""
        pixels = self.train.read(spread(len(self.train.labels), STATISTICS_FROM)) / np.float32(255)
        mean = pixels.mean(axis=(0, 2, 3), dtype=np.float64).astype(np.float32)
        deviation = pixels.std(axis=(0, 2, 3), dtype=np.float64).astype(np.float32)
        return mean[:, None, None], np.maximum(deviation, np.float32(1e-3))[:, None, None]

    def batch(self, pixels: Pixels, labels: Rows) -> ImageBatch:
        """Pixels (n, C, H, W), normalised, and their labels."""
        import torch

        mean, deviation = self.statistics
        images = (pixels.astype(np.float32) / np.float32(255) - mean) / deviation
        return ImageBatch(torch.from_numpy(images), torch.from_numpy(np.ascontiguousarray(labels)))


class ImageLoader:
    """Endless batches of training images.

    Each epoch takes every image once, in a new order; a batch may reach into the next epoch. Order and augmentation
    depend on the seed, the data, the epoch and the image, and on no library's random numbers.

    Args:
        augmentation: instead of the set's own.

    Raises:
        UsageError: the batch size is out of range.
    """

    def __init__(
        self, images: ImageSet, batch_size: int, seed: int = 0, *, augmentation: Augmentation | None = None
    ) -> None:
        if batch_size < 1:
            raise UsageError(f"batch_size={batch_size} is too small; it can be 1 or more")
        self.images = images
        self.batch_size = batch_size
        self.seed = seed
        self.augmentation = images.augmentation if augmentation is None else augmentation
        self._count = len(images.train.labels)
        self._next = 0
        self._held: tuple[int, Rows] | None = None

    def next(self) -> ImageBatch:
        """The next batch."""
        rows = np.empty(self.batch_size, dtype=np.int64)
        keys = np.empty((self.batch_size, 3), dtype=np.int64)
        for place in range(self.batch_size):
            epoch, index = divmod(self._next + place, self._count)
            rows[place] = self._order(epoch)[index]
            keys[place] = self._draws(epoch, int(rows[place]))
        self._next += self.batch_size
        pixels = augmented(self.images.train.read(rows), self.augmentation, keys)
        return self.images.batch(pixels, self.images.train.labels[rows])

    def state(self) -> dict[str, int]:
        """The position, and what the order depends on."""
        epoch, index = divmod(self._next, self._count)
        return {"epoch": epoch, "index": index, "seed": self.seed, "data": int(self.images.hash[:12], 16)}

    def load(self, state: dict[str, int]) -> None:
        """Continues where `state()` was taken.

        Raises:
            LeadlineError: the state is of another seed or data set, or is broken.
        """
        own = self.state()
        if set(state) != set(own) or not 0 <= state["index"] < self._count or state["epoch"] < 0:
            raise LeadlineError(f"the state of the images is broken; it has {', '.join(own)}, in range")
        for key in ("seed", "data"):
            if state[key] != own[key]:
                raise LeadlineError(f"the images cannot continue here: their state is of another {key}")
        self._next = state["epoch"] * self._count + state["index"]

    def _order(self, epoch: int) -> Rows:
        if self._held is None or self._held[0] != epoch:
            self._held = (epoch, shuffled(self._count, self.seed, self.images.hash, epoch))
        return self._held[1]

    def _draws(self, epoch: int, row: int) -> tuple[int, int, int]:
        """Whether to flip, and where to cut vertically and horizontally."""
        if self.augmentation == Augmentation():
            return 0, 0, 0
        digest = hashlib.blake2b(repr((self.seed, self.images.hash, epoch, row)).encode(), digest_size=9).digest()
        places = 2 * self.augmentation.padding + 1
        top, left = (int.from_bytes(digest[i : i + 4], "little") % places for i in (1, 5))
        return digest[0] & 1, top, left


def augmented(pixels: Pixels, how: Augmentation, draws: Rows) -> Pixels:
    """Images (n, C, H, W) flipped and cut as `draws` (n, 3) says: flip, first row, first column."""
    if how == Augmentation():
        return pixels
    height, width = pixels.shape[2:]
    edge = (how.padding, how.padding)
    padded = np.pad(pixels, ((0, 0), (0, 0), edge, edge))
    out = np.empty_like(pixels)
    for image, (flip, top, left) in enumerate(draws):
        cut = padded[image, :, top : top + height, left : left + width]
        out[image] = cut[:, :, ::-1] if how.flip and flip else cut
    return out


def evaluation_images(images: ImageSet, batch_size: int, limit: int | None = None) -> Iterator[ImageBatch]:
    """Held-out images in order, the same every time; with `limit`, so many at most, spread evenly."""
    if batch_size < 1:
        raise UsageError(f"batch_size={batch_size} is too small; it can be 1 or more")
    count = len(images.heldout.labels)
    rows = spread(count, count if limit is None else limit)
    for first in range(0, len(rows), batch_size):
        chosen = rows[first : first + batch_size]
        yield images.batch(images.heldout.read(chosen), images.heldout.labels[chosen])


def shuffled(count: int, *key: object) -> Rows:
    """The numbers below `count` in an order that the key decides."""
    return permute(np.arange(count, dtype=np.uint64), count, key_of(*key, words=6)).astype(np.int64)


def hash_of(*parts: bytes | str | Sequence[object]) -> str:
    """What tells two sets of images apart."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part if isinstance(part, bytes) else repr(part).encode())
    return digest.hexdigest()
