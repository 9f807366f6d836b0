"""Signals between processes from inside compiled code: order, deadlines, and a cache that works."""

from __future__ import annotations

import importlib
import mmap
import multiprocessing
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import njit

from coconet_lab.kernels import signals

ROUNDS = 10_000
SECOND_NS = 1_000_000_000


class Shared:
    """Memory that forked processes share: a signal pad and 1024 bytes of data for each rank."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.stride = signals.pad_bytes(ranks) + 1024
        self.map = mmap.mmap(-1, self.stride * ranks)
        self.bytes = np.frombuffer(self.map, dtype=np.uint8)
        base = self.bytes.ctypes.data
        self.pads = np.array([base + self.stride * rank for rank in range(ranks)], dtype=np.int64)
        self.data = self.pads + signals.pad_bytes(ranks)


def run_ranks(ranks: int, body: Callable[[Shared, int], int]) -> list[int]:
    """`body` in as many forked processes as ranks; their small non-negative results in rank order."""
    shared = Shared(ranks)
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    workers = [context.Process(target=lambda r=rank: queue.put((r, body(shared, r)))) for rank in range(ranks)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=60)
    alive = [worker for worker in workers if worker.is_alive()]
    for worker in alive:
        worker.kill()
        worker.join()
    assert not alive, "a rank hangs"
    results = dict(queue.get() for _ in workers)
    return [results[rank] for rank in range(ranks)]


@njit(nogil=True)
def count_mixed_rounds(pads: Any, data: Any, rank: int, ranks: int, rounds: int) -> int:
    """Rounds after which a peer's counter was not at this round: every barrier must separate them exactly."""
    own = signals.array_at(data[rank], 1, np.int64)
    mixed = 0
    for epoch in range(1, 2 * rounds + 1, 2):
        own[0] = epoch
        if signals.barrier(pads, rank, ranks, epoch, 20 * SECOND_NS) != 0:
            return -1
        for peer in range(ranks):
            if signals.array_at(data[peer], 1, np.int64)[0] != epoch:
                mixed += 1
        if signals.barrier(pads, rank, ranks, epoch + 1, 20 * SECOND_NS) != 0:
            return -1
    return mixed


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Compiled before the forks, so that children only run."""
    shared = Shared(1)
    count_mixed_rounds(shared.pads, shared.data, 0, 1, 1)
    count_stale_messages(shared.pads, shared.data, 0, 0)
    signals.signal(shared.pads, 0, 0, 1)
    signals.wait(int(shared.pads[0]), 1, 10)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_barrier_separates_ten_thousand_rounds(ranks: int) -> None:
    rounds = ROUNDS // 2  # two barriers a round
    assert run_ranks(ranks, lambda s, rank: count_mixed_rounds(s.pads, s.data, rank, ranks, rounds)) == [0] * ranks


def test_a_barrier_names_the_peer_that_does_not_arrive() -> None:
    def body(shared: Shared, rank: int) -> int:
        if rank == 1:
            return 0  # never comes
        return int(signals.barrier(shared.pads, rank, 3, 1, SECOND_NS // 20))

    assert run_ranks(3, body) == [2, 0, 2]


def test_a_rank_alone_passes_its_barrier() -> None:
    shared = Shared(1)
    assert signals.barrier(shared.pads, 0, 1, 1, 0) == 0


def test_an_older_epoch_does_not_open_a_newer_barrier() -> None:
    shared = Shared(2)
    signals.signal(shared.pads, 1, 1, 7)
    assert signals.barrier(shared.pads, 0, 2, 7, 0) == 0
    assert signals.barrier(shared.pads, 0, 2, 8, 1_000_000) == 2


@njit(nogil=True)
def count_stale_messages(pads: Any, data: Any, rank: int, rounds: int) -> int:
    """Message passing: rank 0 writes 64 words and signals; rank 1 waits, then looks for a word that is not new."""
    words = signals.array_at(data[0], 64, np.int64)
    stale = 0
    for turn in range(1, rounds + 1):
        if rank == 0:
            words[:] = turn
            signals.signal(pads, 0, 0, turn)
            if signals.wait_until(pads[0] + signals.PAD_LINE, turn, signals.clock_ns() + 20 * SECOND_NS) != 0:
                return -1
        else:
            if signals.wait_until(pads[1], turn, signals.clock_ns() + 20 * SECOND_NS) != 0:
                return -1
            for word in words:
                if word != turn:
                    stale += 1
            signals.signal(pads, 1, 1, turn)
    return stale


def test_what_was_written_before_a_release_is_seen_after_the_acquire() -> None:
    assert run_ranks(2, lambda s, rank: count_stale_messages(s.pads, s.data, rank, ROUNDS)) == [0, 0]


def test_a_wait_gives_up_after_its_polls() -> None:
    shared = Shared(1)
    assert signals.wait(int(shared.pads[0]), 1, 1000) == 1
    signals.signal(shared.pads, 0, 0, 1)
    assert signals.wait(int(shared.pads[0]), 1, 0) == 0


def test_a_wait_gives_up_when_its_time_is_over() -> None:
    shared = Shared(1)
    assert signals.wait_until(int(shared.pads[0]), 1, 0) == 1


def test_a_signal_reaches_its_own_line_of_every_pad_and_no_other() -> None:
    shared = Shared(3)
    signals.signal(shared.pads, 1, 2, 9)
    for rank in range(3):
        pad = shared.bytes[shared.stride * rank :][: signals.pad_bytes(3)].view(np.int64)
        assert pad[2 * 8] == 9
        assert np.count_nonzero(pad) == 1


@njit
def read_and_fill(address: int, count: int, dtype: Any, value: Any) -> Any:
    array = signals.array_at(address, count, dtype)
    total = 0
    for at in range(array.size):
        total += array[at]
        array[at] = value
    return total


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.int64, np.float32, np.float64])
def test_an_address_becomes_an_array_of_each_type(dtype: Any) -> None:
    memory = np.arange(32).astype(dtype)
    assert read_and_fill(memory.ctypes.data + 8 * memory.itemsize, 4, dtype, dtype(5)) == 8 + 9 + 10 + 11
    assert memory[7:13].tolist() == [7, 5, 5, 5, 5, 12]


def test_the_clock_is_the_monotonic_one() -> None:
    import time

    @njit
    def now() -> int:
        return signals.clock_ns()

    now()
    before = time.monotonic_ns()
    assert before <= now() <= time.monotonic_ns()


def test_a_kernel_with_signals_is_cached_on_disk_and_works_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kernel_with_signals.py").write_text(
        textwrap.dedent("""
            import numpy as np
            from numba import njit
            from coconet_lab.kernels import signals

            @njit(cache=True, nogil=True)
            def kernel(pads):
                signals.sched_yield()
                return signals.barrier(pads, 0, 2, 1, 1000)

            pad = np.zeros(32, dtype=np.int64)
            pads = np.array([pad.ctypes.data, pad.ctypes.data + 128], dtype=np.int64)
            found = kernel(pads), sum(kernel.stats.cache_hits.values())
            print(*found)
        """)
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.import_module("kernel_with_signals").found == (2, 0)
    # In a process of its own, where nothing lies at the addresses that it has here.
    command = [sys.executable, "-c", "import kernel_with_signals"]
    there = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert there.stdout.split() == ["2", "1"], there.stderr
