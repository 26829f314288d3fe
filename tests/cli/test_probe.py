"""`leadline probe`: results and report for any kind of model, progress, and errors that name the option."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from html_structure import Structure

import leadline
from leadline.cli.main import main
from leadline.cli.probe import Arguments, run
from leadline.connections import Additive, Connection, MultiGate
from leadline.data.prepare import prepare
from leadline.data.tokenizers import ByteTokenizer
from leadline.errors import LeadlineError, UsageError
from leadline.experiments.probe import config as probe_config
from leadline.experiments.probe import measuring as probing
from leadline.experiments.probe.config import ProbeConfig
from leadline.experiments.probe.measuring import names_of
from leadline.models import AttentionConfig, Decoder, DecoderConfig, LayerConfig, MLPConfig
from leadline.norms import RMSNorm
from leadline.probes.measure_stack import PARTS
from leadline.repeating import repeating

TEXT = "We the people of the United States, in order to form a more perfect union. "


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text in bytes."""
    folder = tmp_path_factory.mktemp("text")
    for number in range(4):
        (folder / f"{number}.txt").write_text(TEXT * 12)
    prepare(str(folder), folder / "data", tokenizer="bytes", heldout=0.5)
    return folder / "data"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain decoder of three blocks, one of two with streams, and a Hugging Face model."""
    folder = tmp_path_factory.mktemp("models")
    decoder(folder / "plain", Additive(), blocks=3)
    decoder(folder / "streams", MultiGate(streams=2), blocks=2)
    hugging_face(folder / "llama")
    return folder


def decoder(folder: Path, connection: Connection, *, blocks: int) -> None:
    torch.manual_seed(0)
    norm = RMSNorm()
    layer = LayerConfig(
        attention=AttentionConfig(heads=2, kv_heads=2, head_dim=4),
        mlp=MLPConfig(hidden=8),
        attention_norm=norm,
        mlp_norm=norm,
    )
    config = DecoderConfig(
        vocab_size=256,
        dim=8,
        layers=(layer,) * blocks,
        connection=connection,
        final_norm=norm,
        context=16,
        tied=False,
    )
    Decoder(config).save(folder)
    ByteTokenizer().save(folder)


def hugging_face(folder: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=16,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    ByteTokenizer().save(folder)


def arguments(data: Path, out: Path, *found: Path, **more: Any) -> Arguments:
    return Arguments(models=found, out=out, **{"data": str(data), "tokens": 96, "batch_size": 2, **more})


def test_models_of_every_kind_stand_side_by_side(
    data: Path, models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "probe"
    folders = [models / name for name in ("plain", "streams", "llama")]
    assert run(arguments(data, out, *folders, json=tmp_path / "also.json")) == 0
    results = json.loads((out / "results.json").read_text())
    assert results == json.loads((tmp_path / "also.json").read_text())
    assert [found["name"] for found in results["models"]] == ["plain", "streams", "llama"]
    assert [found["kind"] for found in results["models"]] == ["leadline", "leadline", "hugging-face"]
    assert [found["probe"]["model"]["blocks"] for found in results["models"]] == [3, 2, 2]
    assert all(found["tokens"] == 96 and found["batches"] == 3 for found in results["models"])
    assert all(found["probe"][part] is not None for found in results["models"] for part in PARTS[:5])
    assert [found["probe"]["connection"] is None for found in results["models"]] == [False, False, True]
    assert results["leadline"] == leadline.__version__
    page = (out / "report.html").read_text()
    assert Structure(page).open == []
    assert 'id="stream-angles"' in page
    assert sorted(path.name for path in out.iterdir()) == ["report.html", "results.json"]
    said = capsys.readouterr()
    assert said.out.startswith("plain: 3 blocks, loss ")
    assert said.out.endswith(f"report: {out / 'report.html'}\n")
    assert "plain: activations, similarity, lens, batch 1 of 3" in said.err


def test_the_same_command_gives_the_same_numbers(data: Path, models: Path, tmp_path: Path) -> None:
    found = []
    for out in (tmp_path / "a", tmp_path / "b"):
        run(arguments(data, out, models / "plain", parts="ablation,lens"))
        found.append(json.loads((out / "results.json").read_text())["models"][0]["probe"])
    assert found[0] == found[1]
    assert found[0]["activations"] is None
    assert found[0]["lens"]["final"]["loss"] == pytest.approx(5.6, abs=0.3)


def test_ablation_reads_a_quarter_of_the_tokens_unless_told(data: Path, models: Path, tmp_path: Path) -> None:
    def tokens(**more: Any) -> tuple[int, int]:
        run(arguments(data, tmp_path / "out", models / "plain", parts="ablation,lens", tokens=256, **more))
        probe = json.loads((tmp_path / "out" / "results.json").read_text())["models"][0]["probe"]
        return probe["ablation"]["tokens"], probe["lens"]["tokens"]

    assert tokens() == (64, 256)
    assert tokens(ablation_tokens=128) == (128, 256)
    assert tokens(ablation_tokens=1) == (16, 256)
    assert tokens(ablation_tokens=48, batch_size=2) == tokens(ablation_tokens=48, batch_size=16) == (48, 256)


def test_a_run_s_own_record_of_the_gradient_is_shown(data: Path, tmp_path: Path) -> None:
    from leadline.training import RunConfig, train

    config = RunConfig.of(
        design="prenorm", data=str(data), blocks=2, context=16, batch_size=2, tokens=64, record_every=0
    )
    train(config, tmp_path / "run")
    run(arguments(data, tmp_path / "out", tmp_path / "run", parts="ablation"))
    (found,) = json.loads((tmp_path / "out" / "results.json").read_text())["models"]
    assert found["kind"] == "run"
    recorded = json.loads((tmp_path / "run" / "gradient.json").read_text())
    assert found["training_gradient"]["share"] == recorded["share"]
    assert 'id="training-share"' in (tmp_path / "out" / "report.html").read_text()


def test_a_repeated_block_s_share_stands_at_its_places(data: Path, tmp_path: Path) -> None:
    from leadline.training import RunConfig, train

    config = RunConfig.of(design="prenorm", data=str(data), blocks=3, context=16, batch_size=2, tokens=64, repeat="2x2")
    train(config, tmp_path / "run")
    run(arguments(data, tmp_path / "out", tmp_path / "run", parts="ablation"))
    (found,) = json.loads((tmp_path / "out" / "results.json").read_text())["models"]
    first, second, third = json.loads((tmp_path / "run" / "gradient.json").read_text())["share"]
    assert found["training_gradient"]["share"] == [first, second, third, second, third]
    assert 'id="share-against-removal"' in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": "0"}, "--tokens 0 is too small"),
        ({"tokens": "many"}, "--tokens 'many' is not a count"),
        ({"ablation_tokens": "1k"}, "--ablation-tokens 1,000 is more than --tokens; up to 96 work"),
        ({"context": 0}, "--context 0 is too small"),
        ({"context": 17}, "--context 17 is more than the 16 tokens that .*plain was made for"),
        ({"batch_size": 0}, "--batch-size 0 is too small"),
        ({"parts": "lense"}, "--parts lense: no such part; activations, .* or all work.*lens"),
        ({"parts": ","}, "--parts is empty"),
        ({"device": "abacus"}, "--device abacus can't be used here"),
        ({"data": "nowhere"}, "nowhere"),
        ({"layers": "model.layers"}, "--layers"),
    ],
)
def test_bad_options(
    data: Path, models: Path, tmp_path: Path, options: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"data": data, "tokens": 96, "batch_size": 2, **options}
    words = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    assert main(["probe", str(models / "plain"), "--out", str(tmp_path / "out"), *words]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def test_where_blocks_are_is_said_to_hugging_face_models_alone(data: Path, models: Path, tmp_path: Path) -> None:
    asked = arguments(data, tmp_path / "out", models / "plain", models / "llama", parts="activations")
    assert run(dataclasses.replace(asked, layers="model.layers")) == 0
    with pytest.raises(UsageError, match=r"--layers model\.layers is for Hugging Face models, and there is none here"):
        run(dataclasses.replace(asked, models=asked.models[:1], layers="model.layers", out=tmp_path / "none"))


def test_bad_places(data: Path, models: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere is not a folder"):
        run(arguments(data, tmp_path / "out", models / "plain", Path("nowhere")))
    with pytest.raises(UsageError, match="holds no model"):
        run(arguments(data, tmp_path / "out", tmp_path))
    with pytest.raises(UsageError, match="name a MODEL"):
        run(arguments(data, tmp_path / "out"))
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"--out .*file is a file"):
        run(arguments(data, tmp_path / "file", models / "plain"))


def test_an_earlier_probe_is_replaced_and_another_report_never(data: Path, models: Path, tmp_path: Path) -> None:
    asked = dataclasses.replace(arguments(data, tmp_path / "out", models / "plain"), parts="similarity")
    assert run(asked) == 0
    assert run(asked) == 0
    (tmp_path / "out" / "results.json").write_text('{"designs": []}')
    with pytest.raises(UsageError, match="holds a report of something else"):
        run(asked)
    assert (tmp_path / "out" / "results.json").read_text() == '{"designs": []}'


def test_one_of_several_that_fails_leaves_the_others(
    data: Path, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(stack: Any, *rest: Any, **more: Any) -> Any:
        if stack.blocks == 3:
            raise LeadlineError("the loss is not finite")
        return measured(stack, *rest, **more)

    measured = probing.measure_stack
    monkeypatch.setattr(probing, "measure_stack", measure)
    asked = arguments(data, tmp_path / "out", models / "plain", models / "streams", parts="activations")
    assert run(asked) == 1
    assert "plain: failed: the loss is not finite\nstreams: 2 blocks" in capsys.readouterr().out
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Failed: plain." in page
    assert 'id="block-rms"' in page
    with pytest.raises(LeadlineError, match="not finite"):
        run(arguments(data, tmp_path / "alone", models / "plain"))
    assert not (tmp_path / "alone").exists()


def test_one_of_several_that_runs_out_of_memory_leaves_the_others(
    data: Path, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(stack: Any, *rest: Any, **more: Any) -> Any:
        if stack.blocks == 3:
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB")
        return measured(stack, *rest, **more)

    measured = probing.measure_stack
    monkeypatch.setattr(probing, "measure_stack", measure)
    asked = arguments(data, tmp_path / "out", models / "streams", models / "plain", parts="activations")
    assert run(asked) == 1
    said = capsys.readouterr().out
    assert "streams: 2 blocks" in said
    assert "plain: failed: OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n" in said
    with pytest.raises(torch.OutOfMemoryError):
        run(arguments(data, tmp_path / "alone", models / "plain"))


@pytest.mark.parametrize("where", ["measure_stack", "write_report"])
def test_interrupted_it_leaves_nothing(
    data: Path,
    models: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    where: str,
) -> None:
    def stop(*rest: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(probing, where, stop)
    words = ["probe", str(models / "plain"), "--data", str(data), "--tokens", "32", "--parts", "activations"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 130
    assert not (tmp_path / "out").exists()
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.endswith("leadline: interrupted\n")


def test_parts() -> None:
    assert ProbeConfig().chosen_parts() == PARTS
    assert ProbeConfig(parts="ablation, activations").chosen_parts() == ("activations", "ablation")
    options = Path(probe_config.__file__).read_text()
    assert all(part in options[options.index("    parts: str") :][:200] for part in PARTS)


def test_the_command_repeats_the_arguments() -> None:
    asked = Arguments(models=(Path("a b"), Path("c")), out=Path("out"), tokens=8000, layers="model.h", json=Path("x"))
    assert repeating(["probe", "a b", "c"], asked, without=("models", "json")) == (
        "leadline probe 'a b' c --tokens 8k --layers model.h --out out"
    )


def test_names_are_as_long_as_it_takes() -> None:
    assert names_of([Path("x/a"), Path("x/b")]) == ["a", "b"]
    assert names_of([Path("x/runs/a"), Path("y/runs/a"), Path("b")]) == ["x/runs/a", "y/runs/a", "b"]
    assert names_of([Path("x/a"), Path("x/a")]) == ["a (1)", "a (2)"]


def test_an_untrained_model_is_said_to_guess_and_a_trained_one_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Five blocks on two thousand tokens: the text and the model from which wrong findings came."""
    from leadline.training import RunConfig, train

    (tmp_path / "text").mkdir()
    for number in range(8):
        words = " ".join(f"{TEXT}{number} {word}" for word in range(40))
        (tmp_path / "text" / f"{number}.txt").write_text(words)
    prepare(str(tmp_path / "text"), tmp_path / "data", tokenizer="bytes", heldout=0.5)
    shape = {"blocks": 5, "dim": 24, "heads": 2, "kv_heads": 2, "head_dim": 12, "hidden": 32}
    for name, steps, rate in (("untrained", 1, 1e-9), ("trained", 60, 0.01)):
        config = RunConfig.of(
            design="prenorm",
            data=str(tmp_path / "data"),
            **shape,
            context=32,
            batch_size=8,
            tokens=256 * steps,
            lr=rate,
            record_every=0,
        )
        train(config, tmp_path / name)
        assert run(arguments(tmp_path / "data", tmp_path / "out", tmp_path / name, tokens=2000)) == 0
        said = capsys.readouterr().out
        page = " ".join(Structure((tmp_path / "out" / "report.html").read_text()).text)
        guesses = name == "untrained"
        for text in (said, page):
            assert ("the loss is that of guessing among 256 tokens (ln 256 = 5.545)" in text) == guesses
        assert ("needed least" in said or "no block can be told" in said) != guesses
        assert not (guesses and "total ablation loss" in said)
        blocks = json.loads((tmp_path / "out" / "results.json").read_text())["models"][0]["probe"]["ablation"]["blocks"]
        ordered = sorted(zip(blocks["nats"], blocks["place_low"], blocks["place_high"], strict=True))
        # Places follow the values, and the one needed least is among those that are named.
        assert ordered[0][1] == 1
        assert ordered[-1][2] == 5
        assert all(low <= place <= high for place, (_, low, high) in enumerate(ordered, start=1))
