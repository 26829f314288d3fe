"""What a trained ResNet's blocks are worth, and how that goes with the gradient that they had in training.

ΔM of a block is the held-out loss with its branch left out, minus the loss: in evaluation mode, with an interval over
images. φ of block l of L is L − l + 1. In the first block of a stage the shortcut is a projection, which stays; so the
correlations are given over all blocks, and over those whose shortcut is the identity.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from leadline.config import to_dict
from leadline.data.images import evaluation_images
from leadline.errors import LeadlineError
from leadline.experiments.images.config import ImageRunConfig
from leadline.experiments.images.training import EVALUATION_BATCH, OnStep, evaluate_images, train_images
from leadline.files import write_json
from leadline.models.resnet import ResNet
from leadline.probes.ablation import ablation
from leadline.probes.correlation import correlate
from leadline.probes.fan_in import fan_in
from leadline.stacks import stack_of
from leadline.training import load_gradient
from leadline.training.checkpoint import find_checkpoint
from leadline.training.resolve import usable_device

RESULTS_FILE = "results.json"


def measure_images(folder: Path | str, config: ImageRunConfig, limit: int | None = None) -> dict[str, Any]:
    """ΔM, φ and accuracy of a finished run, as `leadline.experiments.gradient_fan_in.measure` has them for decoders.

    Args:
        folder: of the run.
        config: of the run.
        limit: held-out images at most, spread evenly; all unless given.

    Returns:
        `blocks`, `order`, `tokens` (the number of images), `loss`, `delta` (`nats`, `low`, `high` by block),
        `place_delta` (None: no block runs twice), `fan_in`, `exit_weights` (None); and beside these `accuracy`, the
        blocks' `names`, and `projections`, the blocks whose shortcut is one.

    Raises:
        LeadlineError: the run's files are missing or damaged.
    """
    model = ResNet.load(find_checkpoint(Path(folder))).to(usable_device(config.device))
    images = config.open_images()
    stack = stack_of(model)
    batches = list(evaluation_images(images, EVALUATION_BATCH, limit))
    found = ablation(stack, batches, kinds=("block",), seed=config.seed)
    rises = found["blocks"]
    return {
        "blocks": stack.blocks,
        "order": list(range(stack.blocks)),
        "tokens": found["tokens"],
        "loss": found["loss"],
        "delta": {"nats": rises["nats"], "low": rises["nats_low"], "high": rises["nats_high"]},
        "place_delta": None,
        "fan_in": fan_in(stack.blocks),
        "exit_weights": None,
        "accuracy": evaluate_images(model, batches).accuracy,
        "names": model.names(),
        "projections": [number for number, block in enumerate(model.blocks()) if block.downsample is not None],
    }


def run_images(
    config: ImageRunConfig, out: Path | str, *, limit: int | None = None, on_step: OnStep | None = None
) -> dict[str, Any]:
    """One whole run: trains, measures, and writes `results.json` into the run's folder.

    Returns:
        `config`, `summary`, `gradient` (as in `gradient.json`), `measured` (see `measure_images`) and `correlations`.

    Raises:
        UsageError, LeadlineError, KeyboardInterrupt: as `train_images`.
    """
    out = Path(out)
    summary = train_images(config, out, on_step=on_step)
    gradient = load_gradient(out)
    measured = measure_images(out, config, limit)
    results = {
        "config": to_dict(config),
        "summary": summary,
        "gradient": gradient,
        "measured": measured,
        "correlations": correlations(gradient, measured),
    }
    try:
        write_json(out / RESULTS_FILE, results)
    except OSError as error:
        raise LeadlineError(f"can't write to {out}: {error.strerror or error}") from error
    return results


def correlations(gradient: dict[str, Any], measured: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Pearson, Spearman and Kendall of the gradient share against ΔM and φ, with intervals over blocks.

    Returns:
        By "all" and "identity" blocks; in each `share_delta`, `share_fan_in`, and both for the share that is divided by
        √(number of parameters), which blocks of unlike widths need.
    """
    every = range(measured["blocks"])
    others = {"delta": measured["delta"]["nats"], "fan_in": measured["fan_in"]}
    found: dict[str, dict[str, Any]] = {"all": {}, "identity": {}}
    for name, pairs in found.items():
        blocks = [block for block in every if name == "all" or block not in measured["projections"]]
        for share in ("share", "share_per_parameter"):
            for other, values in others.items():
                both = correlate([gradient[share][block] for block in blocks], [values[block] for block in blocks])
                pairs[f"{share}_{other}"] = {kind: asdict(one) for kind, one in both.items()}
    return found
