"""Work behind the clicks: the newest wish of a kind is done, older ones are dropped, a fault ends nothing."""

from __future__ import annotations

import threading

from coconet_lab.viz.explorer.work import Background

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
