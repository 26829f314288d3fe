"""The losses of a very short run of every named design, in float64: `python tests/training/make_reference_losses.py`.

Run it when a change is meant to change what designs compute, and say so in the change. The text, the order of the
batches and the weights at the start come from arithmetic that is the same everywhere.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch

from leadline.data import prepare
from leadline.designs import PARTS, resolve
from leadline.training import RunConfig, train

FILE = Path(__file__).with_name("reference_losses.json")
DESIGNS = [
    *PARTS,
    "attnres(block_size=4)",
    "mgr(streams=8, gate=independent) + bhyt",
    "attnres(window=3) + peri-ln + qk-norm",
]
SHAPE = {"blocks": 5, "dim": 32, "heads": 4, "kv_heads": 2, "head_dim": 8, "hidden": 48}
TAPERED = {**SHAPE, "heads": 6, "kv_heads": 3}
"""For designs with a taper, whose steps are thirds and halves of the heads."""
STEPS, BATCH, CONTEXT = 8, 4, 32
WORDS = ("mark", "deep", "twain", "fathom", "line", "lead", "and a half", "quarter less")


def text(words: int, state: int) -> str:
    """Made-up text from a generator that is written out here (Lehmer's, 48271 modulo 2³¹ − 1)."""
    chosen = []
    for _ in range(words):
        state = state * 48271 % (2**31 - 1)
        chosen.append(WORDS[state % len(WORDS)])
    return " ".join(chosen)


def prepare_text(folder: Path) -> Path:
    """The data set, below `folder`."""
    (folder / "text").mkdir(parents=True)
    (folder / "text" / "0.txt").write_text(text(600, 1), encoding="utf-8")
    (folder / "text" / "1.txt").write_text(text(60, 2), encoding="utf-8")
    prepare([folder / "text"], folder / "set", heldout_last=1)
    return folder / "set"


def losses(design: str, data: Path, out: Path) -> list[float]:
    """The training loss of each step, and the held-out loss at the end."""
    config = RunConfig.of(
        design=design,
        data=str(data),
        **(SHAPE if resolve(design).taper.uniform else TAPERED),
        tokens=STEPS * BATCH * CONTEXT,
        batch_size=BATCH,
        context=CONTEXT,
        lr=0.01,
        record_every=0,
        evaluate_tokens=65536,
    )
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        summary = train(config, out)
    finally:
        torch.set_default_dtype(default)
    steps = (out / "steps.jsonl").read_text(encoding="utf-8").splitlines()
    return [*(json.loads(line)["loss"] for line in steps), summary.loss]


def main() -> None:
    """Writes the file anew."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = prepare_text(folder)
        found = {design: losses(design, data, folder / str(n)) for n, design in enumerate(DESIGNS)}
    lines = [f"  {json.dumps(design)}: {json.dumps([round(loss, 9) for loss in row])}" for design, row in found.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{len(found)} designs in {FILE}")


if __name__ == "__main__":
    main()
