from __future__ import annotations

import io
from pathlib import Path

import pytest

from leadline.experiments.jobs import Job
from leadline.experiments.progress import TRAINING_SHARE, LiveDisplay, PlainDisplay, Tracker
from leadline.report.words import duration


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def job(folder: Path, name: str, cost: float = 1.0) -> Job:
    return Job(label=name, folder=folder / name, content={}, tokens=100, cost=cost)


def test_time_left_follows_the_queue(tmp_path: Path) -> None:
    clock = Clock()
    jobs = [job(tmp_path, name, cost) for name, cost in (("a", 2.0), ("b", 1.0), ("c", 1.0), ("d", 1.0))]
    tracker = Tracker(jobs, 2, clock)
    assert tracker.seconds_left() is None
    tracker.started(jobs[0])
    tracker.started(jobs[1])
    for one in jobs[:2]:
        tracker.event(one, {"event": "step", "tokens": 0, "loss": 5.0})
    clock.now = 50.0
    # Both did half a unit of cost: a is a quarter through, b half.
    tracker.event(jobs[0], {"event": "step", "tokens": 25 / TRAINING_SHARE, "loss": 4.0})
    tracker.event(jobs[1], {"event": "step", "tokens": 50 / TRAINING_SHARE, "loss": 4.0})
    # a ends in 150 s, b in 50; then c (100) follows b, and d whichever ends first.
    assert tracker.seconds_left() == pytest.approx(250)


def test_what_an_earlier_run_did_counts_for_no_time(tmp_path: Path) -> None:
    clock = Clock()
    one = job(tmp_path, "a")
    tracker = Tracker([one], 1, clock)
    tracker.started(one)
    tracker.event(one, {"event": "step", "tokens": 50 / TRAINING_SHARE, "loss": 4.0})
    clock.now = 10.0
    tracker.event(one, {"event": "step", "tokens": 60 / TRAINING_SHARE, "loss": 4.0})
    assert tracker.seconds_left() == pytest.approx(40)


def test_the_time_left_falls_while_a_run_measures(tmp_path: Path) -> None:
    clock = Clock()
    one = job(tmp_path, "a")
    tracker = Tracker([one], 1, clock)
    tracker.started(one)
    tracker.event(one, {"event": "step", "tokens": 0, "loss": 5.0})
    clock.now = 93.0
    tracker.event(one, {"event": "step", "tokens": 100, "loss": 4.0})
    tracker.event(one, {"event": "measuring"})
    assert tracker.seconds_left() == pytest.approx(7)
    clock.now = 98.0
    assert tracker.seconds_left() == pytest.approx(2)
    clock.now = 200.0
    assert tracker.seconds_left() is None, "longer than judged: nobody knows"


def test_a_speed_is_of_what_the_run_trains_on(tmp_path: Path) -> None:
    pictures = Job(label="a", folder=tmp_path, content={}, tokens=100, cost=1.0, unit="images")
    stream = io.StringIO()
    display = PlainDisplay(Tracker([pictures], 1, Clock()), stream, every=0.0)
    display.started(pictures)
    display.event(pictures, {"event": "step", "tokens": 50, "loss": 4.0, "tokens_per_second": 12.0})
    assert "12 images/s" in stream.getvalue()


def test_done_jobs_are_counted_and_not_timed(tmp_path: Path) -> None:
    done, new = job(tmp_path, "a"), job(tmp_path, "b")
    done.folder.mkdir()
    for name in ("summary.json", "probes.json"):
        (done.folder / name).write_text("{}")
    tracker = Tracker([done, new], 2, Clock())
    assert (tracker.finished, tracker.total) == (1, 2)
    tracker.started(new)
    tracker.ended(new, "no luck")
    assert tracker.finished == 2


def test_plain_lines_are_rare(tmp_path: Path) -> None:
    clock, stream, one = Clock(), io.StringIO(), job(tmp_path, "prenorm, seed 0")
    display = PlainDisplay(Tracker([one], 1, clock), stream)
    display.started(one)
    for step in range(100):
        clock.now = step * 0.1
        display.event(one, {"event": "step", "tokens": step, "loss": 3.0, "tokens_per_second": 4321.0})
    display.ended(one, None)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert "prenorm, seed 0 " in lines[0]
    assert "4,321 tokens/s" in lines[0]
    assert "time left" in lines[0]
    assert lines[1] == "[1/1] prenorm, seed 0: done"


def test_durations() -> None:
    assert [duration(s) for s in (None, 9.4, 250, 7260)] == ["–", "9 s", "4 min 10 s", "2 h 1 min"]


def test_the_table_of_a_terminal(tmp_path: Path) -> None:
    from rich.console import Console

    clock = Clock()
    jobs = [job(tmp_path, "[red]mgr[/red], seed 0"), job(tmp_path, "b")]
    display = LiveDisplay(Tracker(jobs, 1, clock), Console(file=io.StringIO(), force_terminal=True))
    display.started(jobs[0])
    display.event(jobs[0], {"event": "step", "tokens": 10, "loss": 3.0, "tokens_per_second": 10.0})
    clock.now = 10.0
    display.event(jobs[0], {"event": "step", "tokens": 50, "loss": 2.5, "tokens_per_second": 10.0})
    console = Console(file=io.StringIO(), width=100)
    console.print(display._draw())
    drawn = console.file.getvalue()
    display.event(jobs[0], {"event": "measuring"})
    display.ended(jobs[0], "out of luck")
    display.stopping()
    display.close()
    assert "[red]mgr[/red], seed 0" in drawn, "names are no markup"
    assert "50\u00a0%, loss 2.500, 10 tokens/s" in drawn
    assert "0 of 2 runs" in drawn
    assert "time left" in drawn
