"""Images: the bundled digits, CIFAR's binary files, folders; order, augmentation and resume."""

from __future__ import annotations

import dataclasses
import re
import sys

import numpy as np
import pytest
import torch

from leadline.data.image_sources import SPLIT_SEED, resolve_images
from leadline.data.images import (
    Augmentation,
    HeldImages,
    ImageLoader,
    ImageSet,
    augmented,
    evaluation_images,
    shuffled,
)
from leadline.data.loader import spread
from leadline.errors import LeadlineError, UsageError

Image = pytest.importorskip("PIL.Image")
CIFAR10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def numbered(count=10, augmentation=None, heldout=4):
    """Images in which every pixel is the image's number."""
    pixels = np.repeat(np.arange(count, dtype=np.uint8), 16).reshape(count, 1, 4, 4)
    labels = np.arange(count, dtype=np.int64)
    return ImageSet(
        name="numbered",
        train=HeldImages(pixels, labels),
        heldout=HeldImages(pixels[:heldout], labels[:heldout]),
        classes=tuple(map(str, range(count))),
        augmentation=augmentation or Augmentation(),
        hash="0123456789abcdef",
    )


def write_cifar(folder, kind="cifar10", per_file=3):
    """CIFAR's layout; what every image holds is returned by file."""
    generator = np.random.default_rng(0)
    names = {
        "cifar10": [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"],
        "cifar100": ["train.bin", "test.bin"],
    }[kind]
    written = {}
    for name in names:
        pixels = generator.integers(0, 256, (per_file, 3, 32, 32), dtype=np.uint8)
        labels = generator.integers(0, 10, per_file)
        written[name] = (pixels, labels)
        rows = []
        for image, label in zip(pixels, labels, strict=True):
            head = [int(label)] if kind == "cifar10" else [99, int(label)]
            rows.append(bytes(head) + image.tobytes())
        (folder / name).write_bytes(b"".join(rows))
    if kind == "cifar10":
        (folder / "batches.meta.txt").write_text("\n".join(CIFAR10) + "\n\n")
    else:
        (folder / "fine_label_names.txt").write_text("\n".join(f"class_{i}" for i in range(100)) + "\n")
    return written


def write_folder(folder, classes=("cat", "dog"), each=5):
    """PNG files of one colour each: the class in red, the image in green."""
    for label, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for number in range(each):
            Image.new("RGB", (20, 10), (100 * label, 10 * number, 7)).save(folder / name / f"{number}.png")
    return folder


def test_digits_are_the_real_scans_made_larger():
    datasets = pytest.importorskip("sklearn.datasets")
    images, data = resolve_images("digits"), datasets.load_digits()
    assert images.shape == (1, 32, 32)
    assert (len(images.train.labels), len(images.heldout.labels)) == (1438, 359)
    assert images.augmentation == Augmentation()
    order = shuffled(1797, "split", SPLIT_SEED)
    held = np.sort(order[:359])
    assert np.array_equal(images.heldout.labels, data.target[held])
    small = images.heldout.pixels[:, 0].reshape(-1, 8, 4, 8, 4).mean(axis=(2, 4))
    # The mean of an enlarged pixel is near the pixel itself.
    real = data.images[held] * (255 / 16)
    assert np.corrcoef(small.ravel(), real.ravel())[0, 1] > 0.97
    assert set(images.train.labels) == set(range(10))
    first, again = resolve_images("digits", size=16), resolve_images("digits", size=16)
    assert first.shape == (1, 16, 16)
    assert np.array_equal(first.train.pixels, again.train.pixels)
    assert first.hash == again.hash != images.hash


def test_batches_are_normalised():
    pytest.importorskip("sklearn")
    images = resolve_images("digits", size=8)
    batch = images.batch(images.train.pixels, images.train.labels)
    assert batch.images.dtype == torch.float32
    assert abs(float(batch.images.mean())) < 1e-3
    assert float(batch.images.std()) == pytest.approx(1, abs=1e-3)
    assert batch.tokens is batch.images
    assert torch.equal(batch.targets, batch.labels[:, None])


def test_every_epoch_has_every_image_once_in_another_order():
    loader = ImageLoader(numbered(), 5, seed=3)
    epochs = [torch.cat([loader.next().labels for _ in range(2)]).tolist() for _ in range(3)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 3
    other = ImageLoader(numbered(), 5, seed=4)
    assert torch.cat([other.next().labels for _ in range(2)]).tolist() != epochs[0]


def test_a_batch_reaches_into_the_next_epoch():
    whole, pieces = ImageLoader(numbered(), 10, seed=1), ImageLoader(numbered(), 4, seed=1)
    expected = torch.cat([whole.next().labels for _ in range(2)])
    assert torch.equal(torch.cat([pieces.next().labels for _ in range(5)]), expected)


def test_labels_go_with_their_images():
    images = numbered()
    batch = ImageLoader(images, 7).next()
    mean, deviation = images.statistics
    pixels = batch.images[:, 0, 0, 0] * float(deviation.item()) + float(mean.item())
    assert torch.equal((pixels * 255).round().long(), batch.labels)


def test_a_loader_goes_on_where_its_state_was_taken():
    images = numbered(augmentation=Augmentation(flip=True, padding=1))
    loader = ImageLoader(images, 3, seed=2)
    for _ in range(5):
        loader.next()
    state = loader.state()
    expected = [loader.next() for _ in range(4)]
    again = ImageLoader(images, 3, seed=2)
    again.load(state)
    for batch in expected:
        found = again.next()
        assert torch.equal(found.images, batch.images)
        assert torch.equal(found.labels, batch.labels)


def test_a_state_of_something_else_is_refused():
    state = ImageLoader(numbered(), 3, seed=2).state()
    with pytest.raises(LeadlineError, match="another seed"):
        ImageLoader(numbered(), 3, seed=3).load(state)
    with pytest.raises(LeadlineError, match="another data"):
        ImageLoader(numbered(), 3, seed=2).load({**state, "data": 5})
    with pytest.raises(LeadlineError, match="broken"):
        ImageLoader(numbered(), 3, seed=2).load({**state, "index": 10})
    with pytest.raises(UsageError, match="batch_size=0 is too small"):
        ImageLoader(numbered(), 0)


def test_augmentation_flips_and_cuts_as_it_is_told():
    image = np.arange(1, 13, dtype=np.uint8).reshape(1, 1, 3, 4)
    how = Augmentation(flip=True, padding=1)
    same, flipped, moved = (augmented(image, how, np.array([draw])) for draw in ((0, 1, 1), (1, 1, 1), (0, 0, 2)))
    assert np.array_equal(same, image)
    assert np.array_equal(flipped, image[..., ::-1])
    assert moved[0, 0].tolist() == [[0, 0, 0, 0], [2, 3, 4, 0], [6, 7, 8, 0]]
    assert np.array_equal(augmented(image, Augmentation(padding=1), np.array([(1, 1, 1)])), image)


def test_augmentation_is_drawn_anew_in_every_epoch_from_the_seed():
    images = numbered(4, augmentation=Augmentation(flip=True, padding=3))
    images.train.pixels[:] = np.arange(16, dtype=np.uint8).reshape(4, 4)

    def epochs(seed):
        loader = ImageLoader(images, 4, seed)
        seen = []
        for _ in range(3):
            batch = loader.next()
            seen.append(batch.images[batch.labels.argsort()])
        return seen

    first, again, other = epochs(0), epochs(0), epochs(1)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[0][0], first[0][1])
    loader = ImageLoader(images, 4, augmentation=Augmentation())
    assert torch.equal(loader.next().images[0], loader.next().images[1])


def test_images_are_cut_anywhere_and_half_of_them_flipped():
    pixels = np.zeros((400, 1, 5, 5), dtype=np.uint8)
    pixels[:, 0, 2, 2] = 255  # where the middle ends up tells where the image was cut
    images = dataclasses.replace(numbered(400), train=HeldImages(pixels, np.arange(400)))
    batch = ImageLoader(images, 400, augmentation=Augmentation(padding=2)).next()
    places = batch.images.flatten(1).argmax(dim=1)
    counts = places.bincount(minlength=25)
    assert len(counts) == 25
    assert counts.min() > 4
    pixels[:, 0, 2] = np.arange(5, dtype=np.uint8)
    rows = ImageLoader(images, 400, augmentation=Augmentation(flip=True)).next().images[:, 0, 2]
    assert 150 < int((rows[:, 0] > rows[:, 4]).sum()) < 250


def test_held_out_images_come_in_order_and_whole():
    images = numbered(augmentation=Augmentation(flip=True, padding=2), heldout=10)
    batches = list(evaluation_images(images, 4))
    assert [len(batch.labels) for batch in batches] == [4, 4, 2]
    assert torch.cat([batch.labels for batch in batches]).tolist() == list(range(10))
    assert torch.cat([b.labels for b in evaluation_images(images, 4, limit=3)]).tolist() == [0, 3, 6]
    assert spread(5, 100).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", ["cifar10", "cifar100"])
def test_cifars_binary_files_are_read(tmp_path, kind):
    written = write_cifar(tmp_path, kind)
    images = resolve_images(str(tmp_path))
    *train, heldout = written.values()
    assert images.name == kind
    assert np.array_equal(images.train.pixels, np.concatenate([pixels for pixels, _ in train]))
    assert np.array_equal(images.train.labels, np.concatenate([labels for _, labels in train]))
    assert np.array_equal(images.heldout.pixels, heldout[0])
    assert np.array_equal(images.heldout.labels, heldout[1])
    assert images.classes[:1] == (("airplane",) if kind == "cifar10" else ("class_0",))
    assert len(images.classes) == (10 if kind == "cifar10" else 100)
    assert images.augmentation == Augmentation(flip=True, padding=4)
    assert images.shape == (3, 32, 32)


@pytest.mark.parametrize(("file", "archive"), [("data_batch_1", "cifar-10-binary"), ("train", "cifar-100-binary")])
def test_pickles_are_refused_with_what_works(tmp_path, file, archive):
    (tmp_path / file).write_bytes(b"never read")
    with pytest.raises(UsageError, match=rf"pickles \({file}\).*run code.*{archive}\.tar\.gz, works"):
        resolve_images(str(tmp_path))


def test_damaged_cifar_is_named(tmp_path):
    write_cifar(tmp_path)
    whole = (tmp_path / "data_batch_3.bin").read_bytes()
    (tmp_path / "data_batch_3.bin").write_bytes(whole[:-1])
    with pytest.raises(LeadlineError, match=r"data_batch_3\.bin is damaged: its 9,218 bytes are not whole images"):
        resolve_images(str(tmp_path))
    (tmp_path / "data_batch_3.bin").write_bytes(b"\x0a" + whole[1:])
    with pytest.raises(LeadlineError, match="has the label 10, and there are 10 classes"):
        resolve_images(str(tmp_path))
    (tmp_path / "data_batch_3.bin").unlink()
    with pytest.raises(LeadlineError, match=r"can't read .*data_batch_3\.bin"):
        resolve_images(str(tmp_path))
    with pytest.raises(UsageError, match="does not fit CIFAR"):
        resolve_images(str(tmp_path), size=16)


def test_a_folder_has_a_class_in_each_sub_folder(tmp_path):
    write_folder(tmp_path / "pets")
    (tmp_path / "pets" / "cat" / "notes.txt").write_text("no image")
    images = resolve_images(str(tmp_path / "pets"), size=16)
    assert images.classes == ("cat", "dog")
    assert images.shape == (3, 16, 16)
    assert (len(images.train.labels), len(images.heldout.labels)) == (8, 2)
    assert not set(images.train.paths) & set(images.heldout.paths)
    for split in (images.train, images.heldout):
        pixels = split.read(np.arange(len(split.labels)))
        assert np.array_equal(pixels[:, 0, 0, 0], 100 * split.labels)
        assert pixels[:, 1, 8, 8].tolist() == [10 * int(path.stem) for path in split.paths]
    assert images.augmentation == Augmentation(flip=True, padding=2)
    assert resolve_images(str(tmp_path / "pets"), size=16).hash == images.hash


def test_a_folder_may_bring_its_split(tmp_path):
    write_folder(tmp_path / "train", each=3)
    write_folder(tmp_path / "val", each=2)
    images = resolve_images(str(tmp_path))
    assert images.classes == ("cat", "dog")
    assert (len(images.train.labels), len(images.heldout.labels)) == (6, 4)
    assert images.shape == (3, 64, 64)
    write_folder(tmp_path / "val", classes=("emu",))
    with pytest.raises(UsageError, match="train and val have different classes"):
        resolve_images(str(tmp_path))


def test_a_file_that_is_no_image_is_named(tmp_path):
    write_folder(tmp_path)
    (tmp_path / "dog" / "0.png").write_bytes(b"no picture")
    images = resolve_images(str(tmp_path))
    split = images.train if tmp_path / "dog" / "0.png" in images.train.paths else images.heldout
    with pytest.raises(LeadlineError, match=r"can't read the image .*0\.png"):
        split.read(np.arange(len(split.labels)))


def test_without_pillow_nothing_is_read(tmp_path, monkeypatch):
    write_folder(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    install = 'pip install "leadline[images]"'
    with pytest.raises(LeadlineError, match=f"--images {tmp_path} needs Pillow to read images: {re.escape(install)}"):
        resolve_images(str(tmp_path))


def test_what_is_not_there_is_told_with_what_works(tmp_path):
    works = "digits, a folder with CIFAR's .bin files, or a folder with a sub-folder of images for each class work"
    with pytest.raises(UsageError, match=f"is not a folder; {works}"):
        resolve_images(str(tmp_path / "nothing"))
    with pytest.raises(UsageError, match=r"cifar10 is not bundled; give the folder that cifar-10-binary\.tar\.gz"):
        resolve_images("cifar10")
    (tmp_path / "images.tar").write_bytes(b"")
    with pytest.raises(UsageError, match="unpack it and name the folder"):
        resolve_images(str(tmp_path / "images.tar"))
    (tmp_path / "only").mkdir()
    write_folder(tmp_path / "some", classes=("a", "b"))
    (tmp_path / "some" / "only").mkdir()
    with pytest.raises(UsageError, match=f"has no image in only; {works}"):
        resolve_images(str(tmp_path / "some"))
    with pytest.raises(UsageError, match="has 0 sub-folders"):
        resolve_images(str(tmp_path / "only"))
    with pytest.raises(UsageError, match="size=4 is out of range"):
        resolve_images("digits", size=4)


def test_sixteen_bits_of_grey_keep_their_range(tmp_path):
    """Pillow itself makes white of everything above 255."""
    write_folder(tmp_path)
    ramp = np.tile(np.array([0, 257 * 100, 65535], dtype=np.uint16).repeat(4), (12, 1))
    for name in ("cat", "dog"):
        for number in range(5):
            Image.fromarray(ramp).save(tmp_path / name / f"{number}.png")
    pixels = resolve_images(str(tmp_path), size=12).train.read(np.arange(1))
    assert pixels[0, :, 6, [1, 5, 10]].tolist() == [[0] * 3, [100] * 3, [255] * 3]


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_numbers_without_a_range_are_refused(tmp_path, dtype):
    write_folder(tmp_path)
    (tmp_path / "dog" / "0.png").unlink()
    Image.fromarray(np.full((12, 12), 0.5).astype(dtype)).save(tmp_path / "dog" / "0.tiff")
    images = resolve_images(str(tmp_path))
    split = images.train if tmp_path / "dog" / "0.tiff" in images.train.paths else images.heldout
    with pytest.raises(LeadlineError, match=r"can't read the image .*0\.tiff.*its mode [IF] says nothing of the range"):
        split.read(np.arange(len(split.labels)))
