"""Questions are read with care and answered by likelihood per byte."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from toy_stack import ToyStack

from leadline.data import ByteTokenizer
from leadline.errors import LeadlineError, UsageError
from leadline.hub.open import OpenedModel
from leadline.pruning.tasks import accuracy_on, check_task, read_task


def write(path: Path, *questions: Any) -> Path:
    path.write_text("".join(json.dumps(q) + "\n" for q in questions))
    return path


def test_the_likelier_choice_is_the_answer(tmp_path: Path) -> None:
    # After "a" the model expects "b", and after "b" "b".
    table = torch.zeros(256, 256)
    table[ord("a"), ord("b")] = table[ord("b"), ord("b")] = 5.0
    stack = ToyStack(table, [torch.zeros(256, 256)])
    opened = OpenedModel(stack, ByteTokenizer(), "leadline", tmp_path)
    right = {"question": "xa", "choices": ["c", "b"], "answer": 1}
    # Longer choices are judged per byte: the sum would prefer "c".
    longer = {"question": "xa", "choices": ["bbbbbbbbbbbb", "c"], "answer": 0}
    wrong = {"question": "xa", "choices": ["c", "b"], "answer": 0}
    task = read_task(write(tmp_path / "q.jsonl", right, longer, wrong, right))
    assert (task.name, len(task.questions)) == ("q", 4)
    assert accuracy_on(stack, opened, task) == 0.75


@pytest.mark.parametrize(
    "line",
    [
        {"question": "?", "choices": ["a", "b"], "answer": 2},
        {"question": "?", "choices": ["a", "b"], "answer": -1},
        {"question": "?", "choices": ["a"], "answer": 0},
        {"question": "?", "choices": ["a", ""], "answer": 0},
        {"question": "?", "choices": "ab", "answer": 0},
        {"question": "?", "choices": ["a", "b"]},
        [1],
    ],
)
def test_lines_that_are_no_question(line: Any, tmp_path: Path) -> None:
    good = {"question": "?", "choices": ["a", "b"], "answer": 0}
    with pytest.raises(LeadlineError, match="line 2"):
        read_task(write(tmp_path / "q.jsonl", good, line))


def test_a_choice_without_tokens_is_named(tmp_path: Path) -> None:
    letters: Any = SimpleNamespace(
        separator=0, encode=lambda text: [ord(letter) for letter in text if letter.isalpha()]
    )
    good = {"question": "?", "choices": ["a", "b"], "answer": 0}
    task = read_task(write(tmp_path / "q.jsonl", good, {"question": "a", "choices": ["b", " "], "answer": 0}))
    opened = OpenedModel(ToyStack(torch.eye(256), [torch.zeros(256, 256)]), letters, "leadline", tmp_path)
    for check in (lambda: accuracy_on(opened.stack, opened, task), lambda: check_task(task, letters)):
        with pytest.raises(LeadlineError, match="--task, line 2: the choice ' ' has no tokens"):
            check()
    check_task(task, ByteTokenizer())


def test_no_questions(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="isn't there"):
        read_task(tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match="holds no questions"):
        read_task(write(tmp_path / "q.jsonl"))
