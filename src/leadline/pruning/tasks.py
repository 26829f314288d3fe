"""Questions with several answers: the share that a stack gets right.

A task is a file of JSON lines, each with `question`, `choices` (two or more texts) and `answer`, the number of the
right one from 0. A choice is scored by the log-likelihood of its text after the question, per byte of it, as lm-eval's
`acc_norm`; the best score is the stack's answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from leadline.data import Tokenizer
from leadline.errors import LeadlineError, UsageError
from leadline.hub.open import OpenedModel
from leadline.probes.watch import measuring
from leadline.stacks import Stack


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question, its choices, the number of the right one from 0, and the line of its file, from 1."""

    question: str
    choices: tuple[str, ...]
    answer: int
    line: int | None = None


@dataclass(frozen=True, kw_only=True)
class Task:
    """Questions and what they are called."""

    name: str
    questions: tuple[Question, ...]


def read_task(path: Path) -> Task:
    """The questions of a file.

    Raises:
        UsageError: there is no such file, or none in it.
        LeadlineError: a line that is no question; it is named.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        raise UsageError(f"--task {path} isn't there; it is a file of JSON lines") from error
    except (OSError, UnicodeDecodeError) as error:
        raise LeadlineError(f"can't read --task {path}: {error}") from error
    questions = tuple(_question(path, number, line) for number, line in enumerate(lines, start=1) if line.strip())
    if not questions:
        raise UsageError(f"--task {path} holds no questions; a line is an object with question, choices and answer")
    return Task(name=path.stem, questions=questions)


def check_task(task: Task, tokenizer: Tokenizer) -> None:
    """Raises LeadlineError where a choice has no tokens, and so no likelihood; it names the line."""
    for question in task.questions:
        for choice in question.choices:
            _tokens(tokenizer, question, choice)


def accuracy_on(stack: Stack, opened: OpenedModel, task: Task) -> float:
    """The share of questions whose right choice has the best score by `stack`, in the tokens of `opened`.

    Raises:
        LeadlineError: a choice that has no tokens.
    """
    right = 0
    with measuring(stack.model):
        for question in task.questions:
            scores = [_score(stack, opened, question, choice) for choice in question.choices]
            right += max(range(len(scores)), key=scores.__getitem__) == question.answer
    return right / len(task.questions)


def _score(stack: Stack, opened: OpenedModel, question: Question, choice: str) -> float:
    """The log-likelihood of a choice per byte, in nats."""
    tokenizer = opened.tokenizer
    first = tokenizer.separator if opened.begins is None else opened.begins
    before = [first, *(int(token) for token in tokenizer.encode(question.question))]
    after = _tokens(tokenizer, question, choice)
    tokens = (before + after)[-(stack.context + 1) :]
    asked = tokens[-len(after) :]
    logits: Tensor = stack.logits(torch.tensor([tokens[:-1]], device=stack.device))[0, -len(asked) :]
    chosen = torch.tensor(asked[-len(logits) :], device=stack.device)
    likely = torch.log_softmax(logits.float(), dim=-1).gather(-1, chosen.unsqueeze(-1))
    return float(likely.sum()) / len(choice.encode())


def _tokens(tokenizer: Tokenizer, question: Question, choice: str) -> list[int]:
    tokens = [int(token) for token in tokenizer.encode(choice)]
    if not tokens:
        where = "" if question.line is None else f", line {question.line}"
        raise LeadlineError(
            f"--task{where}: the choice {choice!r} has no tokens in this model's tokenizer, so nothing can be said of "
            "it; choices of words or numbers work"
        )
    return tokens


def _question(path: Path, number: int, line: str) -> Question:
    try:
        value = json.loads(line)
        choices = tuple(_texts(value["choices"]))
        found = Question(question=str(value["question"]), choices=choices, answer=int(value["answer"]), line=number)
    except (ValueError, TypeError, KeyError) as error:
        raise LeadlineError(f"--task {path}, line {number} is no question with question, choices and answer") from error
    if len(choices) < 2 or not 0 <= found.answer < len(choices) or not all(choices):
        raise LeadlineError(f"--task {path}, line {number}: answer counts from 0, and two or more choices have text")
    return found


def _texts(values: object) -> Iterator[str]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise TypeError("choices should be a list of texts")
    yield from values
