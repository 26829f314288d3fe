"""The table of bad inputs: what is typed, what was broken before, and what the program must say.

`{...}` in a command stands for a place that `Place` makes: `{data}` a data set, `{run}` a finished run, `{text}` a
folder of text files. `TINY` are options that make a model so small that it trains in a moment.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

TINY = "--blocks 2 --context 16 --batch-size 2 --steps 2"
SAME = "--blocks 2 --context 16 --batch-size 2 --steps 4 --checkpoint-every 2"
NEWEST = "checkpoints/step-00000004"
BOX = "full helptext"
"""In what the option parser prints in place of our one line."""


@dataclass(frozen=True)
class Place:
    """A folder of one test's own, in which commands run; things are copied into it when they are asked for.

    Attributes:
        here: the folder.
        ready: holds `data`, `run` and `text`, which are never changed.
    """

    here: Path
    ready: Path

    def get(self, name: str) -> Path:
        """A copy of `data`, `run` or `text` in this folder."""
        if not (self.here / name).exists():
            shutil.copytree(self.ready / name, self.here / name)
        return self.here / name

    def write(self, name: str, content: bytes | str) -> Path:
        """A file in this folder."""
        path = self.here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path


Setup = Callable[[Place], object]


@dataclass(frozen=True)
class Bad:
    """One bad input.

    Attributes:
        command: what follows `leadline`.
        says: words that the message must hold, in any order.
        code: the exit code.
        setup: what to do before.
    """

    command: str
    says: tuple[str, ...]
    code: int = 2
    setup: Setup | None = field(default=None)


def write(name: str, content: bytes | str) -> Setup:
    """Writes a file, also over one of a copy: `data/index.json`."""

    def setup(place: Place) -> None:
        _copied(place, name)
        place.write(name, content)

    return setup


def remove(name: str) -> Setup:
    """Removes a file or a folder of a copy."""

    def setup(place: Place) -> None:
        _copied(place, name)
        path = place.here / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return setup


def truncate(name: str, size: int) -> Setup:
    """Cuts a file of a copy."""

    def setup(place: Place) -> None:
        _copied(place, name)
        path = place.here / name
        path.write_bytes(path.read_bytes()[:size])

    return setup


def replace(name: str, old: str, new: str) -> Setup:
    """Replaces text in a file of a copy."""

    def setup(place: Place) -> None:
        _copied(place, name)
        path = place.here / name
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")

    return setup


def both(*setups: Setup) -> Setup:
    """One after the other."""

    def setup(place: Place) -> None:
        for one in setups:
            one(place)

    return setup


def unsummed(setup: Setup) -> Setup:
    """In a checkpoint of an earlier version, which has no checksums."""
    return both(setup, remove(f"run/{NEWEST}/checksums.json"))


def folder(name: str) -> Setup:
    """Makes an empty folder."""
    return lambda place: (place.here / name).mkdir(parents=True)


def other_bytes(place: Place) -> None:
    """Changes one byte of a shard."""
    path = place.get("data") / "train-00000.bin"
    content = bytearray(path.read_bytes())
    content[7] ^= 1
    path.write_bytes(content)


def _copied(place: Place, name: str) -> None:
    first = name.split("/", 1)[0]
    if first in ("data", "run", "text"):
        place.get(first)


unfinished = remove("run/summary.json")
COUNT = ("is not a count", "20k")
BELOW = ("lies below", "which is a file")

VERBS = {
    "no verb": Bad("", ("usage: leadline VERB",)),
    "an unknown verb": Bad("comprae", ("unknown verb 'comprae'", "Did you mean compare")),
    "an option for a verb": Bad("--fast", ("unknown verb '--fast'", "train")),
    "an unknown option": Bad("compare --fast", ("--fast", "leadline compare")),
    "an unknown option of env": Bad("env --fast", ("--fast", "leadline env")),
    "a missing option": Bad("train prenorm --data {data}", ("--out", BOX)),
    "words too many": Bad("designs prenorm mgr", ("mgr", BOX)),
    "no action": Bad("data", ("prepare, fetch, verify", BOX)),
    "an unknown action": Bad("data cook", ("cook", "prepare, fetch, verify")),
    "json onto a folder": Bad("env --json {data}", ("--json", "is a folder; name a file")),
    "json below a file": Bad("env --json {text}/0.txt/env.json", ("--json", *BELOW)),
    "json onto a device": Bad("designs --json /dev/null", ("--json /dev/null", "not an ordinary file")),
    "json where nothing can be made": Bad("env --json /proc/env.json", ("/proc/env.json", "No such file"), 1),
    "json onto a folder, before the training": Bad(
        f"train prenorm --data {{data}} {TINY} --out out --json {{text}}", ("--json", "is a folder; name a file")
    ),
    "json onto a folder, before the text": Bad("generate {run} --json {text}", ("--json", "is a folder")),
}

DESIGNS = {
    "an unknown design": Bad("designs prenrom", ("'prenrom' is not known", "Did you mean prenorm", "mgr")),
    "an unknown option": Bad('designs "mgr(streems=3)"', ("no option 'streems'", "Did you mean streams?")),
    "a bracket left open": Bad('designs "mgr(streams=3"', ("can't be read", "NAME(option=value")),
    "a plus without a part": Bad('designs "prenorm +"', ("can't be read", "joined by +")),
    "nothing": Bad('designs ""', ("the design is empty",)),
    "an option twice": Bad('designs "mgr(streams=2, streams=3)"', ("streams twice",)),
    "an option without a value": Bad('designs "mgr(streams)"', ("write option=value", "gate")),
    "two connections": Bad('designs "mgr + hc"', ("mgr and hc are both connections", "keep mgr or hc")),
    "two norms": Bad('designs "bhyt + dyt"', ("bhyt and dyt are both norms",)),
    "no streams": Bad('designs "mgr(streams=0)"', ("streams=0", "at least 1")),
    "half a stream": Bad('designs "hc(streams=3.5)"', ("'3.5' should be a whole number",)),
    "an unknown choice": Bad('designs "mgr(gate=open)"', ("'open' is not known", "competitive, independent")),
    "permutations too many": Bad('designs "mhc-lite(streams=6)"', ("720 permutations", "streams=5", "sinkhorn")),
    "a share out of range": Bad('designs "mix-ln(share=2)"', ("share=2.0", "between 0 and 1")),
    "a probability out of range": Bad('designs "bhyt(probability=1.5)"', ("probability=1.5", "between 0 and 1")),
    "not a number": Bad('designs "layerscale(start=nan)"', ("'nan' should be a finite number",)),
    "infinity": Bad('designs "dyt(alpha=inf)"', ("'inf' should be a finite number",)),
    "an unknown preset": Bad("designs --preset huge", ("preset 'huge' is not known", "tiny, S, M, L")),
    "no vocabulary": Bad("designs prenorm --vocab-size 0", ("--vocab-size 0", "at least 1")),
    "a vocabulary too large": Bad("designs prenorm --vocab-size 99999999999999999999", ("--vocab-size", "too large")),
    "a vocabulary in words": Bad("designs prenorm --vocab-size ten", ("--vocab-size", "'ten'")),
}

PREPARE = {
    "no input": Bad("data prepare --out out", ("no input",)),
    "an empty name": Bad('data prepare "" --out out', ("an input is empty",)),
    "an input that is not there": Bad("data prepare books.txt --out out", ("books.txt does not exist",)),
    "a glob without a match": Bad('data prepare "b*.txt" --out out', ("no file matches b*.txt",)),
    "an unknown extension": Bad("data prepare a.docx --out out", ("'.docx'", ".jsonl.gz"), setup=write("a.docx", "x")),
    "an empty folder": Bad("data prepare in --out out", ("in holds no file", ".txt"), setup=folder("in")),
    "an empty file": Bad("data prepare a.txt --out out", ("input is empty",), 1, write("a.txt", "")),
    "not UTF-8": Bad(
        "data prepare a.txt --out out", ("a.txt is not UTF-8", "0xff at offset 3"), 1, write("a.txt", b"abc\xff")
    ),
    "UTF-16": Bad(
        "data prepare a.txt --out out", ("a.txt is not UTF-8", "UTF-16"), 1, write("a.txt", "text".encode("utf-16"))
    ),
    "no gzip": Bad("data prepare a.txt.gz --out out", ("a.txt.gz is a broken gzip",), 1, write("a.txt.gz", "text")),
    "half a gzip": Bad(
        "data prepare a.txt.gz --out out",
        ("a.txt.gz is a broken gzip file", "ended before"),
        1,
        write("a.txt.gz", gzip.compress(bytes(range(128)) * 9)[:60]),
    ),
    "a broken line": Bad(
        "data prepare a.jsonl --out out", ("a.jsonl, line 2 is not JSON",), 1, write("a.jsonl", '{"text": "a"}\n{"te')
    ),
    "a missing field": Bad(
        "data prepare a.jsonl --out out", ("line 1 has no field 'text'", "body", "--field"), 1,
        write("a.jsonl", '{"body": "a"}\n'),
    ),
    "a field that is no text": Bad(
        "data prepare a.jsonl --out out", ("line 1: the field 'text' is int",), 1, write("a.jsonl", '{"text": 5}\n')
    ),
    "a broken parquet": Bad("data prepare a.parquet --out out", ("a.parquet", "parquet"), 1, write("a.parquet", "x")),
    "a share out of range": Bad("data prepare {text} --out out --heldout 1.5", ("--heldout 1.5", "from 0")),
    "everything held out": Bad(
        "data prepare {text} --out out --heldout-last 99", ("--heldout-last 99", "nothing to train on"), 1
    ),
    "a malformed count": Bad("data prepare {text} --out out --limit-tokens few", ("--limit-tokens 'few'", *COUNT)),
    "held out too many": Bad(
        f"data prepare {{text}} --out out --heldout-last {10**30}",
        ("--heldout-last", "too large"),
    ),
    "a seed of 80 bits": Bad(f"data prepare {{text}} --out out --seed {2**80}", ("--seed", "64 bits")),
    "a separator token for bytes": Bad(
        "data prepare {text} --out out --separator-token x", ("--separator-token", "tokenizer.json", "bytes")
    ),
    "no separator": Bad('data prepare {text} --out out --separator ""', ("--separator is empty",)),
    "an unknown dtype": Bad("data prepare {text} --out out --dtype int4", ("'int4'", "uint16", BOX)),
    "a dtype too small": Bad(
        "data prepare {text} --out out --dtype uint8 --tokenizer bpe:260", ("--dtype uint8", "uint16, uint32")
    ),
    "BPE too small": Bad("data prepare {text} --out out --tokenizer bpe:10", ("bpe:10 is too small", "bpe:257")),
    "BPE too large": Bad("data prepare {text} --out out --tokenizer bpe:99999", ("gives only", "--tokenizer bpe:"), 1),
    "BPE far too large": Bad(f"data prepare {{text}} --out out --tokenizer bpe:{10**30}", ("--tokenizer", "too large")),
    "BPE in words": Bad("data prepare {text} --out out --tokenizer bpe:many", ("--tokenizer bpe:many", "bpe:2048")),
    "no tokenizer": Bad("data prepare {text} --out out --tokenizer words", ("no tokenizer at words", "bpe:2048")),
    "something else as tokenizer": Bad(
        "data prepare {text} --out out --tokenizer {text}/0.txt", ("text/0.txt is not a tokenizer.json",), 1
    ),
    "an unknown separator token": Bad(
        'data prepare {text} --out out --tokenizer {data} --separator-token "<x>"', ("no token <x>",)
    ),
    "out is a file": Bad("data prepare {text} --out {text}/0.txt", ("--out", "is a file; name a folder")),
    "out is below a file": Bad("data prepare {text} --out {text}/0.txt/out", ("--out", *BELOW)),
    "out is something else": Bad("data prepare {text} --out {run} --overwrite", ("--out", "not a data set")),
    "out is a data set": Bad("data prepare {text} --out {data}", ("--out", "already holds", "--overwrite")),
    "out cannot be made": Bad("data prepare {text} --out /proc/out", ("--out /proc/out could not be written",), 1),
    "an unknown name": Bad("data fetch stou --out out", ("unknown data set 'stou'", "Did you mean sotu?")),
    "a share out of range, fetched": Bad("data fetch sotu --out out --heldout 7", ("--heldout 7", "from 0")),
}  # fmt: skip

VERIFY = {
    "not there": Bad("data verify data", ("no data set at data", "leadline data prepare")),
    "something else": Bad("data verify {text}", ("not a prepared data set", "index.json")),
    "a truncated shard": Bad("data verify data", ("train-00000.bin is truncated", "prepare"), 1,
                             truncate("data/train-00000.bin", 100)),
    "a shard that is not there": Bad("data verify data", ("train-00000.bin is missing",), 1,
                                     remove("data/train-00000.bin")),
    "another byte": Bad("data verify data", ("train-00000.bin is damaged", "checksum"), 1, other_bytes),
    "another format": Bad("data verify data", ("format 9", "reads format 1"),
                          setup=replace("data/index.json", '"format": 1', '"format": 9')),
    "an index of another kind": Bad("data verify data", ("index.json is damaged", "lacks name, hash"), 1,
                                    write("data/index.json", '{"format": 1}')),
    "an index that is no JSON": Bad("data verify data", ("index.json cannot be read",), 1,
                                    write("data/index.json", b"\xff\xfe{")),
    "an index with other counts": Bad("data verify data", ("index.json is damaged", "hash"), 1,
                                      replace("data/index.json", '"documents": 6', '"documents": 7')),
    "another tokenizer": Bad("data verify data", ("wrong tokenizer", "tokenizer.json", "prepare the data again"), 1,
                             both(replace("data/tokenizer.json", "endoftext", "endofline"),
                                  replace("data/tokenizer_config.json", "endoftext", "endofline"))),
    "no tokenizer": Bad("data verify data", ("tokenizer.json is missing",), 1, remove("data/tokenizer.json")),
}  # fmt: skip


def _train(options: str, *says: str, code: int = 2, setup: Setup | None = None) -> Bad:
    return Bad(f"train prenorm --data {{data}} {TINY} --out out {options}", says, code, setup)


def _resume(*says: str, code: int = 1, setup: Setup, options: str = SAME) -> Bad:
    return Bad(f"train prenorm --data {{data}} {options} --out {{run}}", says, code, setup)


TRAIN = {
    "no steps": _train("--steps 0", "--steps 0", "1 or more"),
    "a malformed count": _train("--steps many", "--steps 'many'", *COUNT),
    "steps too many": _train("--steps 9e99", "--steps '9e99'", "1e+18 at most"),
    "a batch too large": _train("--batch-size 10000000000000", "--batch-size", "too large"),
    "half a token": Bad("train prenorm --data {data} --tokens 1.5 --out out", ("--tokens '1.5'", "whole number")),
    "two lengths": _train("--tokens 64", "--tokens 64 and --steps", "give one"),
    "a rate below zero": _train("--lr -1", "--lr -1", "more than 0"),
    "a rate that is no number": _train("--lr fast", "--lr", "'fast'", BOX),
    "a share out of range": _train("--warmup 2", "--warmup 2", "from 0 to 1"),
    "two shares": _train("--schedule wsd --warmup 0.5 --decay 0.8", "--warmup 0.5 and --decay 0.8"),
    "a decay that nothing reads": _train("--decay 0.5", "--decay 0.5", "without --schedule wsd"),
    "the usual decay too": _train("--decay 0.2", "--decay 0.2", "without --schedule wsd"),
    "momentum without sgd": _train("--momentum 0.9", "--momentum 0.9", "without --optimizer sgd"),
    "no decay of embeddings": _train("--weight-decay 0 --decay-embeddings", "--decay-embeddings", "--weight-decay 0"),
    "a summary nowhere": _train("--json /proc/a/b.json", "--json /proc/a/b.json", "cannot be written", code=1),
    "no gradient": _train("--clip 0", "--clip 0", "more than 0"),
    "a seed below zero": _train("--seed -1", "--seed -1", "0 or more"),
    "no batch": _train("--batch-size 0", "--batch-size 0", "1 or more"),
    "no context": _train("--context 0", "--context 0", "1 or more"),
    "a context longer than the text": _train("--context 99999", "too short for one sequence", "--context"),
    "parts that do not divide": _train("--accumulation 3", "--grad-accumulation 3", "batch size of 2"),
    "no blocks": _train("--blocks 0", "--blocks 0", "1 to 16384"),
    "no checkpoints": _train("--keep 0", "--keep 0", "1 or more"),
    "a record below zero": _train("--record-every -1", "--record-every -1", "0 or more"),
    "an unknown device": _train("--device abacus", "--device abacus", "cpu"),
    "a device that holds nothing": _train("--device meta", "--device meta", "cpu"),
    "an unknown precision": _train("--precision half", "'half'", "bfloat16", BOX),
    "an unknown preset": _train("--preset huge", "preset 'huge'", "tiny"),
    "nothing to go on from": _train("--resume previous", "--resume previous", "0 of the 2 checkpoints"),
    "an unknown design": Bad(f"train mgrr --data {{data}} {TINY} --out out", ("'mgrr' is not known", "mgr")),
    "no data": Bad(f"train prenorm --data books {TINY} --out out", ("no data set at books", "leadline data prepare")),
    "an unknown name as data": Bad(f"train prenorm --data stou {TINY} --out out", ("--data stou", "mean sotu?")),
    "data that must be fetched": Bad(f"train prenorm --data c4 {TINY} --out out", ("leadline data fetch c4",)),
    "text as data": Bad(f"train prenorm --data {{text}} {TINY} --out out", ("not a prepared data set", "prepare")),
    "truncated data": _train("", "heldout-00000.bin is truncated", code=1, setup=truncate("data/heldout-00000.bin", 9)),
    "out is a file": _train("--out {text}/0.txt", "--out", "is a file; name a folder"),
    "out is below a file": _train("--out {text}/0.txt/out", "--out", *BELOW),
    "out is something else": _train("--out {text}", "--out", "holds something that is not a Leadline run"),
    "out cannot be made": _train("--out /proc/out", "--out /proc/out", "No such file", code=1),
    "another length": _resume("--tokens 128, not 64", "another folder", code=2, options=TINY, setup=unfinished),
    "another seed": _resume("--seed 0, not 1", code=2, options=f"{SAME} --seed 1", setup=unfinished),
    "a run that is there": _resume("--resume never", code=2, options=f"{SAME} --resume never", setup=unfinished),
    "cut weights": _resume("model.safetensors is damaged", "--resume previous",
                           setup=both(unfinished, truncate(f"run/{NEWEST}/model.safetensors", 999))),
    "a cut optimiser": _resume("optimizer.safetensors is damaged", "--resume previous",
                               setup=both(unfinished, truncate(f"run/{NEWEST}/optimizer.safetensors", 300))),
    "no state": _resume("state.json is missing", "--resume previous",
                        setup=both(unfinished, remove(f"run/{NEWEST}/state.json"))),
    "half a state": _resume("state.json is damaged", "lacks seconds",
                            setup=both(unfinished, write(f"run/{NEWEST}/state.json", '{"step": 4}'))),
    "a step in words": _resume("state.json is damaged", "step should be int",
                               setup=both(unfinished, replace(f"run/{NEWEST}/state.json", '"step": 4', '"step": "4"'))),
    "a broken description": _resume("run.json", "Expecting", setup=write("run/run.json", "{")),
    "another description": _resume("run.json is damaged", setup=write("run/run.json", '{"config": [1]}')),
    "half a summary": _resume("summary.json is damaged", "remove it", setup=write("run/summary.json", "{}")),
}  # fmt: skip


def _generate(options: str, *says: str, code: int = 2, setup: Setup | None = None) -> Bad:
    return Bad(f"generate {{run}} {options}", says, code, setup)


GENERATE = {
    "no model": Bad("generate nowhere", ("nowhere is no folder", "MODEL")),
    "something else": Bad("generate {text}", ("not a run's folder", "run.json")),
    "no tokens": _generate("--tokens 0", "--tokens '0'", "1 or more"),
    "tokens too many": _generate("--tokens 9e30", "--tokens", "1e+18 at most"),
    "more tokens than fit": _generate("--tokens 9e15", "max_new_tokens", "too many"),
    "a temperature below zero": _generate("--temperature -1", "--temperature -1", "such as 0.8"),
    "no choice": _generate("--top-k 0", "--top-k 0", "such as 50"),
    "a probability out of range": _generate("--top-p 1.5", "--top-p 1.5", "such as 0.9"),
    "a seed of 80 bits": _generate(f"--seed {2**80}", "--seed", "64 bits"),
    "an unknown device": _generate("--device abacus", "--device abacus", "cpu"),
    "a device that holds nothing": _generate("--device meta", "--device meta", "cpu"),
    "a prompt that is no text": _generate('--prompt "\udcff"', "--prompt", "UTF-8"),
    "no checkpoint": _generate("", "holds no checkpoint yet", setup=remove("run/checkpoints")),
    "cut weights": _generate("", "model.safetensors is damaged", code=1,
                             setup=truncate(f"run/{NEWEST}/model.safetensors", 999)),
    "no weights": _generate("", "model.safetensors is missing", code=1,
                            setup=remove(f"run/{NEWEST}/model.safetensors")),
    "weights of another shape": _generate("", "embed.weight is [256, 72]", "[250, 72]", code=1,
                                          setup=unsummed(replace(f"run/{NEWEST}/config.json", ": 256", ": 250"))),
    "weights of another design": _generate("", "doesn't fit its config.json", code=1,
                                           setup=unsummed(
                                               replace(f"run/{NEWEST}/config.json", '"tied": true', '"tied": false'))),
    "an unknown key": _generate("", "config.json", "unknown key 'width'", "dim", code=1,
                                setup=replace(f"run/{NEWEST}/config.json", '"dim"', '"width"')),
    "heads that do not share": _generate("", "config.json", "kv_heads=2", "heads=3", code=1,
                                         setup=replace(f"run/{NEWEST}/config.json", '"kv_heads": 3', '"kv_heads": 2')),
    "a configuration that is no JSON": _generate("", "config.json", code=1,
                                                 setup=write(f"run/{NEWEST}/config.json", "")),
    "something else as tokenizer": _generate("", "tokenizer.json is not a tokenizer", code=1,
                                             setup=write("run/tokenizer.json", "{}")),
}  # fmt: skip


GENERATE_EARLY = {
    "an exit before the first block": _generate("--exit-block 0", "--exit-block 0", "at least 1"),
    "an exit behind the last block": _generate("--exit-block 2", "--exit-block 2", "this model has 2", "1"),
    "a confidence without an exit": _generate("--exit-confidence 0.9", "--exit-confidence needs --exit-block"),
    "a draft without an exit": _generate("--draft 4", "--draft needs --exit-block"),
    "a confidence above 1": _generate("--exit-block 1 --exit-confidence 2", "--exit-confidence 2", "such as 0.9"),
    "a confidence that is none": _generate("--exit-block 1 --exit-confidence nan", "--exit-confidence nan", "such as"),
    "no guesses": _generate("--exit-block 1 --draft 0", "--draft 0", "such as 4"),
    "two ways out": _generate("--exit-block 1 --draft 2 --exit-confidence 0.5", "give one of them"),
    "a Hugging Face model": Bad("generate hf", ("hf is a Hugging Face model", "Leadline's own"),
                                setup=write("hf/config.json", '{"model_type": "llama"}')),
}  # fmt: skip

FAN_IN = {
    "no repetition": _train("--repeat 2", "--repeat '2'", "4x2"),
    "a block once": _train("--repeat 1x1", "--repeat '1x1'", "twice"),
    "more blocks than there are": _train("--repeat 3x2", "--repeat 3x2", "this model has 2"),
    "always dropped": _train("--layer-dropout 1", "--layer-dropout 1", "less than 1"),
    "dropout that is no number": _train("--layer-dropout nan", "--layer-dropout nan", "less than 1"),
    "exits below zero": _train("--exit-loss -1", "--exit-loss -1", "0 or more"),
    "exits without end": _train("--exit-loss inf", "--exit-loss inf", "finite"),
    "a curriculum without exits": _train("--exit-curriculum all", "--exit-curriculum all", "without --exit-loss"),
    "turns without exits": _train("--exit-every 2", "--exit-every 2", "without --exit-loss"),
    "weights without exits": _train("--exit-weights depth", "--exit-weights depth", "without --exit-loss"),
    "turns in another curriculum": _train(
        "--exit-loss 1 --exit-curriculum all --exit-every 2", "--exit-every 2", "--exit-curriculum rotational"
    ),
    "no turns": _train("--exit-loss 1 --exit-every 0", "--exit-every 0", "1 or more"),
    "momentum for AdamW": _train("--momentum 0.5", "--momentum 0.5", "without --optimizer sgd"),
    "momentum above 1": _train("--optimizer sgd --momentum 2", "--momentum 2", "less than 1"),
    "an unknown optimizer": _train("--optimizer adam", "'adam'", "sgd", BOX),
    "a window before the start": _train("--gradient-from 0", "--gradient-from 0", "1 or more"),
    "a window after the end": _train("--gradient-from 9", "--gradient-from 9", "last step, 2"),
    "a window backwards": _train("--gradient-from 2 --gradient-until 1", "--gradient-from 2", "--gradient-until 1"),
    "records below zero": _train("--gradient-every -1", "--gradient-every -1", "0 or more"),
    "dropout compiled": _train("--compile --layer-dropout 0.5", "--layer-dropout", "--compile"),
    "too many blocks": _train("--blocks 99999999999", "--blocks 99999999999", "16384"),
}


def _prune(options: str, *says: str, code: int = 2, setup: Setup | None = None) -> Bad:
    return Bad(f"prune {{run}} --data {{data}} {options}", says, code, setup)


def _cut(options: str, *says: str, code: int = 2, setup: Setup | None = None) -> Bad:
    return _prune(f"--evaluate-tokens 32 --out out {options}", *says, code=code, setup=setup)


def _gradient(content: str, *says: str) -> Bad:
    return _cut("--criterion cfp --count 1", "run/gradient.json", *says, code=1,
                setup=write("run/gradient.json", content))  # fmt: skip


PRUNE = {
    "no model": Bad("prune --count 1 --criterion cfp --out out", ("MODEL is missing",)),
    "no such model": Bad("prune nowhere --count 1 --criterion cfp --out out", ("nowhere is not a folder", "MODEL")),
    "something else": Bad("prune {text} --count 1 --criterion cfp --out out", ("holds no model", "config.json")),
    "two models": Bad("prune {run} {data} --count 1 --criterion cfp --out out", ("2 models", "--sweep")),
    "no place": _prune("--criterion cfp --count 1", "--out is missing", "--dry-run"),
    "two places": _prune("--criterion cfp --count 1 --dry-run --out out", "--dry-run", "--out"),
    "no amount": _cut("--criterion cfp", "--ratio 0.25", "--count 6", "--blocks"),
    "two amounts": _cut("--criterion cfp --count 1 --ratio 0.5", "--ratio and --count", "give one"),
    "no criterion": _cut("--count 1", "--criterion is missing"),
    "a criterion for what is named": _cut("--criterion cfp --blocks 1", "--blocks", "--criterion", "give one"),
    "an unknown criterion": _cut("--criterion cpf --count 1", "--criterion cpf", "Did you mean cfp?"),
    "an empty criterion": _cut('--criterion "" --count 1', "--criterion ''", "cfp, similarity"),
    "everything by ratio": _cut("--criterion cfp --ratio 1", "--ratio 1", "less than 1"),
    "a ratio that is no number": _cut("--criterion cfp --ratio nan", "--ratio nan", "from 0"),
    "a ratio of none": _cut("--criterion cfp --ratio 0.1", "--ratio 0.1 of 2 blocks is none", "0.5"),
    "everything by count": _cut("--criterion cfp --count 2", "--count 2", "leaves nothing", "1 is the most"),
    "a count below zero": _cut("--criterion cfp --count -1", "--count -1", "0 or more"),
    "half a range": _cut("--blocks 1..", "'1..'", "3,5,8..10"),
    "a range backwards": _cut("--blocks 1..0", "1..0", "0..1 works"),
    "a range too long": _cut("--blocks 0..999", "0..999", "blocks 0 to 1"),
    "no blocks": _cut('--blocks ""', "--blocks has ''", "3,5,8..10"),
    "a block twice": _cut("--blocks 1,1", "--blocks 1,1", "twice"),
    "every block": _cut("--blocks 0..1", "every block", "nothing"),
    "a block below zero": _cut("--blocks=-1", "'-1'", "from 0"),
    "a sublayer for blocks": _cut("--blocks 1.mlp", "1.mlp", "--unit sublayer"),
    "an unknown sublayer": _cut("--unit sublayer --blocks 1.head", "1.head", "attention and mlp"),
    "all protected": _cut("--criterion cfp --count 1 --protect-first 9", "--protect-first 9", "1 is the most"),
    "a protected block": _cut("--blocks 0 --protect-first 1", "--blocks names 0", "--protect-first"),
    "normalised without shares": _cut("--criterion random --count 1 --normalised", "--normalised", "cfp"),
    "healing what is not cut": _prune("--criterion cfp --count 1 --dry-run --heal-tokens 1k", "--heal-tokens", "--out"),
    "timing what is not cut": _prune("--criterion cfp --count 1 --dry-run --speed", "--speed", "--dry-run", "--out"),
    "a rate of healing alone": _cut("--criterion cfp --count 1 --heal-lr 1e-3", "--heal-lr", "--heal-tokens"),
    "a rate of healing below zero": _cut("--criterion cfp --count 1 --heal-tokens 64 --heal-lr -1", "--heal-lr -1"),
    "no batches to time": _cut("--criterion cfp --count 1 --speed --speed-batches 0", "--speed-batches", "1,4,16"),
    "no context": _cut("--criterion cfp --count 1 --context 0", "--context 0", "1 or more"),
    "a context longer than the text": _cut("--criterion cfp --count 1 --context 99999", "too short", "--context"),
    "a stride too long": _cut("--criterion cfp --count 1 --stride 99", "--stride 99", "1 to 16"),
    "no calibration": _cut("--criterion taylor --count 1 --calibration-tokens 0", "--calibration-tokens 0"),
    "no such data": Bad("prune {run} --data books --criterion cfp --count 1 --out out", ("--data books", "sotu")),
    "layers of one's own": _cut("--criterion cfp --count 1 --layers model.layers", "--layers", "Leadline decoder"),
    "out is a file": _cut("--criterion cfp --count 1 --out {text}/0.txt", "--out", "is a file; name a folder"),
    "out is the model": _cut("--criterion cfp --count 1 --out {run}", "--out", "holds something already"),
    "out cannot be made": _cut("--criterion cfp --count 1 --out /proc/out", "--out /proc/out cannot", code=1),
    "no record": _cut("--criterion cfp --count 1", "no gradient.json", "leadline train",
                      setup=remove("run/gradient.json")),
    "half a record": _gradient('{"sh', "is damaged: Unterminated"),
    "a record of another kind": _gradient("[]", "it should hold an object"),
    "a record without end": _gradient("[" * 100_000, "is damaged"),
    "a share that is no number": _gradient('{"share": [NaN, 1]}', "NaN is not a finite number"),
    "a share in words": _gradient('{"share": ["all", 1]}', "share[0] should be float, not 'all'"),
    "a share of 400 digits": _gradient(f'{{"share": [{"9" * 400}, 1]}}', "share[0] is too large a number"),
    "another model's record": _cut("--criterion cfp --count 1", "1 numbers for share", "2 blocks", code=1,
                                   setup=both(
                                       write("run/gradient.json", '{"share": [1]}'), remove("run/checksums.json"))),
    "a description without its run": _cut("--criterion cfp --count 1", "run.json is damaged", code=1,
                                          setup=write("run/run.json", '{"config": [1]}')),
    "an earlier cut that can't be read": _cut("--criterion cfp --count 1", "run/prune.json", code=1,
                                              setup=write("run/prune.json", "[1")),
    "a size of 30 digits": _cut("--criterion cfp --count 1", "config.json", "is too large", code=1,
                                setup=replace(f"run/{NEWEST}/config.json", ": 256", f": {10**30}")),
    "a ratio of none, swept": _cut("--sweep 0.1", "--sweep 0.1 of 2 blocks is none"),
    "a ratio of all, swept": _cut("--sweep 0.5,1", "--sweep has 1", "between 0 and 1"),
    "no ratios": _cut('--sweep ""', "--sweep ''", "0.1,0.2"),
    "a criterion twice": _cut("--sweep 0.5 --criteria cfp,cfp", "--criteria cfp,cfp", "twice"),
    "a criterion for a sweep": _cut("--sweep 0.5 --criterion cfp", "--criterion", "--sweep"),
    "criteria for a cut": _cut("--criteria cfp --count 1", "--criteria goes with --sweep"),
    "a model twice": Bad("prune {run} {run} --data {data} --sweep 0.5 --out out", ("named twice", "seed")),
    "a task that is not there": _cut("--sweep 0.5 --task task.jsonl", "--task task.jsonl", "JSON lines"),
}  # fmt: skip


def _probe(options: str, *says: str, code: int = 2, setup: Setup | None = None) -> Bad:
    return Bad(f"probe {{run}} --data {{data}} --tokens 32 --parts similarity --out out {options}", says, code, setup)


PROBE = {
    "no model": Bad("probe --out out", ("name a MODEL",)),
    "something else": Bad("probe {text} --out out", ("holds no model", "config.json")),
    "one model of two": Bad("probe {run} nowhere --out out", ("nowhere is not a folder",)),
    "no tokens": _probe("--tokens 0", "--tokens 0", "1 or more"),
    "more ablation than text": _probe("--ablation-tokens 64", "--ablation-tokens 64", "up to 32"),
    "no context": _probe("--context 0", "--context 0", "1 or more"),
    "a context longer than the model's": _probe("--context 17", "--context 17", "16 tokens"),
    "no batch": _probe("--batch-size 0", "--batch-size 0", "1 or more"),
    "an unknown part": _probe("--parts lense", "--parts lense", "Did you mean lens?"),
    "no parts": _probe('--parts ""', "--parts is empty", "activations"),
    "a seed below zero": _probe("--seed -1", "--seed -1", "0 or more"),
    "an unknown device": _probe("--device abacus", "--device abacus", "cpu"),
    "no such data": _probe("--data books", "--data books", "sotu"),
    "out is a file": _probe("--out {text}/0.txt", "--out", "is a file; name a folder"),
    "out is below a file": _probe("--out {text}/0.txt/out", "--out", *BELOW),
    "out cannot be made": _probe("--out /proc/out", "--out /proc/out cannot be written", code=1),
    "out is another report": _probe("--out c", "--out c holds a report of something else",
                                    setup=write("c/results.json", '{"designs": []}')),
    "out is a page of someone's": _probe("--out c", "--out c holds a report of something else",
                                         setup=write("c/report.html", "<p>mine</p>")),
    "half a record": _probe("", "run/gradient.json", code=1, setup=write("run/gradient.json", '{"sh')),
    "a share that is no number": _probe("", "NaN is not a finite number", code=1,
                                        setup=write("run/gradient.json", '{"share": [NaN, 1]}')),
    "pickles": Bad("probe hf --out out", ("pickles", "pytorch_model.bin", "safetensors"),
                   setup=both(write("hf/config.json", '{"model_type": "llama"}'), write("hf/pytorch_model.bin", "x"))),
    "no weights": Bad("probe hf --out out", ("no weights",), setup=write("hf/config.json", '{"model_type": "llama"}')),
}  # fmt: skip

TAPERS = {
    "a share of nothing": Bad('designs "taper(heads=0)"', ("heads=0", "more than 0")),
    "a share below zero": Bad('designs "taper(heads=-1)"', ("'-1' is not a share", "1:2/3:1/3")),
    "a share over zero": Bad('designs "taper(heads=1/0)"', ("'1/0' is not a share",)),
    "heads on a line": Bad('designs "taper(heads=1~1/2)"', ("in steps", "1:2/3:1/3")),
    "half a line": Bad('designs "taper(mlp=1~)"', ("'' is not a share", "1~1/2")),
    "half a head": Bad('designs "taper(heads=1:1/2)"', ("layer 13 of 24", "not a whole number of heads", "2 and 4")),
    "two tapers": Bad('designs "cascade-a2 + cascade-f1"', ("both tapers",)),
    "no heads": Bad("designs cascade-a2 --heads 0", ("--heads 0", "1 to")),
    "no width": Bad("designs cascade-a2 --dim 0", ("--dim 0", "1 to")),
    "a width of 18 digits": Bad(f"designs cascade-a2 --dim {10**18}", ("--dim", "1 to 1048576")),
    "blocks without end": Bad(f"designs cascade-a2 --blocks {10**12}", ("--blocks", "1 to 16384")),
    "nothing to solve for": Bad("designs --equal prenorm", ("--equal prenorm", "NAME --equal")),
    "a budget without a reference": Bad("designs cascade-a2 --tokens 1M", ("--tokens belong to --equal",)),
    "an unknown reference": Bad("designs cascade-a2 --equal prenrom", ("'prenrom' is not known",)),
    "a budget too small": Bad("designs cascade-a2 --equal prenorm --tokens 1", ("not within 1 %", "--tokens")),
}


def _study(options: str, *says: str, code: int = 2, setup: Setup | None = None) -> Bad:
    small = "--blocks 3 --tokens 4096 --context 16 --batch-size 2"
    return Bad(f"study cascade --data {{data}} {small} --out out {options}", says, code, setup)


STUDY = {
    "no jobs": _study("--jobs 0", "--jobs 0", "1 or more"),
    "no threads": _study("--threads 0", "--threads 0", "1 or more"),
    "no seeds": _study("--seeds 0", "--seeds 0", "1 or more"),
    "an unknown design": _study("--designs cascade-a9", "'cascade-a9' is not known"),
    "an unknown device": _study("--device abacus", "--device abacus", "cpu"),
    "no such data": _study("--data books", "no data set at books"),
    "out is a file": _study("--out {text}/0.txt", "--out", "is a file; name a folder"),
    "out is something else": _study("--out {text}", "--out", "name a new or empty folder"),
    "half a plan": _study("--out c", "c/experiment.json is damaged", code=1, setup=write("c/experiment.json", "{")),
    "another plan": _study("--out c", "c/experiment.json is damaged", code=1, setup=write("c/experiment.json", "[]")),
}


def _compare(options: str, *says: str, code: int = 2, setup: Setup | None = None) -> Bad:
    return Bad(f"compare prenorm lns --data {{data}} {TINY} --out out {options}", says, code, setup)


COMPARE = {
    "an unknown design": Bad(f"compare prenrom --data {{data}} {TINY} --out out", ("Did you mean prenorm",)),
    "a design twice": Bad(f"compare lns lns --data {{data}} {TINY} --out out", ("lns is named twice",)),
    "an unknown baseline": _compare("--baseline lsn", "'lsn' is not known", "lns"),
    "two budgets": _compare("--tokens 64", "--tokens 64 and --steps", "give one"),
    "a malformed budget": _compare("--flops lots", "--flops 'lots'", *COUNT),
    "less than a step's FLOPs": Bad("compare lns --data {data} --flops 10 --out out", ("--flops 10", "would")),
    "no seeds": _compare("--seeds 0", "--seeds 0", "1 or more"),
    "a seed twice": _compare("--seeds 1,1", "--seeds '1,1'", "twice"),
    "seeds in words": _compare("--seeds some", "--seeds 'some'", "(0,1,5)"),
    "seeds too many": _compare("--seeds 1000000000000", "--seeds", "1 to 1000"),
    "a rate for nobody": _compare("--rates attnres=3e-3", "--rates names 'attnres'", "prenorm, lns"),
    "a rate and rates": _compare("--lr 1e-3 --sweep-lr 1e-3,2e-3", "--lr and --rates do nothing beside --sweep-lr"),
    "a rate in words": _compare("--rates lns=quick", "--rates", "'quick'", "4e-3"),
    "rates without names": _compare("--rates 1e-3,2e-3", "names no design", "design=rate"),
    "one rate to sweep": _compare("--sweep-lr 1e-3", "--sweep-lr", "at least two"),
    "a rate of nothing to sweep": _compare("--sweep-lr 1e-3,0", "--sweep-lr: 0", "positive"),
    "a design after the sweep": _compare("--sweep-lr attnres", "'attnres' is not a learning rate", "before --sweep-lr"),
    "no jobs": _compare("--jobs 0", "--jobs 0", "1 or more"),
    "no evaluations": _compare("--evaluations 0", "--evaluations 0", "1 or more"),
    "nothing to measure": _compare("--measure-tokens 0", "--measure-tokens 0", "1 or more"),
    "an odd width": _compare("--dim 71", "--dim 71", "even"),
    "a width too large": _compare("--dim 2000000000000", "--dim 2000000000000", "to 1048576"),
    "an unknown device": _compare("--device abacus", "--device abacus", "cpu"),
    "a context longer than the text": _compare("--context 99999", "too short for one sequence", "--context"),
    "out is a file": _compare("--out {text}/0.txt", "--out", "is a file; name a folder"),
    "out is below a file": _compare("--out {text}/0.txt/out", "--out", *BELOW),
    "out is something else": _compare("--out {text}", "--out", "not an experiment", "name a new or empty folder"),
    "out is a run": _compare("--out {run}", "--out", "not an experiment"),
    "out cannot be made": _compare("--out /proc/out", "--out /proc/out cannot be written", code=1),
    "a broken plan": _compare("--out c", "c/experiment.json is damaged", code=1, setup=write("c/experiment.json", "{")),
    "another plan": _compare("--out c", "c/experiment.json is damaged", code=1,
                             setup=write("c/experiment.json", json.dumps({"designs": [1]}))),
}  # fmt: skip

TABLE: dict[str, Bad] = {
    f"{verb}: {name}": bad
    for verb, table in {
        "leadline": VERBS,
        "designs": DESIGNS,
        "prepare": PREPARE,
        "verify": VERIFY,
        "train": TRAIN,
        "generate": GENERATE,
        "compare": COMPARE,
        "early exit": GENERATE_EARLY,
        "fan-in": FAN_IN,
        "prune": PRUNE,
        "probe": PROBE,
        "tapers": TAPERS,
        "study": STUDY,
    }.items()
    for name, bad in table.items()
}
