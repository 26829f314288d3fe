"""The training loop."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from leadline.config import to_dict
from leadline.data import Batch, Loader
from leadline.designs import count_flops, count_parameters
from leadline.errors import LeadlineError, UsageError
from leadline.files import write_json
from leadline.models import Decoder
from leadline.ops import chunked_cross_entropy, use_backend
from leadline.ops.choice import why_not
from leadline.probes import DepthRecord, record
from leadline.training.checkpoint import (
    Resume,
    checkpoints,
    choose_checkpoint,
    drop_later,
    load_checkpoint,
    save_checkpoint,
)
from leadline.training.config import RunConfig
from leadline.training.evaluation import Evaluation, autocast, chunk_for, evaluate, loss_of
from leadline.training.gradient_share import GradientShare, share_of
from leadline.training.interrupt import catch_interrupt
from leadline.training.memory import keep_freed_memory, peak_memory
from leadline.training.optimiser import make_optimiser, rate_at
from leadline.training.records import Lines
from leadline.training.resolve import Run, decide, usable_device
from leadline.training.run_folder import RUN_FILE, claim
from leadline.training.tensorboard import Events, require_tensorboard

SAVE_SECONDS = 600.0
"""Between checkpoints, where no number of steps is given."""
OnStep = Callable[[dict[str, Any]], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """What a finished run says of itself; `summary.json`.

    Attributes:
        loss: held-out, nats a token.
        bits_per_byte: held-out.
        tokens_per_second: of training alone, without evaluations and checkpoints.
        peak_memory_bytes: of the GPU, or of the process on a CPU.
        flops_per_token: of training, the operators along depth included.
        depth_flops_per_token: of these alone.
        seconds: of training alone.
    """

    loss: float
    bits_per_byte: float
    train_loss: float
    steps: int
    tokens: int
    tokens_per_second: float
    peak_memory_bytes: int
    parameters: int
    flops_per_token: int
    depth_flops_per_token: int
    seconds: float
    learning_rate: float
    notes: tuple[str, ...]


def train(config: RunConfig, out: Path | str, *, resume: Resume = "newest", on_step: OnStep | None = None) -> Summary:
    """Trains one model, or goes on training it, in the folder `out`.

    Args:
        config: the run.
        out: holds the run's records, checkpoints and summary.
        resume: go on from the newest checkpoint of a run that is there, or from the one before it ("previous"), or
            take such a run for an error ("never").
        on_step: called with every step's record.

    Returns:
        The summary, also of a run that had ended before.

    Raises:
        UsageError: an option doesn't work, or `out` holds something else.
        LeadlineError: a loss or gradient that is not finite, damaged files, a full disk, too little memory.
        KeyboardInterrupt: asked to stop; the run is saved and continues with the same call.
    """
    out = Path(out)
    run = decide(config)
    if resume == "never" and (out / RUN_FILE).exists():
        raise UsageError(f"--resume never: --out {out} holds a run already; continue it, or name another folder")
    reason = why_not(config.backend, usable_device(config.device).type)
    if reason is not None:
        raise UsageError(f"--backend {config.backend} can't run here: {reason}; auto, lean and reference can")
    if config.tensorboard:
        require_tensorboard()
    if resume == "previous":
        choose_checkpoint(out, resume)
    claim(out, run)
    if (out / "summary.json").is_file() and resume != "previous":
        return _read_summary(out / "summary.json")
    try:
        return Trainer(run, out, on_step, resume=resume).train()
    except torch.OutOfMemoryError as error:
        raise LeadlineError(
            f"{config.device} has too little memory for this run; a larger --accumulation or --recompute needs less"
        ) from error


class Trainer:
    """A run under way.

    Attributes:
        model: the decoder.
        step: how many steps are done.
    """

    def __init__(self, run: Run, out: Path, on_step: OnStep | None = None, *, resume: Resume = "newest") -> None:
        self.run, self.out, self.on_step = run, out, on_step
        config = run.config
        self.device = usable_device(config.device)
        keep_freed_memory()
        self.model = Decoder(run.model, seed=config.seed).to(self.device)
        self.model.recompute = config.recompute
        self.forward = torch.compile(self.model) if config.compile else self.model
        self.hidden = torch.compile(self.model.hidden) if config.compile else self.model.hidden
        pass_tokens = run.batch_size // config.accumulation * run.context
        self.loss_chunk = chunk_for(pass_tokens, run.model.vocab_size, config.loss_chunk)
        self.optimiser = make_optimiser(self.model, config, run.learning_rate)
        self.share = GradientShare(self.model)
        self.loader = Loader(run.data.train, run.batch_size, run.context, config.seed)
        self.step = 0
        self.seconds = 0.0
        self.train_loss = 0.0
        self._saved = -1
        self._saved_at = time.monotonic()
        self._restore(resume)
        self.steps_file = Lines(out / "steps.jsonl", self.step)
        # The evaluation at the end comes after the last step; a run stopped between the two makes it once more.
        self.evals_file = Lines(out / "evals.jsonl", self.step if self.step < run.steps else self.step - 1)
        self.depth_file = Lines(out / "depth.jsonl", self.step)
        self.events = Events(out / "tensorboard", self.step) if config.tensorboard else None
        self.refresh_every = min(max(run.steps // 50, 1), 1000)

    def _restore(self, resume: Resume) -> None:
        chosen = choose_checkpoint(self.out, resume)
        if chosen is None:
            return
        try:
            state = load_checkpoint(chosen, self.model, self.optimiser, self.device)
            self.loader.load(state["loader"])
            self.share.load(state["gradient"])
        except (LeadlineError, KeyError, TypeError, ValueError) as error:
            older = resume != "previous" and len(checkpoints(self.out)) > 1
            advice = "--resume previous goes on from the checkpoint before it" if older else "start in another folder"
            raise LeadlineError(f"can't go on from {chosen}: {error}; {advice}") from error
        self.step, self.seconds, self.train_loss = state["step"], state["seconds"], state["train_loss"]
        self._saved = self.step
        if resume == "previous":
            drop_later(self.out, chosen)

    def train(self) -> Summary:
        """Runs all steps that are left and writes the summary."""
        with contextlib.ExitStack() as stack:
            for lines in (self.steps_file, self.evals_file, self.depth_file):
                stack.callback(lines.close)
            if self.events is not None:
                stack.callback(self.events.close)
            stack.enter_context(use_backend(self.run.config.backend))
            interrupt = stack.enter_context(catch_interrupt())
            while self.step < self.run.steps:
                self._one_step()
                last = self.step == self.run.steps
                if self.step % self.run.evaluate_every == 0 and not last:
                    self._evaluate()
                if not last and (interrupt.asked or self._checkpoint_is_due()):
                    self.save()
                if not last and interrupt.asked:
                    raise KeyboardInterrupt
            return self._finish()

    def _one_step(self) -> None:
        begin = time.perf_counter()
        config, step, position = self.run.config, self.step + 1, self.loader.state()
        rate = self.run.learning_rate * rate_at(step, self.run.steps, config)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        wanted = config.record_every > 0 and step % config.record_every == 0
        loss, depth = self._gradients(self.loader.next(), wanted)
        # The one place where a step waits for the device.
        found = torch.cat((loss.view(1), self.share.measure())).cpu()
        loss_value, norms = float(found[0]), found[1:]
        norm_value = float(torch.linalg.vector_norm(norms, dtype=torch.float64))
        if not (math.isfinite(loss_value) and math.isfinite(norm_value)):
            self._stop_at_non_finite(step, loss_value, position)
        if config.clip is not None and norm_value > config.clip:
            torch._foreach_mul_([p.grad for p in self.share.parameters if p.grad is not None], config.clip / norm_value)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.share.add(norms)
        self.step, self.train_loss = step, loss_value
        if step % self.refresh_every == 0:
            self.model.refresh_statistics()
        seconds = time.perf_counter() - begin
        self.seconds += seconds
        self._tell(rate, norm_value, seconds)
        if depth is not None:
            self._tell_depth(depth)

    def _gradients(self, batch: Batch, wanted: bool) -> tuple[torch.Tensor, DepthRecord | None]:
        """The mean loss, and gradients in place; the same for any number of passes."""
        config = self.run.config
        parts = config.accumulation
        loss = torch.zeros((), device=self.device)
        depth = None
        pieces = zip(batch.tokens.chunk(parts), batch.targets.chunk(parts), strict=True)
        for number, (tokens, targets) in enumerate(pieces):
            tokens, targets = tokens.to(self.device), targets.to(self.device)
            recording: contextlib.AbstractContextManager[DepthRecord | None] = contextlib.nullcontext()
            recorded = wanted and number == 0
            if recorded:
                recording = record(self.model, inspect=True)
            with recording as seen, autocast(self.device, config.precision):
                part = self._loss(tokens, targets, compiled=not recorded) / parts
            depth = seen if seen is not None else depth
            part.backward()
            loss = loss + part.detach().float()
        return loss, depth

    def _loss(self, tokens: torch.Tensor, targets: torch.Tensor, *, compiled: bool) -> torch.Tensor:
        if self.loss_chunk is None:
            return loss_of((self.forward if compiled else self.model)(tokens), targets)
        hidden = (self.hidden if compiled else self.model.hidden)(tokens)
        return chunked_cross_entropy(hidden.flatten(0, 1), self.model.head_weight, targets.flatten(), self.loss_chunk)

    def _stop_at_non_finite(self, step: int, loss: float, position: dict[str, int]) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        self.loader.load(position)
        self.save()
        what = "the loss" if not math.isfinite(loss) else "the gradient"
        where = f"epoch {position['epoch']}, sequence {position['index']} and the {self.run.batch_size - 1} after it"
        raise LeadlineError(
            f"{what} of step {step} is not finite (batch: {where}); the weights are those of step {step - 1}, saved in "
            f"{self.out}. Another run with a lower --lr or a longer --warmup may get past it"
        )

    def _tell(self, rate: float, norm: float, seconds: float) -> None:
        told = {
            "step": self.step,
            "tokens": self.step * self.run.batch_tokens,
            "loss": self.train_loss,
            "lr": rate,
            "grad_norm": norm,
            "tokens_per_second": self.run.batch_tokens / seconds,
            "memory_bytes": peak_memory(self.device),
        }
        self.steps_file.add(told)
        if self.events is not None:
            self.events.add(told)
        if self.on_step is not None:
            self.on_step({**told, "steps": self.run.steps})

    def _tell_depth(self, depth: DepthRecord) -> None:
        self.depth_file.add(
            {
                "step": self.step,
                "read_rms": depth.read_rms,
                "output_rms": depth.output_rms,
                "block_output_rms": depth.block_output_rms,
                "gradient_norm": self.share.last,
                "gradient_share": share_of(self.share.last),
                "connection": depth.connection,
            }
        )

    def _evaluate(self) -> Evaluation:
        run = self.run
        result = evaluate(
            self.model,
            run.data.heldout,
            batch_size=max(1, run.batch_size // run.config.accumulation),
            context=run.context,
            tokens=run.config.evaluate_tokens,
            device=self.device,
            precision=run.config.precision,
        )
        if not math.isfinite(result.loss):
            raise LeadlineError(
                f"the held-out loss after step {self.step} is not finite; another run with a lower --lr may do better"
            )
        told = {"step": self.step, "tokens": self.step * run.batch_tokens, **result._asdict()}
        self.evals_file.add(told)
        if self.events is not None:
            self.events.add({"step": self.step, "heldout_loss": result.loss, "bits_per_byte": result.bits_per_byte})
        return result

    def save(self) -> None:
        """Writes a checkpoint of the step at hand, once."""
        for lines in (self.steps_file, self.evals_file, self.depth_file):
            lines.flush()
        if self._saved == self.step:
            return
        state = {
            "step": self.step,
            "seconds": self.seconds,
            "train_loss": self.train_loss,
            "loader": self.loader.state(),
            "gradient": self.share.state(),
        }
        save_checkpoint(self.out, self.model, self.optimiser, state, keep=self.run.config.keep)
        self._saved, self._saved_at = self.step, time.monotonic()

    def _checkpoint_is_due(self) -> bool:
        every = self.run.config.checkpoint_every
        if every is None:
            return time.monotonic() - self._saved_at >= SAVE_SECONDS
        return self.step % every == 0

    def _finish(self) -> Summary:
        self.model.refresh_statistics()
        self.save()
        result = self._evaluate()
        self.evals_file.flush()
        run = self.run
        flops = count_flops(run.model)
        summary = Summary(
            loss=result.loss,
            bits_per_byte=result.bits_per_byte,
            train_loss=self.train_loss,
            steps=self.step,
            tokens=self.step * run.batch_tokens,
            tokens_per_second=self.step * run.batch_tokens / max(self.seconds, 1e-9),
            peak_memory_bytes=peak_memory(self.device),
            parameters=count_parameters(run.model).total,
            flops_per_token=flops.training_total,
            depth_flops_per_token=flops.training_depth,
            seconds=self.seconds,
            learning_rate=run.learning_rate,
            notes=tuple(run.design.notes(run.shape)),
        )
        try:
            write_json(self.out / "gradient.json", self.share.report())
            write_json(self.out / "summary.json", to_dict(summary))
        except OSError as error:
            raise LeadlineError(f"can't write the summary into {self.out}: {error.strerror or error}") from error
        return summary


def _read_summary(path: Path) -> Summary:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return Summary(**{**content, "notes": tuple(content["notes"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise LeadlineError(f"{path} is damaged ({error}); remove it to finish the run again") from error
