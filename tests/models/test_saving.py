"""Saving and loading: equal models, and errors that name the file."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from leadline.errors import LeadlineError
from leadline.models import Decoder, DecoderConfig
from leadline.norms import BHyT, NormConfig

MakeConfig = Callable[..., DecoderConfig]
Lively = Callable[..., Decoder]


def test_what_is_loaded_equals_what_was_saved(
    make_config: MakeConfig, connection: Any, norm: NormConfig, tokens: Tensor, tmp_path: Path, lively: Lively
) -> None:
    model = lively(make_config(connection=connection, norm=norm, tied=False), torch.float32)
    model.save(tmp_path / "model")
    loaded = Decoder.load(tmp_path / "model")
    assert loaded.config == model.config
    assert torch.equal(loaded(tokens), model(tokens))
    assert all(p.requires_grad for p in loaded.parameters())
    assert sorted(p.name for p in (tmp_path / "model").iterdir()) == ["config.json", "model.safetensors"]


@pytest.fixture
def folder(make_config: MakeConfig, tmp_path: Path) -> Path:
    Decoder(make_config()).save(tmp_path)
    return tmp_path


def test_tied_weights_are_saved_once(folder: Path) -> None:
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert [name for name in file.keys() if "embed" in name or "head" in name] == ["embed.weight"]  # noqa: SIM118


def test_files_are_readable_as_others_are(folder: Path) -> None:
    modes = {stat.S_IMODE((folder / name).stat().st_mode) for name in ("config.json", "model.safetensors")}
    assert len(modes) == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes(make_config: MakeConfig, tmp_path: Path, dtype: torch.dtype) -> None:
    model = Decoder(make_config(norm=BHyT()), dtype=dtype)
    model.save(tmp_path)
    kept, changed = Decoder.load(tmp_path), Decoder.load(tmp_path, dtype=torch.float32)
    assert {n: v.dtype for n, v in kept.state_dict().items()} == {n: v.dtype for n, v in model.state_dict().items()}
    assert {p.dtype for p in changed.parameters()} == {torch.float32}
    assert changed.blocks[0].mlp_norm.length.dtype == torch.int64


def test_saving_refreshes_the_constants(make_config: MakeConfig, tmp_path: Path) -> None:
    model = Decoder(make_config(norm=BHyT()))
    before = model.blocks[0].mlp_norm.c.clone()
    with torch.no_grad():
        model.blocks[0].attention.output.weight.mul_(3.0)
    model.save(tmp_path)
    assert torch.allclose(Decoder.load(tmp_path).blocks[0].mlp_norm.c, 9.0 * before)


def rewritten(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file({name: value.clone() for name, value in weights.items()}, folder / "model.safetensors")


def edited(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads((folder / "config.json").read_text())
    change(data)
    (folder / "config.json").write_text(json.dumps(data))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "config.json").unlink(), r"config\.json is missing"),
        (lambda f: (f / "model.safetensors").unlink(), r"model\.safetensors is missing"),
        (lambda f: truncate(f / "config.json"), r"config\.json is damaged"),
        (lambda f: (f / "config.json").write_bytes(b"\xff\xfe"), r"config\.json is damaged"),
        (lambda f: (f / "config.json").write_text("[]"), r"config\.json is damaged: it should hold an object"),
        (lambda f: (f / "config.json").write_text("[" * 5000), r"config\.json is damaged"),
        (
            lambda f: edited(f, lambda d: d.update(layers={"a": [[]]})),
            r"config\.json is not a configuration of a decoder",
        ),
        (lambda f: edited(f, lambda d: d.update(connection={"kind": []})), r"config\.json.*unknown kind"),
        (
            lambda f: (f / "config.json").write_text('{"model_type": "llama"}'),
            r"config\.json is not a .*model_type",
        ),
        (lambda f: edited(f, lambda d: d.pop("context")), r"config\.json is not a configuration of a decoder.*context"),
        (lambda f: edited(f, lambda d: d["layers"][0]["mlp"].update(hidden=0)), r"config\.json.*layers\[0\]\.mlp"),
        (lambda f: edited(f, lambda d: d.update(connection={"kind": "x"})), r"config\.json.*unknown kind 'x'"),
        (lambda f: edited(f, lambda d: d.update(dim=20)), r"model\.safetensors doesn't fit.*20"),
        (lambda f: truncate(f / "model.safetensors"), r"model\.safetensors is damaged or incomplete"),
        (lambda f: (f / "model.safetensors").write_bytes(b""), r"model\.safetensors is damaged or incomplete"),
        (lambda f: rewritten(f, lambda w: w.pop("embed.weight")), r"model\.safetensors .* lacks embed\.weight"),
        (lambda f: rewritten(f, lambda w: w.update(x=torch.ones(1))), r"model\.safetensors .* has unknown x"),
        (lambda f: rewritten(f, lambda w: w.update({"embed.weight": torch.ones(3)})), r"embed\.weight is \[3\]"),
    ],
)
def test_damaged_folders(folder: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(folder)
    with pytest.raises(LeadlineError, match=message) as raised:
        Decoder.load(folder)
    assert str(folder) in str(raised.value)


def test_a_folder_that_can_not_be_written(make_config: MakeConfig, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LeadlineError, match="can't write the model"):
        Decoder(make_config()).save(tmp_path / "file")
