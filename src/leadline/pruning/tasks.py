"""Questions with several answers: the share that a stack gets right.

A task is a file of JSON lines, each with `question`, `choices` (two or more texts) and `answer`, the number of the
right one from 0. A choice is scored by the log-likelihood of its text after the question, per byte of it, as lm-eval's
`acc_norm`; the best score is the stack's answer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leadline.data import Tokenizer
from leadline.data.json_lines import read_lines
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
        LeadlineError: a line that is not a question; it is named.
    """
    try:
        with open(path, "rb") as handle:
            lines = read_lines(handle, f"--task {path}")
            questions = tuple(_question(path, number, record) for number, record in lines)
    except FileNotFoundError as error:
        raise UsageError(f"--task {path} isn't there; it is a file of JSON lines") from error
    except OSError as error:
        raise LeadlineError(f"can't read --task {path}: {error}") from error
    if not questions:
        raise UsageError(f"--task {path} holds no questions; a line is an object with question, choices and answer")
    return Task(name=path.stem, questions=questions)


def check_task(task: Task, tokenizer: Tokenizer) -> None:
    """Raises LeadlineError where a choice has no tokens, and so no likelihood; it names the line."""
    for question in task.questions:
        _tokens(tokenizer, question)


def accuracy_on(stack: Stack, opened: OpenedModel, task: Task) -> float:
    """The share of questions whose right choice has the best score by `stack`, in the tokens of `opened`.

    Raises:
        LeadlineError: a choice that has no tokens.
    """
    right = 0
    with measuring(stack.model):
        for question in task.questions:
            before, choices = _tokens(opened.tokenizer, question)
            before.insert(0, opened.tokenizer.separator if opened.begins is None else opened.begins)
            scores = [
                _score(stack, before, after) / len(choice.encode())
                for choice, after in zip(question.choices, choices, strict=True)
            ]
            right += max(range(len(scores)), key=scores.__getitem__) == question.answer
    return right / len(task.questions)


def _score(stack: Stack, before: list[int], after: list[int]) -> float:
    """The log-likelihood of the tokens `after`, in nats."""
    tokens = (before + after)[-(stack.context + 1) :]
    asked = tokens[-len(after) :]
    logits: Tensor = stack.logits(torch.tensor([tokens[:-1]], device=stack.device))[0, -len(asked) :]
    chosen = torch.tensor(asked[-len(logits) :], device=stack.device)
    likely = torch.log_softmax(logits.float(), dim=-1).gather(-1, chosen.unsqueeze(-1))
    return float(likely.sum())


def _tokens(tokenizer: Tokenizer, question: Question) -> tuple[list[int], list[list[int]]]:
    """The question's tokens, and those that follow them with each choice behind the question.

    Question and choice are tokenized as one text, since many tokenizers put a space before whatever they are given. A
    token that reaches across the boundary belongs to the choice, and to every choice of that question. [ours]
    """
    alone, *joined = (
        [int(token) for token in tokenizer.encode(question.question + choice)] for choice in ("", *question.choices)
    )
    same = takewhile(lambda column: len(set(column)) == 1, zip(alone, *joined, strict=False))
    common = sum(1 for _ in same)
    for choice, tokens in zip(question.choices, joined, strict=True):
        if len(tokens) == common:
            where = "" if question.line is None else f", line {question.line}"
            raise LeadlineError(
                f"--task{where}: the choice {choice!r} has no tokens in this model's tokenizer, so nothing can be said "
                "of it; choices of words or numbers work"
            )
    return alone[:common], [tokens[common:] for tokens in joined]


def _question(path: Path, number: int, record: dict[str, Any]) -> Question:
    """Raises LeadlineError where a value is missing or of another type."""
    where = f"--task {path}, line {number}"
    question, choices, answer = (record.get(key) for key in ("question", "choices", "answer"))
    if not isinstance(question, str):
        raise LeadlineError(f"{where} is not a question: question is {json.dumps(question)[:40]}, and should be text")
    if not isinstance(choices, list) or len(choices) < 2 or not all(isinstance(c, str) and c for c in choices):
        raise LeadlineError(f"{where} is not a question: choices should be a list of two or more texts, none empty")
    if not isinstance(answer, int) or isinstance(answer, bool) or not 0 <= answer < len(choices):
        raise LeadlineError(
            f"{where} is not a question: answer is {json.dumps(answer)[:40]}, and should be the right choice's number "
            f"from 0 to {len(choices) - 1}"
        )
    try:
        "".join((question, *choices)).encode()
    except UnicodeEncodeError as error:
        raise LeadlineError(f"{where} is not Unicode text: it has half a surrogate pair") from error
    return Question(question=question, choices=tuple(choices), answer=answer, line=number)
