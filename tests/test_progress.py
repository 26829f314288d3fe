"""What a command says meanwhile: a line now and then, or one on a terminal that goes away."""

from __future__ import annotations

import io

import pytest

from leadline.progress import StatusLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_now_and_then() -> None:
    stream, times = io.StringIO(), iter([0.0, 1.0, 6.0, 12.0])
    line = StatusLine(stream=stream, clock=lambda: next(times))
    for text in ("one", "two", "three", "four"):
        line(text)
    line.close()
    assert stream.getvalue() == "one\nthree\nfour\n"


def test_on_a_terminal_it_is_one_line_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "12")
    stream = Terminal()
    line = StatusLine(stream=stream)
    line("a line that is long")
    line.keep("this stays, however long")
    line.close()
    assert stream.getvalue() == "\r\x1b[Ka line tha…\r\x1b[Kthis stays, however long\n"
