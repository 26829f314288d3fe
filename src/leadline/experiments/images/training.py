"""Training a ResNet on images. The folder of a run holds what `leadline.training` writes for one on text, an image in
the place of a token: `run.json`, `steps.jsonl`, `evals.jsonl`, `gradient.json`, `summary.json`, `checkpoints/`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from leadline.config import to_dict
from leadline.data.images import ImageBatch, ImageLoader, ImageSet, evaluation_images
from leadline.errors import LeadlineError
from leadline.experiments.images.config import ImageRunConfig, run_in
from leadline.files import check_sum, forget_sums, write_json, write_sums
from leadline.interrupt import catch_interrupt
from leadline.models.resnet import ResNet, count_forward_flops
from leadline.probes.watch import measuring
from leadline.reading import read_json
from leadline.training import Diversity, GradientShare, Summary
from leadline.training.checkpoint import State, check_position, choose_checkpoint, load_checkpoint, save_checkpoint
from leadline.training.gradient_file import write_gradient
from leadline.training.gradient_share import detail_of
from leadline.training.gradient_steps import find_norms
from leadline.training.memory import peak_memory
from leadline.training.optimiser import param_groups
from leadline.training.records import ADVICE, EVALS, STEPS, SUMMARY, Lines
from leadline.training.resolve import usable_device

EVALUATION_BATCH = 100
PIECES = 4
"""Into which a step is cut to see how much its gradients differ; each piece has two images or more, for the norms."""
NOTES = (
    "an image counts as a token: tokens are images, and bits_per_byte is the loss of an image in bits",
    "flops_per_token are those of training on one image, convolutions and the head alone, backward as twice forward",
)

OnStep = Callable[[dict[str, Any]], None]


class Scores(NamedTuple):
    """Held-out loss in nats an image, and the share of images whose likeliest class is the right one."""

    loss: float
    accuracy: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageSummary(Summary):
    """What a finished run on images says of itself.

    Attributes:
        accuracy: the share of held-out images whose likeliest class is the right one.
    """

    accuracy: float


@torch.no_grad()
def evaluate_images(model: nn.Module, batches: Iterable[ImageBatch]) -> Scores:
    """In evaluation mode: norms use what they kept in training.

    Raises:
        LeadlineError: there are no images.
    """
    total, right, count = 0.0, 0, 0
    with measuring(model) as device:
        for batch in batches:
            logits, labels = model(batch.images.to(device)), batch.labels.to(device)
            total += float(nn.functional.cross_entropy(logits.double(), labels, reduction="sum"))
            right += int((logits.argmax(dim=-1) == labels).sum())
            count += len(labels)
    if count == 0:
        raise LeadlineError("there are no images to evaluate on")
    return Scores(total / count, right / count)


def train_images(config: ImageRunConfig, out: Path | str, *, on_step: OnStep | None = None) -> dict[str, Any]:
    """Trains in the folder `out`, or resumes a run that was stopped there, to the same bits.

    Args:
        on_step: called with every step's record.

    Returns:
        The summary: the entries of `leadline.training.Summary`, and `accuracy`.

    Raises:
        UsageError: an option doesn't work, or `out` holds something else.
        LeadlineError: a loss or gradient that is not finite, or damaged files.
        KeyboardInterrupt: asked to stop; the run is saved and resumes with the same call.
    """
    out = Path(out)
    images = config.open_images()
    usable_device(config.device)
    with run_in(out, config, images):
        summary = out / SUMMARY
        if summary.is_file():
            found: dict[str, Any] = to_dict(read_json(summary, ImageSummary, advice=ADVICE))
            check_sum(summary)
            return found
        return ImageTrainer(config, images, out, on_step).train()


class ImageTrainer:
    """A run under way.

    Attributes:
        model: the network.
        share: the gradient share so far.
        step: how many steps are done.
    """

    def __init__(self, config: ImageRunConfig, images: ImageSet, out: Path, on_step: OnStep | None = None) -> None:
        self.config, self.images, self.out, self.on_step = config, images, out, on_step
        self.device = usable_device(config.device)
        self.model = ResNet(config.model(images), seed=config.seed).to(self.device)
        self.optimiser = make_sgd(self.model, config)
        self.share = GradientShare(
            self.model, since=config.gradient_from, until=config.gradient_until, warmup=config.warmup_steps
        )
        self.loader = ImageLoader(images, config.batch_size, config.seed)
        self.step, self.seconds, self.train_loss = 0, 0.0, 0.0
        self._restore()
        forget_sums(out)
        self.steps_file = Lines(out / STEPS, self.step)
        self.steps_file.check(self.step, self.train_loss)
        self.evals_file = Lines(out / EVALS, self.step if self.step < config.steps else self.step - 1)

    def _restore(self) -> None:
        chosen = choose_checkpoint(self.out, "newest")
        if chosen is None:
            return
        try:
            state = load_checkpoint(chosen, self.model, self.optimiser, self.device)
            self.loader.load(state["loader"])
            check_position(state, len(self.images.train.labels), self.config.batch_size)
            self.share.load(state["gradient"], find_norms(chosen))
        except (LeadlineError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise LeadlineError(f"can't resume from {chosen}: {error}; start in another folder") from error
        self.step, self.seconds, self.train_loss = state["step"], state["seconds"], state["train_loss"]

    def train(self) -> dict[str, Any]:
        """Runs all steps that are left and writes the summary."""
        config = self.config
        with contextlib.closing(self.steps_file), contextlib.closing(self.evals_file), catch_interrupt() as interrupt:
            while self.step < config.steps:
                self._one_step()
                last = self.step == config.steps
                if self.step % config.evaluated_every == 0 and not last:
                    self._evaluate()
                due = config.checkpoint_every > 0 and self.step % config.checkpoint_every == 0
                if last or due or interrupt.asked:
                    self.save()
                if interrupt.asked and not last:
                    raise KeyboardInterrupt
            return self._finish()

    def _one_step(self) -> None:
        begin = time.perf_counter()
        step, rate = self.step + 1, self.config.rate_at(self.step + 1)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        batch = self.loader.next()
        self.model.train()
        loss = self._backward(batch.images, batch.labels)
        norms = self.share.measure()
        self.train_loss, norm = float(loss.detach()), float(norms.total())
        for what, value in (("loss", self.train_loss), ("gradient", norm)):
            if not math.isfinite(value):
                raise LeadlineError(f"the {what} of step {step} is not finite; a lower learning_rate may get past it")
        self.share.add(norms)
        if self.config.gradient_every and step % self.config.gradient_every == 0:
            self.share.note(detail_of(step, self.share, self._diversity(batch)))
        self.optimiser.step()
        self.step = step
        seconds = time.perf_counter() - begin
        self.seconds += seconds
        told = {
            "step": step,
            "tokens": step * self.config.batch_size,
            "loss": self.train_loss,
            "lr": rate,
            "grad_norm": norm,
            "tokens_per_second": self.config.batch_size / seconds,
            "gradient_norm": self.share.last,
        }
        self.steps_file.add(told)
        if self.on_step is not None:
            self.on_step({**told, "steps": self.config.steps})

    def _backward(self, images: Tensor, labels: Tensor) -> Tensor:
        """New gradients, and the loss that they are of."""
        self.optimiser.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(self.model(images.to(self.device)), labels.to(self.device))
        loss.backward()
        return loss

    def _diversity(self, batch: ImageBatch) -> Diversity:
        """How alike the gradients of parts of the batch are; gradients and the norms' statistics stay as they are."""
        diversity = Diversity(self.share)
        grads = [(parameter, parameter.grad) for parameter in self.model.parameters()]
        statistics = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        parts = min(PIECES, self.config.batch_size // 2)
        if parts > 1:
            pieces = zip(batch.images.tensor_split(parts), batch.labels.tensor_split(parts), strict=True)
            for piece in pieces:  # of sizes that differ by one: two images or more in each
                self._backward(*piece)
                diversity.add()
        for parameter, grad in grads:
            parameter.grad = grad
        with torch.no_grad():
            for buffer, value in statistics:
                buffer.copy_(value)
        return diversity

    def _evaluate(self) -> Scores:
        scores = evaluate_images(self.model, evaluation_images(self.images, EVALUATION_BATCH))
        if not math.isfinite(scores.loss):
            raise LeadlineError(
                f"the held-out loss after step {self.step} is not finite; a lower learning_rate may do better"
            )
        told = {"step": self.step, "tokens": self.step * self.config.batch_size, **scores._asdict()}
        self.evals_file.add({**told, "bits_per_byte": scores.loss / math.log(2)})
        return scores

    def save(self) -> None:
        """Writes a checkpoint of the current step, and the gradient share."""
        for lines in (self.steps_file, self.evals_file):
            lines.flush()
        state: State = {
            "step": self.step,
            "seconds": self.seconds,
            "train_loss": self.train_loss,
            "loader": self.loader.state(),
            "gradient": self.share.state(),
        }
        report, norms, keep = self.share.report(), self.share.norms(), self.config.keep
        save_checkpoint(self.out, self.model, self.optimiser, state, keep=keep, gradient=report, norms=norms)
        write_gradient(self.out, report, norms)

    def _finish(self) -> dict[str, Any]:
        scores = self._evaluate()
        self.evals_file.flush()
        config, images = self.config, self.step * self.config.batch_size
        summary = ImageSummary(
            loss=scores.loss,
            bits_per_byte=scores.loss / math.log(2),
            train_loss=self.train_loss,
            steps=self.step,
            tokens=images,
            tokens_per_second=images / max(self.seconds, 1e-9),
            peak_memory_bytes=peak_memory(self.device),
            parameters=sum(parameter.numel() for parameter in self.model.parameters()),
            flops_per_token=3 * count_forward_flops(self.model.config, self.images.shape[1]),
            depth_flops_per_token=0,
            seconds=self.seconds,
            learning_rate=config.learning_rate,
            notes=NOTES,
            accuracy=scores.accuracy,
        )
        content: dict[str, Any] = to_dict(summary)
        write_gradient(self.out, self.share.report(), self.share.norms())
        try:
            write_json(self.out / SUMMARY, content)
            write_sums(self.out)
        except OSError as error:
            raise LeadlineError(f"can't write the summary into {self.out}: {error.strerror or error}") from error
        return content


def make_sgd(model: nn.Module, config: ImageRunConfig) -> torch.optim.SGD:
    """SGD with momentum; weight decay on everything with two dimensions or more."""
    return torch.optim.SGD(param_groups(model, config.weight_decay), lr=config.learning_rate, momentum=config.momentum)
