"""How a rank learns that another has died, and how it spends the time until then."""

from __future__ import annotations

import os
import subprocess
import sys
import types

import pytest

from coconet_lab.run import cuda_nccl, cuda_wait


class Meeting:
    """A world whose other rank is a process that has told its number."""

    rank, size = 0, 2

    def __init__(self, other, space):
        self.other, self.space = other, space

    @property
    def mpi(self):
        return types.SimpleNamespace(allgather=lambda item: [item, (item[0] if self.space is None else 0, self.other)])


@pytest.mark.parametrize("space", [None, 0], ids=["of this container", "of another container"])
def test_the_death_of_a_process_is_seen_where_its_number_means_that_process(space):
    if not hasattr(os, "pidfd_open"):
        pytest.skip("needs pidfd_open, which this system does not have")
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        world = Meeting(other.pid, space)
        deaths = cuda_nccl._deaths(world)
        assert (deaths is None) == (space is not None)
        known = cuda_nccl.Communicators(world, None, deaths=deaths)
        assert known.dead() == ()
        other.kill()
        if deaths is not None:
            assert deaths.first(timeout_s=10) == 1
            assert known.dead() == (1,)
    finally:
        other.kill()
        other.wait()
        other.stdin.close()


def test_threads_of_one_process_are_not_watched():
    assert cuda_nccl._deaths(Meeting(os.getpid(), None)) is None


def test_a_short_wait_keeps_the_core_and_a_long_one_sleeps_little(monkeypatch):
    slept, yielded = [], []
    monkeypatch.setattr(cuda_wait.time, "sleep", slept.append)
    monkeypatch.setattr(cuda_wait, "_yield", lambda: yielded.append(1))
    cuda_wait.pause(1e-5)
    assert (slept, yielded) == ([], [])
    cuda_wait.pause(5e-3)
    assert (slept, yielded) == ([], [1])
    for spent_s in (0.05, 3600.0):
        cuda_wait.pause(spent_s)
    assert slept == [5e-4, 1e-3]
