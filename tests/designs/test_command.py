"""`leadline designs`: what it prints and writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leadline.cli.designs import Arguments, run
from leadline.designs import PARTS, resolve
from leadline.errors import UsageError


def test_lists_every_name_with_its_source(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(Arguments(json=tmp_path / "designs.json")) == 0
    printed = capsys.readouterr().out
    for part in PARTS.values():
        assert any(line.split()[:1] == [part.name] and part.source in line for line in printed.splitlines())
    listed = json.loads((tmp_path / "designs.json").read_text())
    assert [one["name"] for one in listed] == list(PARTS)
    assert listed[list(PARTS).index("mgr")]["options"]["streams"] == 4


def test_shows_one_design(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(Arguments(design="bhyt + mgr(streams=8)", json=tmp_path / "one.json")) == 0
    printed = capsys.readouterr().out
    assert "mgr-competitive(streams=8) + bhyt" in printed
    assert "FLOPs per token" in printed
    assert "Note: BHyT's norm before the MLP is exact here" in printed
    shown = json.loads((tmp_path / "one.json").read_text())
    assert shown["connection"]["streams"] == 8
    assert shown["norm"]["approximate"] is False
    assert shown["parameters"]["total"] == sum(v for k, v in shown["parameters"].items() if k != "total")
    assert shown["flops_per_token"]["training_total"] > 0


def test_presets_and_vocabulary(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Arguments(design="prenorm", preset="s", vocab_size=1000)) == 0
    assert "S: 12 blocks of width 768" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (Arguments(design="prenrom"), "Did you mean prenorm"),
        (Arguments(design="prenorm", preset="XL"), "preset 'XL'"),
        (Arguments(design="prenorm", vocab_size=0), "vocab_size=0"),
    ],
)
def test_wrong_names_are_errors(arguments: Arguments, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run(arguments)


def test_shows_a_taper_and_the_notes_on_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = Arguments(design="cascade-a1", blocks=15, dim=96, heads=6, json=tmp_path / "one.json")
    assert run(arguments) == 0
    printed = capsys.readouterr().out
    assert "heads=1:1/2" in printed
    assert "Note: heads by layer: 6 in 1–8, 3 in 9–15." in printed
    assert "15 blocks of width 96" in printed
    shown = json.loads((tmp_path / "one.json").read_text())
    assert [layer["heads"] for layer in shown["taper"]["layers"]] == [6] * 8 + [3] * 7


def test_equal_flops(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = Arguments(design="cascade-a2", equal="prenorm", tokens="512k", json=tmp_path / "equal.json")
    assert run(arguments) == 0
    found = json.loads((tmp_path / "equal.json").read_text())
    assert found["by"] == "tokens"
    assert abs(found["residual"]) < 0.01
    assert found["reference"]["tokens"] == 512_000 < found["variant"]["tokens"]
    assert f"{found['variant']['tokens']:,}" in capsys.readouterr().out
    with pytest.raises(UsageError, match="needs the design to solve for"):
        run(Arguments(equal="prenorm"))
    with pytest.raises(UsageError, match="--by and --tokens belong to --equal"):
        run(Arguments(design="cascade-a2", tokens="512k"))


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("mgr", "Four streams; the gates"),
        ("mgr(streams=8) + bhyt", "Eight streams; the gates"),
        ("mgr-independent(streams=2)", "Two streams, each with its own gate."),
        ("mgr(streams=1)", "One stream; the gates"),
        ("hc(streams=16)", "16 streams, mixed by"),
        ("attnres-block(blocks=4)", "about four block sums"),
        ("attnres", "Every sublayer attends over all outputs before it."),
        ("attnres(block_size=2)", "attends over all sums of two outputs before it."),
        ("attnres(window=3)", "attends over the embedding and the last three outputs before it."),
        ("mix-ln", "Post-norm in the first quarter of the blocks"),
        ("mix-ln(share=0.4, norm=layernorm)", "Post-norm (LayerNorm) in the first 40\u00a0% of the blocks"),
        ("post-ln(norm=rmsnorm)", "RMSNorm on the stream after every sublayer"),
        ("peri-ln", "A norm before and after every sublayer, and on the embedding."),
        ("peri-ln(embedding_norm=false)", "A norm before and after every sublayer."),
    ],
)
def test_a_description_follows_the_options(expression: str, said: str) -> None:
    assert said in resolve(expression).summary


def test_a_rate_that_was_not_tuned_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    run(Arguments(design="hc", preset="1B"))
    assert "not tuned at this size" in " ".join(capsys.readouterr().out.split())
    run(Arguments(design="hc"))
    assert "not tuned" not in capsys.readouterr().out
