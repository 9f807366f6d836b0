"""Work behind the clicks: the newest wish of a kind is done, older ones are dropped, a fault ends nothing."""

from __future__ import annotations

import threading
from queue import Queue

from explorer_programs import FakeCluster, small_attention

import coconet_lab as cl
from coconet_lab.schedule.schedule import Schedule
from coconet_lab.transforms.reorder import Reorder
from coconet_lab.transforms.split import Split
from coconet_lab.viz.explorer.runner import Runner
from coconet_lab.viz.explorer.work import Background, verdict_on

WAIT_S = 30.0


def test_a_newer_task_replaces_the_waiting_one_and_cancels_the_running_one():
    done: list[str] = []
    began, go_on = threading.Event(), threading.Event()

    def first(cancelled):
        began.set()
        assert go_on.wait(WAIT_S)
        done.append(f"first, cancelled: {cancelled()}")

    background = Background(lambda kind, error: done.append(repr(error)))
    background.put("proof", first)
    assert began.wait(WAIT_S)
    background.put("proof", lambda cancelled: done.append("second"))
    background.put("proof", lambda cancelled: done.append(f"third, cancelled: {cancelled()}"))
    go_on.set()
    assert background.wait(WAIT_S)
    assert done == ["first, cancelled: True", "third, cancelled: False"]


def test_kinds_do_not_replace_each_other_and_a_cancelled_one_is_forgotten():
    done: list[str] = []
    began, go_on = threading.Event(), threading.Event()

    def holds(cancelled):
        began.set()
        assert go_on.wait(WAIT_S)

    background = Background(lambda kind, error: done.append(repr(error)))
    background.put("hold", holds)
    assert began.wait(WAIT_S)
    for kind in ("facts", "proof", "static"):
        background.put(kind, lambda cancelled, kind=kind: done.append(kind))
    background.cancel("proof")
    assert not background.wait(0.01)
    go_on.set()
    assert background.wait(WAIT_S)
    assert done == ["facts", "static"]


def test_a_fault_is_told_and_the_next_task_is_done():
    told: list[str] = []
    background = Background(lambda kind, error: told.append(f"{kind}: {error}"))

    def fails(cancelled):
        raise ValueError("no such thing")

    background.put("facts", fails)
    background.put("static", lambda cancelled: told.append("done"))
    assert background.wait(WAIT_S)
    assert told == ["facts: no such thing", "done"]
    background.put("facts", lambda cancelled: told.append("again"))
    assert background.wait(WAIT_S)
    assert told[-1] == "again"


# -- proofs ----------------------------------------------------------------------------------------------------------


def test_a_proof_ends_before_the_operation_at_which_nobody_waits_for_it_any_more():
    schedule = Schedule(small_attention()).split("total")
    asked: list[int] = []

    def cancelled() -> bool:
        asked.append(1)
        return len(asked) == 3

    assert verdict_on(schedule, cancelled) is None
    assert len(asked) == 3
    assert verdict_on(schedule, lambda: False) == ("proved", repr(schedule.check()))


def test_a_newer_state_ends_the_running_proof_and_the_older_schedule_is_proved_later(monkeypatch):
    began, go_on = threading.Event(), threading.Event()
    checked: list[int] = []
    real = Schedule.check

    def held(self, **more):
        checked.append(len(self.steps))
        if len(checked) == 1:
            began.set()
            assert go_on.wait(WAIT_S)
        return real(self, **more)

    monkeypatch.setattr(Schedule, "check", held)
    ex = cl.explore(small_attention())
    ex.apply(Split("total"))
    assert began.wait(WAIT_S)
    ex.apply(Reorder("total", ("out",)))
    go_on.set()
    assert ex.wait(WAIT_S)
    assert checked == [1, 2, 1], "the one that was cut short gave no verdict"
    assert [node.proof for node in ex.history] == ["unchecked", "proved", "proved"]


# -- a cluster that waits for its job ----------------------------------------------------------------------------------


class Queued(FakeCluster):
    """A cluster whose job waits in Slurm's queue until it is cancelled."""

    queue = "job pending (Resources), 2 min"

    def start(self) -> None:
        assert self.go_on.wait(WAIT_S)
        raise KeyboardInterrupt


def test_while_a_job_waits_the_page_says_what_the_queue_says_and_can_cancel_it():
    progress, ended = Queue(), Queue()
    runner = Runner(Queued(holds=True), progress.put, ended.put)
    assert runner.start(0, Schedule(small_attention()), "start")
    words = ""
    while not words.startswith("Waiting"):
        words = progress.get(timeout=WAIT_S).words
    assert words == "Waiting for 2 ranks: job pending (Resources), 2 min"
    runner.cancel()
    how = ended.get(timeout=WAIT_S)
    assert (how.how, how.words) == ("cancelled", "Cancelled before the ranks had started.")
    assert runner.wait(WAIT_S)
