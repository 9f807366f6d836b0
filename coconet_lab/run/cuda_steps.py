"""Launches and meetings of a Plan as steps that enqueue on a stream, with everything looked up beforehand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from coconet_lab.errors import CodegenError, InputError
from coconet_lab.ir.types import Range
from coconet_lab.kernels.cuda_abi import (
    LINE_BYTES,
    PAD_BYTES,
    STATE_BYTES,
    has_buckets,
    peer_tensors,
    scattered_tensors,
)
from coconet_lab.kernels.cuda_launch import (
    Scratch,
    Staging,
    Team,
    arguments,
    bucket_tables,
    half_words,
    partial_words,
)
from coconet_lab.kernels.cuda_meet import meet_arguments
from coconet_lab.kernels.cuda_printer import CudaSource
from coconet_lab.kernels.plan import Launch, Plan, Sync
from coconet_lab.run.cuda_kernels import Kernels, Loaded
from coconet_lab.run.cuda_memory import DeviceMemory

Step = Callable[[Any], None]
_GROUP_BARRIER = Sync("barrier")


def stream_count(plan: Plan) -> int:
    """Streams a Plan uses."""
    return 1 + max((entry.stream for entry in plan.entries), default=0)


def half_bytes(plan: Plan, kernels: Kernels) -> int:
    """Bytes of one half of a stream's exchange memory: what the largest launch needs."""
    words = [half_words(kernels.loaded[e.kernel].source) for e in plan.entries if isinstance(e, Launch)]
    return 8 * max(words, default=0)


def meeting_parts(plan: Plan, kernels: Kernels) -> list[tuple[str, int]]:
    """Symmetric memory that meetings and reductions need, by name and bytes."""
    parts = [
        ("barrier flags", LINE_BYTES * plan.ranks),
        ("pair flags", LINE_BYTES * plan.groups),
        ("signal flags", LINE_BYTES * max(plan.channels, 1) * plan.ranks),
    ]
    for stream in range(stream_count(plan)):
        parts += [(f"pads {stream}", PAD_BYTES), (f"exchange {stream}", 2 * half_bytes(plan, kernels))]
        if kernels.reserved_staging_bytes:
            parts.append((f"staging {stream}", kernels.reserved_staging_bytes))
    return parts


