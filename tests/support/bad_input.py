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
    "an unknown verb": Bad("comprae", ("unknown verb 'comprae'", "Did you mean compare?")),
    "an option for a verb": Bad("--fast", ("unknown verb '--fast'", "train")),
    "an unknown option": Bad("compare --fast", ("--fast", BOX)),
    "an unknown option of env": Bad("env --fast", ("--fast", BOX)),
    "a missing option": Bad("train prenorm --data {data}", ("--out", BOX)),
    "words too many": Bad("designs prenorm mgr", ("mgr", BOX)),
    "no action": Bad("data", ("prepare, fetch, verify", BOX)),
    "an unknown action": Bad("data cook", ("cook", "prepare, fetch, verify")),
    "json onto a folder": Bad("env --json {data}", ("--json", "is a folder; name a file")),
    "json below a file": Bad("env --json {text}/0.txt/env.json", ("--json", *BELOW)),
    "json onto a device": Bad("designs --json /dev/null", ("--json /dev/null", "no ordinary file")),
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
    "no vocabulary": Bad("designs prenorm --vocab-size 0", ("vocab_size=0", "at least 1")),
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
    "no steps": _train("--steps 0", "--steps '0'", "1 or more"),
    "a malformed count": _train("--steps many", "--steps 'many'", *COUNT),
    "steps too many": _train("--steps 9e99", "--steps '9e99'", "1e+18 at most"),
    "a batch too large": _train("--batch-size 10000000000000", "--batch-size", "too large"),
    "half a token": Bad("train prenorm --data {data} --tokens 1.5 --out out", ("--tokens '1.5'", "whole number")),
    "two lengths": _train("--tokens 64", "--tokens and --steps", "give one"),
    "a rate below zero": _train("--lr -1", "--lr -1", "more than 0"),
    "a rate that is no number": _train("--lr fast", "--lr", "'fast'", BOX),
    "a share out of range": _train("--warmup 2", "--warmup 2", "from 0 to 1"),
    "two shares": _train("--schedule wsd --warmup 0.5 --decay 0.8", "--warmup 0.5 and --decay 0.8"),
    "no gradient": _train("--clip 0", "--clip 0", "more than 0"),
    "a seed below zero": _train("--seed -1", "--seed -1", "negative"),
    "no batch": _train("--batch-size 0", "--batch-size 0", "1 or more"),
    "no context": _train("--context 0", "--context 0", "1 or more"),
    "a context longer than the text": _train("--context 99999", "too short for one sequence", "--context"),
    "parts that do not divide": _train("--accumulation 3", "--accumulation 3", "batch size of 2"),
    "no blocks": _train("--blocks 0", "blocks=0", "at least 1"),
    "no checkpoints": _train("--keep 0", "--keep 0", "1 or more"),
    "a record below zero": _train("--record-every -1", "--record-every -1", "0 records nothing"),
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
    "out is something else": _train("--out {text}", "--out", "holds something that is no run"),
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
    "a step in words": _resume("state.json is damaged", "step should be a number",
                               setup=both(unfinished, replace(f"run/{NEWEST}/state.json", '"step": 4', '"step": "4"'))),
    "a broken description": _resume("run.json", "Expecting", setup=write("run/run.json", "{")),
    "another description": _resume("run.json is damaged", setup=write("run/run.json", '{"config": [1]}')),
    "half a summary": _resume("summary.json is damaged", "remove it", setup=write("run/summary.json", "{}")),
}  # fmt: skip


def _generate(options: str, *says: str, code: int = 2, setup: Setup | None = None) -> Bad:
    return Bad(f"generate {{run}} {options}", says, code, setup)


