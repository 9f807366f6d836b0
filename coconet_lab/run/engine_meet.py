"""How the ranks of a Plan meet around its entries: barriers, signals and waits over pads in shared memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from coconet_lab.errors import RankError
from coconet_lab.kernels.plan import AnyEntry, Plan, Sync
from coconet_lab.kernels.signals import PAD_LINE, barrier, clock_ns, signal, wait_until
from coconet_lab.run.engine_memory import Memory

Step = Callable[[], None]


@njit(nogil=True, cache=True)  # type: ignore[misc, unused-ignore]
def wait_for_all(addresses: Any, value: int, deadline_ns: int) -> int:
    """Wait until every int64 at `addresses` is at least `value`: 0, or k + 1 when number k was not in time."""
    limit = clock_ns() + deadline_ns
    for k in range(addresses.size):
        if wait_until(addresses[k], value, limit) != 0:
            return k + 1
    return 0


class Meetings:
    """The pads of one rank and the numbers of its next meetings; all ranks of a scope count alike.

    Parameters
    ----------
    plan : Plan
    memory : Memory
    deadline_s : float
        Seconds to wait for a peer.
    """

    def __init__(self, plan: Plan, memory: Memory, deadline_s: float) -> None:
        self.plan, self.memory, self.place = plan, memory, memory.place
        self.deadline_s, self.deadline_ns = deadline_s, int(deadline_s * 1e9)
        self.epoch = 0
        self.pads = memory.pads("barrier")
        self._pair_epochs = dict.fromkeys(range(plan.groups), 0)

    def take(self, count: int) -> int:
        """Use the next `count` barrier numbers of this rank's group: the last number before them."""
        epoch = self.epoch
        self.epoch += count
        return epoch

    def step(self, sync: Sync, index: int) -> Step:
        """What entry number `index` does for one of its meetings."""
        if sync.kind == "barrier":
            return self._pair_barrier(sync, index) if sync.scope == "pair" else self._barrier(index)
        return self._signal(sync) if sync.kind == "signal" else self._wait(sync, index)

    def _barrier(self, index: int) -> Step:
        pads, rank, ranks, deadline_ns = self.pads, self.place.at, self.place.local, self.deadline_ns

        def meet() -> None:
            status = barrier(pads, rank, ranks, self.take(1) + 1, deadline_ns)
            if status:
                raise self.lost(index, self.place.peers(-1)[status - 1])

        return meet

    def _pair_barrier(self, sync: Sync, index: int) -> Step:
        """Rank k of this group and rank k of the partner group."""
        partner, deadline_ns = self.place.members(sync.partner)[self.place.index], self.deadline_ns
        theirs = self.memory.pads("pair", sync.partner)[[self.place.at]]
        mine = self.memory.pads("pair")[[self.place.at]] + sync.partner * PAD_LINE
        epochs, group = self._pair_epochs, self.place.group

        def meet() -> None:
            epochs[sync.partner] += 1
            signal(theirs, 0, group, epochs[sync.partner])
            if wait_for_all(mine, epochs[sync.partner], deadline_ns):
                raise self.lost(index, partner)

        return meet

    def _scope(self, sync: Sync) -> list[int]:
        if sync.scope == "pair":
            return [self.place.members(sync.partner)[self.place.index]]
        return list(self.place.peers(-1))

    def _signal(self, sync: Sync) -> Step:
        pads, line = self.memory.signal_pads(self._scope(sync)), sync.channel * self.plan.ranks + self.place.rank
        count = 0

        def post() -> None:
            nonlocal count
            count += 1
            signal(pads, 0, line, count)

        return post

    def _wait(self, sync: Sync, index: int) -> Step:
        senders, deadline_ns = self._scope(sync), self.deadline_ns
        own = int(self.memory.signal_pads([self.place.rank])[0])
        lines = [own + (sync.channel * self.plan.ranks + sender) * PAD_LINE for sender in senders]
        addresses = np.array(lines, np.int64)
        count = 0

        def await_all() -> None:
            nonlocal count
            count += 1
            status = wait_for_all(addresses, count, deadline_ns)
            if status:
                raise self.lost(index, senders[status - 1])

        return await_all

    def lost(self, index: int, peer: int) -> RankError:
        """The error of a meeting that `peer` did not come to."""
        entry: AnyEntry = self.plan.entries[index]
        return RankError(
            f"rank {self.place.rank} waited {self.deadline_s:g} s for rank {peer} in {entry.name!r}, step {index}",
            rule="every rank enters the same collectives in the same order",
            where=f"plan of program {self.plan.name!r}",
            hint="a longer deadline, or plan_dot(plan) to see what the ranks wait for",
        )