class Steps:
    """Makes the steps of one rank.

    Parameters
    ----------
    plan : Plan
    memory : DeviceMemory
    kernels : Kernels
    scalars : mapping of name to int
        Addresses of the scalars' 8-byte slots.
    limit_s : float
        How long a wait inside the Plan may take.
    """

    def __init__(
        self, plan: Plan, memory: DeviceMemory, kernels: Kernels, scalars: dict[str, int], limit_s: float
    ) -> None:
        self.plan, self.memory, self.kernels, self.scalars = plan, memory, kernels, scalars
        self.place = memory.place
        self.limit_ns = int(limit_s * 1e9)
        self.states = memory.scratch(STATE_BYTES * stream_count(plan))
        self._counters: dict[tuple[str, int], int] = {}
        self._half = half_bytes(plan, kernels) // 8
        self._staging_bytes = kernels.reserved_staging_bytes
        self._scratches: dict[int, Scratch] = {}
        self._far_tables: dict[int, list[dict[str, int]]] = {}

    def state(self, stream: int) -> int:
        """Address of a stream's counters."""
        return self.states + STATE_BYTES * stream

    # -- launches ------------------------------------------------------------------------------------------------

    def launch(self, index: int, entry: Launch) -> Step:
        """A generated kernel with its packed arguments; its group's barriers happen inside of it."""
        loaded = self.kernels.loaded[entry.kernel]
        packed = self.packed(index, entry, loaded)
        grid, block, function = (loaded.ctas,), (loaded.threads,), loaded.function

        def enqueue(stream: Any) -> None:
            with stream:
                function(grid, block, (packed,))

        return enqueue

    def packed(self, index: int, entry: Launch, loaded: Loaded) -> np.ndarray[Any, Any]:
        """The argument struct of a launch."""
        source, memory, place = loaded.source, self.memory, self.place
        peers = peer_tensors(entry.kernel)
        tensors = []
        for t, slot in enumerate(entry.tensors):
            buffer = self.plan.buffers[slot.buffer]
            if t in peers:
                tensors.append(memory.peers(slot.buffer, place.group if buffer.group < 0 else buffer.group))
            elif place.holds(buffer.group):
                tensors.append((memory.address(slot.buffer),))
            else:
                tensors.append((memory.peers(slot.buffer, buffer.group)[place.index],))
        team = Team(
            memory.peers(f"pads {entry.stream}"), self.state(entry.stream), self.limit_ns,
            _GROUP_BARRIER in entry.opens and place.ranks > 1, _GROUP_BARRIER in entry.closes and place.ranks > 1,
            index,
        )  # fmt: skip
        chunk = (entry.chunk.start, entry.chunk.stop) if entry.chunk else None
        return arguments(
            source, place.index, tensors=tensors, scalars=[self.scalars[name] for name in entry.scalars], team=team,
            scratch=self._scratch(index, source, entry, chunk),
            staging=self._staging(index, entry, loaded, chunk) if team.opens else None, chunk=chunk,
        )  # fmt: skip

    def _staging(self, index: int, entry: Launch, loaded: Loaded, chunk: Range | None) -> Staging | None:
        """Where ranks write to their peers; a launch for which there is no room reads them."""
        if not 0 < loaded.staging_bytes <= self._staging_bytes:
            return None
        if index not in self._far_tables and has_buckets(entry.kernel):
            ranks = range(entry.kernel.space.ranks)
            self._far_tables[index] = [self._far_table(index, loaded.source, entry, chunk, rank) for rank in ranks]
        return Staging(self.memory.peers(f"staging {entry.stream}"), self._far_tables.get(index, ()))

    def _far_table(
        self, index: int, source: CudaSource, entry: Launch, chunk: Range | None, rank: int
    ) -> dict[str, int]:
        """Where the buckets of a rank lie; this rank's own tables are there already."""
        scratch = self._scratch(index, source, entry, chunk)
        if rank == self.place.index and scratch is not None:
            return scratch.tables
        tables = bucket_tables(entry.kernel, rank, chunk)
        return {name: self.memory.on_device(tables[name]) for name in ("bucket_start", "bucket_piece")}

    def _scratch(self, index: int, source: CudaSource, entry: Launch, chunk: Range | None) -> Scratch | None:
        """Made once for each entry: other CTAs and unrolling change none of it."""
        kernel = source.kernel
        if not kernel.accumulators and not has_buckets(kernel):
            return None
        if index not in self._scratches:
            self._scratches[index] = self._made_scratch(source, entry, chunk)
        return self._scratches[index]

    def _made_scratch(self, source: CudaSource, entry: Launch, chunk: Range | None) -> Scratch:
        kernel = source.kernel
        shifts = {t: self.memory.shifts(entry.tensors[t].buffer) for t in scattered_tensors(kernel)}
        tables = bucket_tables(kernel, self.place.index, chunk, shifts) if has_buckets(kernel) else {}
        return Scratch(
            self.memory.scratch(8 * partial_words(source, self.place.index)[1]),
            self.memory.peers(f"exchange {entry.stream}"),
            self._half,
            {name: self.memory.on_device(table) for name, table in tables.items()},
        )

    # -- meetings ------------------------------------------------------------------------------------------------

    def meetings(self, index: int, stream: int, syncs: tuple[Sync, ...], *, inside: bool) -> list[Step]:
        """Steps for an entry's meetings; a launch does its group's barriers itself (`inside`)."""
        if self.plan.ranks == 1:
            return []
        chosen = [sync for sync in syncs if not (inside and sync == _GROUP_BARRIER)]
        found = [self._meeting(index, stream, sync) for sync in chosen]
        return [step for step in found if step is not None]

    def _meeting(self, index: int, stream: int, sync: Sync) -> Step | None:
        memory, place = self.memory, self.place
        if sync.scope == "pair":
            scope = [place.members(sync.partner)[place.index]]
        else:
            scope = [rank for rank in place.members(-1) if rank != place.rank or sync.kind != "barrier"]
        if not scope:
            return None
        if sync.kind == "barrier":
            part, counter = ("pair flags" if sync.scope == "pair" else "barrier flags"), sync.partner
            line = place.group if sync.scope == "pair" else place.rank
            theirs = [rank // place.ranks if sync.scope == "pair" else rank for rank in scope]
        else:
            part, counter = "signal flags", index * (1 + self.plan.channels) + sync.channel
            line = sync.channel * self.plan.ranks + place.rank
            theirs = [sync.channel * self.plan.ranks + rank for rank in scope]
        offset = memory.layout.offsets[part]
        posts = [memory.arena.addresses[rank] + offset + LINE_BYTES * line for rank in scope]
        waits = [memory.arena.local + offset + LINE_BYTES * number for number in theirs]
        packed = meet_arguments(
            self._counter(part + sync.kind, counter),
            posts if sync.kind != "wait" else [], waits if sync.kind != "signal" else [],
            self.state(stream), self.limit_ns, index, scope,
        )  # fmt: skip
        function = self.kernels.meet

        def meet(on: Any) -> None:
            with on:
                function((1,), (32,), (packed,))

        return meet

    def _counter(self, kind: str, number: int) -> int:
        key = (kind, number)
        if key not in self._counters:
            self._counters[key] = self.memory.scratch(LINE_BYTES)
        return self._counters[key]


@dataclass(frozen=True, slots=True)
class Part:
    """One entry's steps on its stream, and the entries on other streams that it waits for."""

    index: int
    stream: int
    steps: tuple[Step, ...]
    after: tuple[int, ...]


def check_plan(plan: Plan, world: Any, backend: str) -> None:
    """Refuse what this engine cannot run: another backend, several hosts, a world of another size."""
    if backend != "cuda":
        raise CodegenError(
            f"this engine has no backend {backend!r}", rule="it runs Plans on GPUs", where="CudaEngine", hint='"cuda"'
        )
    if plan.hosts != 1:
        raise CodegenError(
            f"program {plan.name!r} is lowered for {plan.hosts} hosts",
            rule="GPUs of one host run a Plan; between hosts the CPU engine's exchanges do",
            where="CudaEngine",
            hint="lower(program, hosts=1) on the GPUs of one host",
        )
    if world.size != plan.ranks:
        raise InputError(
            f"program {plan.name!r} is for {plan.ranks} ranks, the world has {world.size}",
            rule="a Plan runs on as many ranks as its program says",
            where="CudaEngine",
            hint=f"program.with_ranks({world.size})",
        )
