"""What a trained decoder's blocks are worth, and their fan-in: `gfa.json` in a run's folder.

blocks         how many have parameters of their own
order          the block at each place of the stack as it runs
tokens, loss   held-out tokens that ΔM was measured on, and the loss of the whole model in nats a token
delta          ΔM of every block, all of its places left out at once: `nats`, and the 95 % interval over
               sequences, `low` and `high`
place_delta    the same with one place left out at a time; null where every block runs once
fan_in         φ of every block
exit_weights   the loss's weight after each place, averaged over the run; null without early exits
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypedDict

from leadline.config import from_dict
from leadline.experiments.worker import on_step, say, train_run
from leadline.files import write_json_with_sum
from leadline.probes import LossRise, TokenBatch, fan_in
from leadline.probes.ablation import sequence_losses
from leadline.probes.watch import measuring
from leadline.stacks import Stack, Unit, stack_of
from leadline.training.records import Shares

MEASURE_FILE = "gfa.json"


class Delta(TypedDict):
    """ΔM by block or place."""

    nats: Shares
    low: Shares
    high: Shares


class MeasureFile(TypedDict):
    """What is read of `gfa.json`; runs on images have more."""

    blocks: int
    order: list[int]
    loss: float
    delta: Delta
    place_delta: Delta | None
    fan_in: Shares
    exit_weights: list[float] | None


BATCH_TOKENS = 2048


def train_and_measure(folder: Path, job: dict[str, Any]) -> None:
    """A worker's task for a decoder: trains, then writes `gfa.json`."""
    _do(folder, lambda: train_run(folder, job["config"]), lambda: measure_run(folder, job["ablation_tokens"]))


def train_and_measure_images(folder: Path, job: dict[str, Any]) -> None:
    """A worker's task for a ResNet; the ablation tokens are images."""
    from leadline.experiments.images import ImageRunConfig, measure_images, train_images

    config = from_dict(ImageRunConfig, job["config"], "job.json")
    _do(
        folder,
        lambda: train_images(config, folder, on_step=on_step()),
        lambda: measure_images(folder, config, job["ablation_tokens"]),
    )


def _do(folder: Path, train: Callable[[], object], measure: Callable[[], dict[str, Any]]) -> None:
    if not (folder / "summary.json").is_file():
        train()
    if not (folder / MEASURE_FILE).is_file():
        say("measuring")
        write_json_with_sum(folder / MEASURE_FILE, measure())


def measure_run(folder: Path, tokens: int) -> dict[str, Any]:
    """The content of `gfa.json` for a finished run, on so many held-out tokens at most."""
    from leadline.data import evaluation_batches, resolve
    from leadline.training import load_model
    from leadline.training.resolve import usable_device
    from leadline.training.run_folder import read_run_file

    model, _ = load_model(folder)
    described = read_run_file(folder)
    options = described["config"]
    split = resolve(options["data"]).heldout
    context = model.config.context
    batches = list(evaluation_batches(split, max(1, BATCH_TOKENS // context), context, tokens))
    model = model.to(usable_device(options["device"]))
    blocks, order = len(model.config.layers), list(model.config.block_layers)
    skip = described.get("layerskip")
    weights = skip["exit_weights"] if skip and options["exit_loss"] > 0 else None
    return {
        "blocks": blocks,
        "order": order,
        **block_delta(stack_of(model), order, batches),
        "fan_in": fan_in(blocks, exit_weights=weights, order=order),
        "exit_weights": weights,
    }


def block_delta(stack: Stack, order: Sequence[int], batches: Iterable[TokenBatch]) -> dict[str, Any]:
    """ΔM of the blocks of a stack in which some may run several times.

    Args:
        order: the block at each place of the stack, as `leadline.probes.repeat_last` returns it.

    Raises:
        LeadlineError: there are no tokens.
    """
    blocks = sorted(set(order))
    whole = [[Unit(place) for place, block in enumerate(order) if block == wanted] for wanted in blocks]
    single = [[Unit(place)] for place in range(len(order))] if len(order) > len(blocks) else []
    rise = LossRise(len(whole) + len(single))
    with measuring(stack.model):
        for batch in batches:
            losses = []
            for units in ([], *whole, *single):
                with stack.skipping(units):
                    logits = stack.logits(batch.tokens.to(stack.device))
                losses.append(sequence_losses(logits, batch.targets.to(logits.device)))
            rise.add(losses, batch.targets.shape[-1])
    nats: list[float | None] = [*rise.rises()]
    ends = rise.intervals()

    def rows(which: slice) -> dict[str, list[float | None]]:
        return {"nats": nats[which], "low": [low for low, _ in ends[which]], "high": [high for _, high in ends[which]]}

    return {
        "tokens": rise.tokens,
        "loss": rise.loss(),
        "delta": rows(slice(len(whole))),
        "place_delta": rows(slice(len(whole), None)) if single else None,
    }
