"""`leadline generate`: text from a model, as it comes."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from leadline.report.words import percent

if TYPE_CHECKING:
    from torch import Tensor

    from leadline.data.tokenizers import Tokenizer
    from leadline.models import Decoder, EarlyExit, ExitStatistics

_CONTEXT = 8
"""Tokens decoded again with each new one: spaces and characters may depend on the tokens before."""


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Write text with a model: the prompt and what follows it, on standard output, as it comes.

    With --exit-block it leaves the stack early: always, where it is sure (--exit-confidence), or to guess ahead and let
    the whole model check (--draft), which changes no token. What came of it is told at the end, on standard error.

    Example: leadline generate runs/demo/runs/prenorm-seed0 --prompt "My fellow citizens" --temperature 0.8
    """

    model: tyro.conf.Positional[Path]
    """A run's folder, or a folder with config.json, model.safetensors and tokenizer.json."""

    prompt: str = ""
    """The text to continue; without it a new document begins."""

    tokens: str = "200"
    """How many tokens at most: 200, 1k. A document's end comes earlier."""

    temperature: float = 1.0
    """Divides the logits: 0 takes the most likely token, under 1 is tamer, above 1 wilder."""

    top_k: int | None = None
    """Choose only among the k most likely tokens."""

    top_p: float | None = None
    """Choose only among the most likely tokens that together have this probability."""

    seed: int = 0
    """The same seed gives the same text on the same kind of device."""

    exit_block: int | None = None
    """Leave the stack early: how many blocks run before the exit; 8 means blocks 0 to 7."""

    exit_confidence: float | None = None
    """Leave only where the exit's most likely token has at least this probability, such as 0.9."""

    draft: int | None = None
    """Guess so many tokens at the exit; the whole model checks them in one pass, and the text is its own."""

    device: str = "auto"
    """Where to run: auto (a CUDA GPU where there is one), cpu, cuda, cuda:1, mps."""

    backend: Literal["auto", "reference", "lean", "compiled", "triton"] = "auto"
    """Of the depth operators; on a CPU auto is lean, and compiled is faster after some seconds."""

    two_phase: bool = False
    """Attention Residuals in two phases: finished sources are read once for several sublayers."""

    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Also write prompt, text, tokens and speed to this file."""


def run(arguments: Arguments) -> int:
    """Streams the text; returns 0."""
    import torch

    from leadline.counts import parse_count
    from leadline.designs import check_two_phase
    from leadline.errors import UsageError
    from leadline.files import write_json
    from leadline.models import ExitStatistics, stream_early, stream_tokens
    from leadline.ops import use_backend
    from leadline.ops.choice import check_backend
    from leadline.training.resolve import usable_device

    count = parse_count(arguments.tokens, "--tokens")
    try:
        arguments.prompt.encode()
    except UnicodeEncodeError:
        raise UsageError("--prompt is not text: it holds bytes that are not UTF-8") from None
    check_backend(arguments.backend, usable_device(arguments.device).type)
    model, tokenizer = open_model(arguments.model, arguments.device)
    if arguments.two_phase:
        check_two_phase(model.config.connection)
        model.prefetch = True
    prompt = [int(token) for token in tokenizer.encode(arguments.prompt)] or [tokenizer.separator]
    exit = _early_exit(arguments, model)
    statistics = ExitStatistics()
    begin = time.perf_counter()
    options: dict[str, Any] = {
        "temperature": arguments.temperature,
        "top_k": arguments.top_k,
        "top_p": arguments.top_p,
        "seed": arguments.seed,
        "stop_token": tokenizer.separator,
    }
    start = torch.tensor([prompt])
    if exit is None:
        steps = stream_tokens(model, start, count, **options)
    else:
        steps = stream_early(model, start, count, exit=exit, statistics=statistics, **options)
    tokens: list[int] = []
    print(arguments.prompt, end="", flush=True)
    with use_backend(arguments.backend):
        for piece in stream_text(tokenizer, prompt, _kept(steps, tokens)):
            print(piece, end="", flush=True)
    print(flush=True)
    seconds = time.perf_counter() - begin
    if exit is not None:
        print(told(exit, statistics, len(model.blocks)), file=sys.stderr)
    if arguments.json is not None:
        result: dict[str, Any] = {
            "model": str(arguments.model),
            "prompt": arguments.prompt,
            "text": tokenizer.decode(tokens),
            "tokens": tokens,
            "seed": arguments.seed,
            "seconds": seconds,
            "tokens_per_second": len(tokens) / seconds,
        }
        if exit is not None:
            result["early_exit"] = {
                **dataclasses.asdict(exit),
                **dataclasses.asdict(statistics),
                "left_share": statistics.left_share,
                "accepted_share": statistics.accepted_share,
                "cache": exit.filling,
            }
        write_json(arguments.json, result)
    return 0


def _early_exit(arguments: Arguments, model: Decoder) -> EarlyExit | None:
    """What --exit-block, --exit-confidence and --draft ask for.

    Raises:
        UsageError: an option that needs another, or has no such value for this model.
    """
    from leadline.errors import UsageError
    from leadline.models import EarlyExit

    given = {
        "--exit-block": arguments.exit_block,
        "--exit-confidence": arguments.exit_confidence,
        "--draft": arguments.draft,
    }
    given = {option: value for option, value in given.items() if value is not None}
    if arguments.exit_block is None:
        if given:
            raise UsageError(f"{next(iter(given))} needs --exit-block, the number of blocks before the exit")
        return None
    try:
        exit = EarlyExit(blocks=arguments.exit_block, confidence=arguments.exit_confidence, draft=arguments.draft)
        exit.check(model)
    except UsageError as error:
        raise UsageError(f"{' '.join(f'{option} {value}' for option, value in given.items())}: {error}") from None
    return exit


def told(exit: EarlyExit, statistics: ExitStatistics, blocks: int) -> str:
    """What came of leaving early, and how the cache entries of skipped blocks are filled, in a few sentences."""
    where = f"exit after block {exit.blocks - 1} of blocks 0 to {blocks - 1}"
    passes = f"{statistics.later_passes} passes through the blocks behind it"
    if exit.draft is not None:
        came = f"{statistics.tokens} tokens with {passes}"
        if statistics.accepted_share is not None:
            share = percent(statistics.accepted_share)
            came += f"; {statistics.accepted} of {statistics.drafted} guesses accepted ({share})"
    else:
        came = f"{statistics.left} of {statistics.tokens} tokens left early"
        came += "" if statistics.left_share is None else f" ({percent(statistics.left_share)}), {passes}"
    return f"{where}: {came}. {exit.filling}"


def open_model(path: Path, device: str) -> tuple[Decoder, Tokenizer]:
    """The model and the tokenizer of a run's folder or of a folder that `Decoder.save` wrote, on `device`.

    Raises:
        UsageError: `path` is no such folder, or `device` is none that works here.
        LeadlineError: a file in it is damaged.
    """
    from leadline.data.tokenizers import load_tokenizer
    from leadline.errors import UsageError
    from leadline.hub.open import kind_of
    from leadline.models import Decoder
    from leadline.training.resolve import usable_device
    from leadline.training.run_folder import RUN_FILE

    place = usable_device(device)
    if not path.is_dir():
        raise UsageError(f"{path} is no folder; MODEL is a run's folder or one with config.json and model.safetensors")
    if not (path / RUN_FILE).is_file() and (path / "config.json").is_file() and kind_of(path) == "hugging-face":
        raise UsageError(
            f"{path} is a Hugging Face model; generate writes with Leadline's own (probe and prune take both)"
        )
    if (path / "config.json").is_file() and (path / "tokenizer.json").is_file():
        tokenizer = load_tokenizer(path)
        model = Decoder.load(path)
    else:
        from leadline.training import load_model

        model, tokenizer = load_model(path)
    if tokenizer.vocab_size > model.config.vocab_size:
        raise UsageError(
            f"the tokenizer has {tokenizer.vocab_size} tokens and the model {model.config.vocab_size}: "
            f"the tokenizer.json in {path} is not this model's"
        )
    return model.to(place).eval(), tokenizer


def stream_text(tokenizer: Tokenizer, prompt: list[int], tokens: Iterable[int]) -> Iterator[str]:
    """The text of `tokens` as they come, in whole characters, as it continues `prompt`."""
    known = prompt[-_CONTEXT:]
    told = len(tokenizer.decode(known))
    for token in tokens:
        known.append(token)
        text = tokenizer.decode(known)
        unfinished = text.endswith("\ufffd")
        end = len(text) - unfinished
        yield text[told:end]
        told = max(told, end)
        if not unfinished and len(known) > 8 * _CONTEXT:
            known = known[-_CONTEXT:]
            told = len(tokenizer.decode(known))
    yield tokenizer.decode(known)[told:]


def _kept(steps: Iterable[Tensor], tokens: list[int]) -> Iterator[int]:
    """The numbers in `steps`, each (1,), also added to `tokens`."""
    for step in steps:
        token = int(step)
        tokens.append(token)
        yield token