GENERATE = {
    "no model": Bad("generate nowhere", ("nowhere is no folder", "MODEL")),
    "something else": Bad("generate {text}", ("no run's folder", "run.json")),
    "no tokens": _generate("--tokens 0", "--tokens '0'", "1 or more"),
    "tokens too many": _generate("--tokens 9e30", "--tokens", "1e+18 at most"),
    "more tokens than fit": _generate("--tokens 9e15", "max_new_tokens", "too many"),
    "a temperature below zero": _generate("--temperature -1", "temperature=-1", "such as 0.8"),
    "no choice": _generate("--top-k 0", "top_k=0", "such as 50"),
    "a probability out of range": _generate("--top-p 1.5", "top_p=1.5", "such as 0.9"),
    "a seed of 80 bits": _generate(f"--seed {2**80}", "seed=", "64 bits"),
    "an unknown device": _generate("--device abacus", "--device abacus", "cpu"),
    "a device that holds nothing": _generate("--device meta", "--device meta", "cpu"),
    "a prompt that is no text": _generate('--prompt "\udcff"', "--prompt", "UTF-8"),
    "no checkpoint": _generate("", "holds no checkpoint yet", setup=remove("run/checkpoints")),
    "cut weights": _generate("", "model.safetensors is damaged", code=1,
                             setup=truncate(f"run/{NEWEST}/model.safetensors", 999)),
    "no weights": _generate("", "model.safetensors is missing", code=1,
                            setup=remove(f"run/{NEWEST}/model.safetensors")),
    "weights of another shape": _generate("", "embed.weight is [256, 72]", "[250, 72]", code=1,
                                          setup=replace(f"run/{NEWEST}/config.json", ": 256", ": 250")),
    "weights of another design": _generate("", "doesn't fit its config.json", code=1,
                                           setup=replace(f"run/{NEWEST}/config.json", '"tied": true', '"tied": false')),
    "an unknown key": _generate("", "config.json", "unknown key 'width'", "dim", code=1,
                                setup=replace(f"run/{NEWEST}/config.json", '"dim"', '"width"')),
    "heads that do not share": _generate("", "config.json", "kv_heads=2", "heads=3", code=1,
                                         setup=replace(f"run/{NEWEST}/config.json", '"kv_heads": 3', '"kv_heads": 2')),
    "a configuration that is no JSON": _generate("", "config.json", code=1,
                                                 setup=write(f"run/{NEWEST}/config.json", "")),
    "something else as tokenizer": _generate("", "tokenizer.json is not a tokenizer", code=1,
                                             setup=write("run/tokenizer.json", "{}")),
}  # fmt: skip


def _compare(options: str, *says: str, code: int = 2, setup: Setup | None = None) -> Bad:
    return Bad(f"compare prenorm lns --data {{data}} {TINY} --out out {options}", says, code, setup)


COMPARE = {
    "an unknown design": Bad(f"compare prenrom --data {{data}} {TINY} --out out", ("Did you mean prenorm",)),
    "a design twice": Bad(f"compare lns lns --data {{data}} {TINY} --out out", ("lns is named twice",)),
    "an unknown baseline": _compare("--baseline lsn", "'lsn' is not known", "lns"),
    "two budgets": _compare("--tokens 64", "--tokens and --steps", "give one"),
    "a malformed budget": _compare("--flops lots", "--flops 'lots'", *COUNT),
    "less than a step": Bad("compare lns --data {data} --tokens 3 --out out", ("--tokens 3", "less than one step")),
    "less than a step's FLOPs": Bad("compare lns --data {data} --flops 10 --out out", ("flops=10", "would")),
    "no seeds": _compare("--seeds 0", "--seeds 0", "1 or more"),
    "a seed twice": _compare("--seeds 1,1", "--seeds '1,1'", "twice"),
    "seeds in words": _compare("--seeds some", "--seeds 'some'", "(0,1,5)"),
    "seeds too many": _compare("--seeds 1000000000000", "--seeds", "1 to 1000"),
    "a rate for nobody": _compare("--lr attnres=3e-3", "--lr names 'attnres'", "prenorm, lns"),
    "a rate in words": _compare("--lr quick", "--lr", "'quick'", "4e-3"),
    "rates without names": _compare("--lr 1e-3,2e-3", "names no design", "design=rate"),
    "one rate to sweep": _compare("--sweep-lr 1e-3", "--sweep-lr", "at least two"),
    "a rate of nothing to sweep": _compare("--sweep-lr 1e-3,0", "--sweep-lr: 0", "positive"),
    "a design after the sweep": _compare("--sweep-lr attnres", "'attnres' is no learning rate", "before --sweep-lr"),
    "no jobs": _compare("--jobs 0", "--jobs 0", "1 or more"),
    "no evaluations": _compare("--evaluations 0", "--evaluations 0", "1 or more"),
    "nothing to measure": _compare("--measure-tokens 0", "--measure-tokens '0'", "1 or more"),
    "an odd width": _compare("--dim 71", "--dim 71", "even"),
    "a width too large": _compare("--dim 2000000000000", "--dim 2000000000000", "to 1048576"),
    "an unknown device": _compare("--device abacus", "--device abacus", "cpu"),
    "a context longer than the text": _compare("--context 99999", "too short for one sequence", "--context"),
    "out is a file": _compare("--out {text}/0.txt", "--out", "is a file; name a folder"),
    "out is below a file": _compare("--out {text}/0.txt/out", "--out", *BELOW),
    "out is something else": _compare("--out {text}", "--out", "no comparison", "name a new or empty folder"),
    "out is a run": _compare("--out {run}", "--out", "no comparison"),
    "out cannot be made": _compare("--out /proc/out", "--out /proc/out cannot be written", code=1),
    "a broken plan": _compare("--out c", "c/compare.json cannot be read", setup=write("c/compare.json", "{")),
    "another plan": _compare("--out c", "c/compare.json is damaged",
                             setup=write("c/compare.json", json.dumps({"designs": [1]}))),
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
    }.items()
    for name, bad in table.items()
}
