"""Questions are read with care and answered by likelihood per byte."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers
import torch
from toy_stack import ToyStack

from leadline.data import ByteTokenizer, FileTokenizer
from leadline.errors import LeadlineError, UsageError
from leadline.hub.open import OpenedModel
from leadline.pruning import tasks
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
        {"question": None, "choices": ["a", "b"], "answer": 0},
        {"question": ["?"], "choices": ["a", "b"], "answer": 0},
        {"question": 5, "choices": ["a", "b"], "answer": 0},
        {"question": "\ud800", "choices": ["a", "b"], "answer": 0},
        {"question": "?", "choices": ["a", "b"], "answer": 1.9},
        {"question": "?", "choices": ["a", "b"], "answer": 1.0},
        {"question": "?", "choices": ["a", "b"], "answer": True},
        {"question": "?", "choices": ["a", "b"], "answer": "1"},
        {"question": "?", "choices": ["a", None], "answer": 0},
        [1],
    ],
)
def test_lines_that_are_no_question(line: Any, tmp_path: Path) -> None:
    good = {"question": "?", "choices": ["a", "b"], "answer": 0}
    with pytest.raises(LeadlineError, match="line 2"):
        read_task(write(tmp_path / "q.jsonl", good, line))


def sentencepiece_like(folder: Path) -> FileTokenizer:
    """A space is put before every text, and spaces are "▁": Llama 2 and Mistral do so."""
    normalizers = tokenizers.normalizers
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    words = ["</s>", *names, *dict.fromkeys("▁TheParisLyonisland")]
    merges = []
    for word in ("▁The", "▁Paris", "▁Lyon", "▁is", "land"):
        for end in range(2, len(word) + 1):
            merges.append((word[: end - 1], word[end - 1]))
            words.append(word[:end])
    vocab = {word: number for number, word in enumerate(dict.fromkeys(words))}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, list(dict.fromkeys(merges)), byte_fallback=True))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.save(str(folder / "tokenizer.json"))
    return FileTokenizer((folder / "tokenizer.json").read_text(), separator="</s>")


@pytest.mark.parametrize("question", ["The is", "The is "])
def test_a_choice_is_tokenized_behind_its_question(question: str, tmp_path: Path) -> None:
    """Alone " Paris" would be "▁", "▁Paris", which no text has behind a word."""
    tokenizer = sentencepiece_like(tmp_path)
    vocab = json.loads(tokenizer.content()[0])["model"]["vocab"]
    assert [int(t) for t in tokenizer.encode(" Paris")] == [vocab["▁"], vocab["▁Paris"]]
    table = torch.zeros(len(vocab), len(vocab))
    table[vocab["▁is"], vocab["▁Paris"]], table[vocab["▁is"], vocab["▁Lyon"]] = 3.0, 2.0
    table[vocab["▁"], vocab["▁Lyon"]] = 5.0
    stack = ToyStack(table, [torch.zeros(len(vocab), len(vocab))])
    opened = OpenedModel(stack, tokenizer, "leadline", tmp_path)
    choices = [choice[question.endswith(" ") :] for choice in (" Paris", " Lyon")]
    task = read_task(write(tmp_path / "q.jsonl", {"question": question, "choices": choices, "answer": 0}))
    assert accuracy_on(stack, opened, task) == 1.0
    before, after = tasks._tokens(tokenizer, task.questions[0])
    assert before == [vocab["▁The"], vocab["▁is"]]
    assert after == [[vocab["▁Paris"]], [vocab["▁Lyon"]]]


def test_a_token_across_the_boundary_belongs_to_every_choice(tmp_path: Path) -> None:
    """Otherwise only some choices would be asked to predict the end of the question."""
    tokenizer = sentencepiece_like(tmp_path)
    question = tasks.Question(question="The l", choices=("and", " is"), answer=0)
    before, after = tasks._tokens(tokenizer, question)
    vocab = json.loads(tokenizer.content()[0])["model"]["vocab"]
    assert before == [vocab["▁The"], vocab["▁"]]
    assert after == [[vocab["land"]], [vocab["l"], vocab["▁is"]]]


def test_every_mark_of_json_lines_is_read(tmp_path: Path) -> None:
    """Only a line feed ends a line, and a byte order mark is left out, in the middle of joined files too."""
    odd = {"question": "a\u2028b\u2029c\u0085d", "choices": ["a", "b"], "answer": 1}
    line = "\ufeff" + json.dumps(odd, ensure_ascii=False) + "\r\n"
    (tmp_path / "q.jsonl").write_bytes((line + "\n" + line).encode())
    questions = read_task(tmp_path / "q.jsonl").questions
    assert [(q.question, q.answer, q.line) for q in questions] == [(odd["question"], 1, 1), (odd["question"], 1, 3)]


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
