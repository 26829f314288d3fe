"""Where images come from: scikit-learn's digits, CIFAR's binary files, a folder with a sub-folder for each class.

Nothing is downloaded, and no pickle is read: loading one runs whatever code somebody put into it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from leadline.data.images import Augmentation, HeldImages, ImageSet, Pixels, Rows, hash_of, shuffled
from leadline.errors import LeadlineError, UsageError, optional

DIGITS = "digits"
DIGITS_SIZE = 32
HELDOUT_ONE_IN = 5
"""Where no split comes with the images, one of so many is held out. [ours]"""
SPLIT_SEED = 0
"""Of that split, the same for every run."""
WORKS = f"{DIGITS}, a folder with CIFAR's .bin files, or a folder with a sub-folder of images for each class"
SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
TRAIN_NAMES, HELDOUT_NAMES = ("train", "training"), ("val", "valid", "validation", "test", "heldout")

CIFAR_SHAPE = (3, 32, 32)
CIFAR = {
    "cifar10": (tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin", "batches.meta.txt", 1),
    "cifar100": (("train.bin",), "test.bin", "fine_label_names.txt", 2),
}
"""By name: files for training, the one held out, the names of classes, and label bytes, of which the last counts."""
PICKLES = {"cifar10": ("data_batch_1", "cifar-10-binary.tar.gz"), "cifar100": ("train", "cifar-100-binary.tar.gz")}


def resolve_images(name: str, *, size: int | None = None) -> ImageSet:
    """The images of that name or in that folder.

    Args:
        name: "digits", or a folder; one that is called digits is "./digits".
        size: height and width of the images of a folder with a sub-folder for each class, 64 unless given, and of
            digits, 32 unless given. CIFAR's are 32.

    Raises:
        UsageError: there is nothing of that kind; says what works.
        LeadlineError: a file is damaged, or a package is missing.
    """
    if size is not None and not 8 <= size <= 1024:
        raise UsageError(f"size={size} is out of range; 8 to 1024 pixels work")
    if name == DIGITS:
        return digits(DIGITS_SIZE if size is None else size)
    folder = Path(name)
    if not folder.is_dir():
        raise UsageError(f"--images {name} is {_instead(folder, name)}; {WORKS} work")
    for kind, (train, *_) in CIFAR.items():
        if (folder / train[0]).is_file():
            return cifar(folder, kind, size)
        pickled, archive = PICKLES[kind]
        if (folder / pickled).is_file():
            raise UsageError(
                f"--images {name} holds CIFAR as Python pickles ({pickled}), which can run code when they are read; "
                f"the binary version, {archive}, works"
            )
    return image_folder(folder, 64 if size is None else size)


def _instead(folder: Path, name: str) -> str:
    if folder.is_file():
        return "a file; if it is an archive, unpack it and name the folder"
    if name in CIFAR:
        return f"not bundled; give the folder that {PICKLES[name][1]} unpacks to"
    return "not a folder"


def digits(size: int = DIGITS_SIZE) -> ImageSet:
    """1,797 real scans of handwritten digits, 8×8 in 17 greys, from scikit-learn, made larger bilinearly.

    Source: UCI "Optical recognition of handwritten digits", Alpaydin and Kaynak, 1998. One in five is held out. No
    augmentation: a digit that is flipped is another sign.

    Raises:
        LeadlineError: scikit-learn isn't there.
    """
    import torch

    datasets = optional("sklearn.datasets", f"--images {DIGITS} needs scikit-learn, which holds them", "images")
    data = datasets.load_digits()
    small = torch.from_numpy(data.images).float()[:, None] * (255 / 16)
    large = torch.nn.functional.interpolate(small, size=(size, size), mode="bilinear", align_corners=False)
    pixels = large.round().clamp(0, 255).to(torch.uint8).numpy()
    labels = np.asarray(data.target, dtype=np.int64)
    train, heldout = _split(len(labels))
    return ImageSet(
        name=DIGITS,
        train=HeldImages(pixels[train], labels[train]),
        heldout=HeldImages(pixels[heldout], labels[heldout]),
        classes=tuple(str(digit) for digit in range(10)),
        augmentation=Augmentation(),
        hash=hash_of(pixels.tobytes(), labels.tobytes()),
    )


def cifar(folder: Path, kind: str, size: int | None = None) -> ImageSet:
    """CIFAR-10 or CIFAR-100, the binary version: flips and crops with a padding of 4 for training.

    Args:
        kind: "cifar10" or "cifar100", which has its 100 fine labels here.

    Raises:
        UsageError: another size than 32.
        LeadlineError: a file is missing or damaged.
    """
    if size not in (None, CIFAR_SHAPE[1]):
        raise UsageError(f"size={size} does not fit CIFAR, whose images are 32 pixels")
    train_names, heldout_name, classes_name, label_bytes = CIFAR[kind]
    try:
        classes = tuple((folder / classes_name).read_text(encoding="utf-8").split())
    except (OSError, ValueError) as error:
        raise LeadlineError(f"can't read {folder / classes_name}, the names of the classes: {error}") from error
    train = [_read_binary(folder / name, label_bytes, len(classes)) for name in train_names]
    pixels, labels = (np.concatenate(parts) for parts in zip(*train, strict=True))
    heldout = _read_binary(folder / heldout_name, label_bytes, len(classes))
    return ImageSet(
        name=kind,
        train=HeldImages(pixels, labels),
        heldout=HeldImages(*heldout),
        classes=classes,
        augmentation=Augmentation(flip=True, padding=4),
        hash=hash_of(pixels.tobytes(), labels.tobytes(), heldout[0].tobytes(), heldout[1].tobytes()),
    )


def _read_binary(path: Path, label_bytes: int, classes: int) -> tuple[Pixels, Rows]:
    """The images and labels of one file: for each image its label bytes, then a plane each of red, green and blue."""
    try:
        content = np.fromfile(path, dtype=np.uint8)
    except OSError as error:
        raise LeadlineError(f"can't read {path}: {error.strerror or error}; CIFAR's binary version has it") from error
    row = label_bytes + int(np.prod(CIFAR_SHAPE))
    if len(content) == 0 or len(content) % row:
        raise LeadlineError(f"{path} is damaged: its {len(content):,} bytes are not whole images of {row:,} bytes")
    table = content.reshape(-1, row)
    labels = table[:, label_bytes - 1].astype(np.int64)
    if labels.max() >= classes:
        raise LeadlineError(f"{path} is damaged: it has the label {labels.max()}, and there are {classes} classes")
    return np.ascontiguousarray(table[:, label_bytes:]).reshape(-1, *CIFAR_SHAPE), labels


class ImageFiles:
    """A split in files, each of which is read when it is needed: RGB, its shorter side made `size`, the middle cut out.

    Args:
        paths: of the images.
        labels: (N,).
        size: height and width in pixels.
    """

    def __init__(self, paths: Sequence[Path], labels: Rows, size: int) -> None:
        self.paths, self.labels, self.size = list(paths), labels, size

    def read(self, rows: Rows) -> Pixels:
        """The images of those numbers, (n, 3, size, size).

        Raises:
            LeadlineError: a file is not an image that Pillow reads; names it.
        """
        return np.stack([self._read(self.paths[row]) for row in rows])

    def _read(self, path: Path) -> Pixels:
        from PIL import Image, ImageOps

        try:
            with Image.open(path) as image:
                fitted = ImageOps.fit(_as_rgb(image), (self.size, self.size), Image.Resampling.BILINEAR)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise LeadlineError(f"can't read the image {path}: {error}") from error
        return np.asarray(fitted, dtype=np.uint8).transpose(2, 0, 1)


def _as_rgb(image: Any) -> Any:
    """A Pillow image with 8 bits a channel.

    Pillow itself would clip 16 bits of grey to white, and numbers without a range to black or white.

    Raises:
        ValueError: its numbers have no range.
    """
    from PIL import Image

    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) // 257).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError(f"its mode {image.mode} says nothing of the range; 8 or 16 bits a channel work")
    return image.convert("RGB")


def image_folder(folder: Path, size: int) -> ImageSet:
    """Images in a sub-folder for each class, or such folders in `train` and `val` (or `test`).

    Without the latter one in five is held out. Training images are flipped, and cropped with a padding of an eighth.

    Raises:
        UsageError: no classes are there, or those of the two parts differ.
        LeadlineError: Pillow isn't there.
    """
    optional("PIL", f"--images {folder} needs Pillow to read images", "images")  # before anything is read
    parts = {path.name.lower(): path for path in folder.iterdir() if path.is_dir()}
    train = next((parts[name] for name in TRAIN_NAMES if name in parts), None)
    heldout = next((parts[name] for name in HELDOUT_NAMES if name in parts), None)
    if train is not None and heldout is not None:
        classes, paths, labels = _files(train)
        others, other_paths, other_labels = _files(heldout)
        if classes != others:
            raise UsageError(
                f"--images {folder}: {train.name} and {heldout.name} have different classes; both need all"
            )
    else:
        classes, paths, labels = _files(folder)
        kept, out = _split(len(paths))
        other_paths, other_labels = [paths[i] for i in out], labels[out]
        paths, labels = [paths[i] for i in kept], labels[kept]
    listed = [(str(path.relative_to(folder)), path.stat().st_size) for path in (*paths, *other_paths)]
    return ImageSet(
        name=folder.name,
        train=ImageFiles(paths, labels, size),
        heldout=ImageFiles(other_paths, other_labels, size),
        classes=classes,
        augmentation=Augmentation(flip=True, padding=size // 8),
        hash=hash_of(listed, [size]),
    )


def _files(folder: Path) -> tuple[tuple[str, ...], list[Path], Rows]:
    """Names of classes, and the images of all with their labels, in the order of names."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    found = [
        sorted(
            Path(root) / name for root, _, names in os.walk(path) for name in names if name.lower().endswith(SUFFIXES)
        )
        for path in classes
    ]
    empty = [path.name for path, files in zip(classes, found, strict=True) if not files]
    if len(classes) < 2 or empty:
        reason = (
            f"no image in {empty[0]}" if empty else f"{len(classes)} sub-folders, and it takes a class in each of 2"
        )
        raise UsageError(f"--images {folder} has {reason}; {WORKS} work")
    labels = np.repeat(np.arange(len(classes), dtype=np.int64), [len(files) for files in found])
    return tuple(path.name for path in classes), [path for files in found for path in files], labels


def _split(count: int) -> tuple[Rows, Rows]:
    """The numbers below `count` that are for training, and those held out, in order."""
    order = shuffled(count, "split", SPLIT_SEED)
    out = max(1, count // HELDOUT_ONE_IN)
    return np.sort(order[out:]), np.sort(order[:out])
