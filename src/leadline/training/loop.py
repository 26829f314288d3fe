"""The training loop."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from leadline.config import to_dict
from leadline.data import Loader
from leadline.designs import count_flops, count_parameters
from leadline.distributed import ALONE, World, joined, shard
from leadline.errors import LeadlineError, UsageError
from leadline.files import forget_sums, write_json, write_sums
from leadline.interrupt import catch_interrupt
from leadline.models import Decoder
from leadline.models.compiling import eager_blocks
from leadline.ops import use_backend
from leadline.ops.choice import check_backend
from leadline.probes import DepthRecord
from leadline.training.checkpoint import (
    Resume,
    State,
    check_position,
    checkpoints,
    choose_checkpoint,
    drop_later,
    load_checkpoint,
    save_checkpoint,
)
from leadline.training.config import RunConfig, options_of
from leadline.training.evaluation import Evaluation, OnSequences, Reading, evaluate, evaluate_exits
from leadline.training.extending import extended
from leadline.training.gradient_file import write_gradient
from leadline.training.gradient_share import Diversity, GradientShare, detail_of
from leadline.training.gradient_steps import find_norms, share_of
from leadline.training.interventions import equalise, equalised_updates
from leadline.training.memory import keep_freed_memory, peak_memory
from leadline.training.optimiser import decay_start, make_optimiser, rate_at, warmup_steps
from leadline.training.records import DEPTH, EVALS, STEPS, SUMMARY, Lines, Summary, read_summary, write_sequences
from leadline.training.resolve import Run, check_parallel, decide, usable_device
from leadline.training.run_folder import check_there, config_of, run_in
from leadline.training.step import Passes
from leadline.training.tracking import Tracker, open_tracker, require_trackers, trackers_of

SAVE_SECONDS = 600.0
"""Between checkpoints, where no number of steps is given."""
OnStep = Callable[[dict[str, Any]], None]
OnEvaluation = Callable[[int, float], None]
OnEvaluated = Callable[[dict[str, Any]], None]
OnStart = Callable[[Run], None]


def train(
    config: RunConfig | str,
    out: Path | str,
    *,
    resume: Resume = "newest",
    extend: int | None = None,
    on_step: OnStep | None = None,
    on_evaluation: OnEvaluation | None = None,
    on_evaluated: OnEvaluated | None = None,
    on_start: OnStart | None = None,
    **options: Any,
) -> Summary:
    """Trains one model, or resumes its training, in the folder `out`.

    Args:
        config: the run, or a design's name or expression.
        options: of the run, by the names that they have in any section of `RunConfig`.
        out: holds the run's records, checkpoints and summary.
        resume: from the newest checkpoint of a run that is there, or from the one before it ("previous"), or
            take such a run for an error ("never").
        extend: tokens to train on beyond the end of the run in `out`, whose options hold where none are given;
            the same call resumes what it began, and called after that end it extends the run once more.
        on_step: called with every step's record.
        on_evaluation: called after every batch of an evaluation, with the step it follows and the seconds so far.
        on_evaluated: called with every evaluation's record.
        on_start: called with the run, every value decided, before anything is built or compiled.

    Returns:
        The summary, also of a run that had ended before.

    Raises:
        UsageError: an option doesn't work, or `out` holds something else.
        LeadlineError: a loss or gradient that is not finite, damaged files, a full disk, too little memory.
        KeyboardInterrupt: asked to stop; the run is saved and continues with the same call.
    """
    out = Path(out)
    if extend is not None:
        if resume != "newest":
            raise UsageError(f"--extend goes on from a checkpoint of its own; leave out --resume {resume}")
        config = extended(config_of(out), out, config, extend).replaced(**options)
    else:
        config = RunConfig.of(config, **options) if isinstance(config, str) else config.replaced(**options)
    run = decide(config)
    check_backend(config.runtime.backend, usable_device(config.runtime.device).type)
    require_trackers(trackers_of(config.logging.log_to))
    if resume == "previous":
        choose_checkpoint(out, resume)
    device, parallel = usable_device(config.runtime.device), config.parallel
    with contextlib.ExitStack() as stack:
        world = stack.enter_context(joined(device, parallel.replicate, parallel.shard))
        check_parallel(run, world)
        with world.first():
            if world.main:
                stack.enter_context(run_in(out, run, new=resume == "never", extend=extend is not None))
        if (out / SUMMARY).is_file() and resume != "previous":
            return read_summary(out / SUMMARY)
        if on_start is not None and world.main:
            on_start(run)
        told = Told(on_step, on_evaluation, on_evaluated) if world.main else NOBODY
        try:
            return Trainer(run, out, told, resume=resume, world=world).train()
        except torch.OutOfMemoryError as error:
            raise LeadlineError(
                f"{config.runtime.device} has too little memory for this run; a larger --grad-accumulation or "
                "--activation-checkpointing needs less"
            ) from error


class Told(NamedTuple):
    """Who is told of steps and evaluations; see `train`."""

    step: OnStep | None = None
    evaluation: OnEvaluation | None = None
    evaluated: OnEvaluated | None = None


NOBODY = Told()


class Trainer:
    """A run under way.

    Attributes:
        model: the decoder.
        step: how many steps are done.
    """

    def __init__(
        self,
        run: Run,
        out: Path,
        told: Told = NOBODY,
        *,
        resume: Resume = "newest",
        world: World = ALONE,
    ) -> None:
        self.run, self.out, self.told, self.world = run, out, told, world
        config = run.config
        self.device = world.device
        keep_freed_memory()
        self.model = Decoder(run.model, seed=config.seed).to(self.device)
        shard(self.model, world)
        self.model.recompute = config.runtime.activation_checkpointing
        self.model.prefetch = config.runtime.two_phase
        self.passes = Passes(self.model, run, self.device)
        self.optimiser = make_optimiser(self.model, config, run.learning_rate)
        since, until = config.logging.gradient_from, config.logging.gradient_until
        warmup = warmup_steps(run.first_steps, config.schedule)
        self.share = GradientShare(self.model, since=since, until=until, clip=config.optimizer.clip, warmup=warmup)
        self.equalised: GradientShare | None = None
        if config.interventions.equalise:
            self.equalised = GradientShare(self.model, since=since, until=until, keep_norms=False)
        self.loader = Loader(
            run.data.train, run.batch_size // world.size, run.context, config.seed, rank=world.rank, world=world.size
        )
        self.step = 0
        self.seconds = 0.0
        self.train_loss = 0.0
        self._saved = -1
        self._saved_at = time.monotonic()
        self._restore(resume)
        world.wait()
        self.files: dict[str, Lines] = {}
        if world.main:
            forget_sums(out)  # of a run that had ended, whose records change now
            # The evaluation at the end comes after the last step; a run stopped between the two makes it once more.
            ends = {STEPS: self.step, EVALS: self.step - (self.step == run.steps), DEPTH: self.step}
            self.files = {name: Lines(out / name, end) for name, end in ends.items()}
            self.files[STEPS].check(self.step, self.train_loss)
        self.trackers: list[Tracker] = []
        self.refresh_every = min(max(run.first_steps // 50, 1), 1000)
        self.decay_start = decay_start(run.steps, config.schedule)
        self.restarts = config.schedule.extended if self.decay_start is None else ()

    def _restore(self, resume: Resume) -> None:
        chosen = choose_checkpoint(self.out, resume)
        if chosen is None:
            return
        try:
            state = load_checkpoint(chosen, self.model, self.optimiser, self.device)
            self.loader.load(state["loader"])
            check_position(state, self.loader.windows, self.run.batch_size)
            self.share.load(state["gradient"], find_norms(chosen))
            if self.equalised is not None:
                self.equalised.load(state["equalised"])
        except (LeadlineError, KeyError, TypeError, ValueError, RuntimeError) as error:
            older = resume != "previous" and len(checkpoints(self.out)) > 1
            advice = "--resume previous resumes from the checkpoint before it" if older else "start in another folder"
            raise LeadlineError(f"can't resume from {chosen}: {error}; {advice}") from error
        self.step, self.seconds, self.train_loss = state["step"], state["seconds"], state["train_loss"]
        self._saved = self.step
        self.world.wait()
        if resume == "previous" and self.world.main:
            drop_later(self.out, chosen)

    def train(self) -> Summary:
        """Runs all steps that are left and writes the summary."""
        with contextlib.ExitStack() as stack:
            for lines in self.files.values():
                stack.callback(lines.close)
            for name in trackers_of(self.run.config.logging.log_to) if self.world.main else ():
                tracker = open_tracker(name, self.out, self.step, options_of(self.run.config))
                stack.callback(tracker.close)
                self.trackers.append(tracker)
            stack.enter_context(use_backend(self.run.config.runtime.backend))
            interrupt = stack.enter_context(catch_interrupt())
            while self.step < self.run.steps:
                self._one_step()
                last = self.step == self.run.steps
                if self.step % self.run.evaluate_every == 0 and not last:
                    self._evaluate()
                asked, due = self._agreed(interrupt.asked, self._checkpoint_is_due())
                if not last and (asked or due):
                    self.save()
                if not last and asked:
                    raise KeyboardInterrupt
            return self._finish()

    def _agreed(self, *wishes: bool) -> list[bool]:
        """Whether any process wishes it: signals and clocks reach them at different steps."""
        if self.world.size == 1:
            return list(wishes)
        return [bool(wish) for wish in self.world.total(torch.tensor(wishes, dtype=torch.int32, device=self.device))]

    def _one_step(self) -> None:
        begin = time.perf_counter()
        config, step, position = self.run.config, self.step + 1, self.loader.state()
        rate = self.run.learning_rate * rate_at(step, self.run.steps, config.schedule)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        wanted = config.logging.record_every > 0 and step % config.logging.record_every == 0
        detailed = config.logging.gradient_every > 0 and step % config.logging.gradient_every == 0
        diversity = Diversity(self.share) if detailed else None
        losses, depth = self.passes.gradients(self.loader.next(), step, recorded=wanted, diversity=diversity)
        measured = self.share.measure()
        mean = self.world.total(torch.stack(losses)) / self.world.size
        # The one place where a step waits for the device.
        found = torch.cat((mean, measured.values)).cpu()
        loss, exit_loss, norms = float(found[0]), float(found[1]), measured._replace(values=found[2:])
        norm = float(torch.linalg.vector_norm(norms.values, dtype=torch.float64))
        if not (math.isfinite(loss + exit_loss) and math.isfinite(norm)):
            self._stop_at_non_finite(step, loss + exit_loss, position)
        self.share.add(norms)
        if diversity is not None:
            self.share.note(detail_of(step, self.share, diversity))
        self._clip(self._equalise(norm))
        equal = (
            equalised_updates(self.share, self.optimiser)
            if config.interventions.equalise_updates
            else contextlib.nullcontext()
        )
        with equal:
            self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.step, self.train_loss = step, loss
        if step % self.refresh_every == 0 or step in self.restarts:
            self.model.refresh_statistics()
        seconds = time.perf_counter() - begin
        self.seconds += seconds
        self._tell(rate, norm, seconds, exit_loss)
        if depth is not None or diversity is not None:
            self._tell_depth(depth)

    def _equalise(self, norm: float) -> float:
        """The norm of the gradients as they are now: made equal over blocks, where the run asks for it."""
        if self.equalised is None:
            return norm
        equalise(self.share)
        measured = self.equalised.measure()
        measured = measured._replace(values=measured.values.cpu())
        self.equalised.add(measured)
        return float(torch.linalg.vector_norm(measured.values, dtype=torch.float64))

    def _clip(self, norm: float) -> None:
        clip = self.run.config.optimizer.clip
        if clip is not None and norm > clip:
            torch._foreach_mul_([p.grad for p in self.share.parameters if p.grad is not None], clip / norm)

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

    def _tell(self, rate: float, norm: float, seconds: float, exit_loss: float) -> None:
        told: dict[str, Any] = {
            "step": self.step,
            "tokens": self.step * self.run.batch_tokens,
            "loss": self.train_loss,
            "lr": rate,
            "grad_norm": norm,
            "tokens_per_second": self.run.batch_tokens / seconds,
            "memory_bytes": peak_memory(self.device),
        }
        skip = self.run.layerskip
        if skip.exits:
            told["exit_loss"] = exit_loss
        if skip.drops:
            told["dropped"] = sorted(skip.dropped(self.step))
        self._note(STEPS, told)
        self._track({name: value for name, value in told.items() if name != "dropped"})
        if self.told.step is not None:
            self.told.step({**told, "steps": self.run.steps})

    def _note(self, name: str, told: dict[str, Any]) -> None:
        if name in self.files:
            self.files[name].add(told)

    def _tell_depth(self, depth: DepthRecord | None) -> None:
        told: dict[str, Any] = {"step": self.step}
        if depth is not None:
            told |= {
                "read_rms": depth.read_rms,
                "output_rms": depth.output_rms,
                "block_output_rms": depth.block_output_rms,
            }
        told |= {"gradient_norm": self.share.last, "gradient_share": share_of(self.share.last)}
        if self.equalised is not None:
            told["equalised_norm"] = self.equalised.last
        if self.share.details and self.share.details[-1]["step"] == self.step:
            detail = self.share.details[-1]
            told |= {"gradient_effective_rank": detail["effective_rank"], "gradient_cosine": detail["cosine"]}
        if depth is not None:
            told["connection"] = depth.connection
        self._note(DEPTH, told)

    def _evaluate(self, on_sequences: OnSequences | None = None) -> Evaluation:
        run, began = self.run, time.monotonic()

        def on_batch() -> None:
            if self.told.evaluation is not None:
                self.told.evaluation(self.step, time.monotonic() - began)

        size = max(1, run.batch_size // (run.config.data.grad_accumulation * self.world.size))
        precision = run.config.runtime.precision
        reading = Reading(size, run.context, run.evaluate_tokens, self.device, precision, on_batch, self.world)
        with eager_blocks(self.model):  # other sizes than a step's
            result = evaluate(self.model, run.data.heldout, reading, on_sequences=on_sequences)
        if not math.isfinite(result.loss):
            raise LeadlineError(
                f"the held-out loss after step {self.step} is not finite; another run with a lower --lr may do better"
            )
        told: dict[str, Any] = {"step": self.step, "tokens": self.step * run.batch_tokens, **result._asdict()}
        if run.layerskip:
            with eager_blocks(self.model):
                told["exit_losses"] = evaluate_exits(self.model, run.data.heldout, reading)
        self._note(EVALS, told)
        if self.told.evaluated is not None:
            self.told.evaluated(told)
        self._track({"step": self.step, "heldout_loss": result.loss, "bits_per_byte": result.bits_per_byte})
        return result

    def _track(self, told: dict[str, Any]) -> None:
        for tracker in self.trackers:
            tracker.add(told)

    def save(self) -> None:
        """Writes a checkpoint of the current step, once."""
        for lines in self.files.values():
            lines.flush()
        check_there(self.out)
        if self._saved == self.step:
            return
        state: State = {
            "step": self.step,
            "seconds": self.seconds,
            "train_loss": self.train_loss,
            "loader": self.loader.state(),
            "gradient": self.share.state(),
        }
        if self.equalised is not None:
            state["equalised"] = self.equalised.state()
        report = self._gradient()
        norms, keep = self.share.norms(), self.run.config.checkpoints.keep
        save_checkpoint(
            self.out,
            self.model,
            self.optimiser,
            state,
            keep=keep,
            kept_step=self.decay_start,
            gradient=report,
            norms=norms,
            world=self.world,
        )
        if self.world.main:
            write_gradient(self.out, report, norms)
        self._saved, self._saved_at = self.step, time.monotonic()

    def _gradient(self) -> dict[str, Any]:
        report = self.share.report()
        if self.equalised is not None:
            report["equalised"] = self.equalised.report()
        return report

    def _checkpoint_is_due(self) -> bool:
        every = self.run.config.checkpoints.checkpoint_every
        if self.step == self.decay_start:  # from here the run can be extended
            return True
        if every is None:
            return time.monotonic() - self._saved_at >= SAVE_SECONDS
        return self.step % every == 0

    def _finish(self) -> Summary:
        self.model.refresh_statistics()
        self.save()
        sequences: list[Tensor] = []
        result = self._evaluate(lambda losses: sequences.append(losses.cpu()))
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
            notes=tuple(run.notes()),
        )
        if not self.world.main:
            return summary
        try:
            self.files[EVALS].flush()
            write_gradient(self.out, self._gradient(), self.share.norms())
            write_sequences(self.out, torch.cat(sequences))
            write_json(self.out / SUMMARY, to_dict(summary))
            write_sums(self.out)
        except OSError as error:
            raise LeadlineError(f"can't write the summary into {self.out}: {error.strerror or error}") from error
        return summary
