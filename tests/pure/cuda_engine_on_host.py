"""The CPU's engine with CUDA kernels in place of Numba's: whole Plans against the oracle, without a GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from cuda_on_host import THREADS, Kept, OnHost, address, device_tables

from coconet_lab.ir import oracle
from coconet_lab.ir.exact import within_tolerance
from coconet_lab.ir.inputs import input_block
from coconet_lab.ir.rounding import mismatch
from coconet_lab.kernels.cuda_abi import PAD_BYTES, STATE_BYTES, peer_tensors, scattered_tensors
from coconet_lab.kernels.cuda_launch import (
    Scratch,
    Staging,
    Team,
    arguments,
    half_words,
    partial_words,
    staging_bytes,
)
from coconet_lab.kernels.cuda_printer import print_kernel
from coconet_lab.kernels.kernel import StoreTo
from coconet_lab.kernels.lower import lower
from coconet_lab.kernels.plan import Launch, Sync
from coconet_lab.run.engine import Engine
from coconet_lab.run.world import ThreadWorld

CTAS = 2
HALF_BYTES = 1 << 16
STAGING_BYTES = 1 << 18


class HostEngine(Engine):
    """Runs a Plan's CUDA kernels on the CPU."""

    def __init__(self, plan, world, folder: Path, form: str = "read") -> None:
        self.folder, self.kept, self.form = folder, Kept(), form
        self.staging = world.allocate(STAGING_BYTES)
        self.pads = world.allocate(PAD_BYTES)
        self.exchange = world.allocate(2 * HALF_BYTES)
        self.state = self.kept.take(STATE_BYTES)
        super().__init__(plan, world, deadline_s=20.0)

    def _compile(self):
        return {}

    def _work(self, index, entry):
        if not isinstance(entry, Launch):
            return super()._work(index, entry)
        source = print_kernel(entry.kernel)
        runner = OnHost(source, self.place.index, self.folder, CTAS, form=self.form)
        numbers = _Scalars(entry, self.kept)
        self._arguments.append(numbers)
        packed = self._packed(index, entry, source, numbers)

        def launch() -> None:
            runner.run(packed)
            assert not self.state[:4].view(np.uint32)[0], f"{entry.name}: a rank did not come"

        return [launch]

    def _packed(self, index, entry, source, numbers):
        table = self.memory.pointers(index, entry)
        kernel, rank = entry.kernel, self.place.index
        peers = peer_tensors(kernel)
        sent = {s.tensor for s in kernel.statements() if isinstance(s, StoreTo)}
        places = [
            [int(a) for a in table[t]] if t in peers else [int(table[t, rank])] for t in range(len(kernel.tensors))
        ]
        assert not sent & peers
        members = list(self.place.members(-1))
        half = half_words(source)
        assert 8 * half <= HALF_BYTES
        chunk = (entry.chunk.start, entry.chunk.stop) if entry.chunk else None
        shifts = {t: self.memory.shifts(entry.tensors[t].buffer) for t in scattered_tensors(kernel)}
        scratch = Scratch(
            address(self.kept.take(8 * partial_words(source, rank)[1] + 8)),
            tuple(int(a) for a in self.exchange.addresses[members]), HALF_BYTES // 8,
            device_tables(kernel, rank, self.kept, chunk, shifts),
        )  # fmt: skip
        team = Team(
            tuple(int(a) for a in self.pads.addresses[members]), address(self.state), 20 * 10**9,
            Sync("barrier") in entry.opens, Sync("barrier") in entry.closes,
        )  # fmt: skip
        return arguments(
            source, rank, tensors=places, scalars=numbers.addresses, team=team, scratch=scratch,
            staging=self._far(source, members, chunk) if team.opens else None, chunk=chunk,
        )  # fmt: skip

    def _far(self, source, members, chunk) -> Staging | None:
        if self.form != "push":
            return None
        assert staging_bytes(source, CTAS, THREADS, 2) <= STAGING_BYTES
        tables = [device_tables(source.kernel, rank, self.kept, chunk) for rank in range(len(members))]
        return Staging(tuple(int(a) for a in self.staging.addresses[members]), tables)


class _Scalars:
    """The 8-byte slots of a launch's scalars."""

    def __init__(self, launch: Launch, kept: Kept) -> None:
        self.names, self.params = launch.scalars, launch.kernel.scalars
        self.slots = [kept.take(8) for _ in self.names]
        self.addresses = [address(slot) for slot in self.slots]

    def set(self, values) -> None:
        for name, param, slot in zip(self.names, self.params, self.slots):
            kind = np.float64 if param.dtype.is_float else np.int64
            slot.view(kind)[0] = values[name].astype(kind)


def assert_equals_oracle(base, schedule, inputs, folder: Path, *, runs: int = 1, form: str = "read") -> None:
    """Outputs and state of the schedule's Plan on all ranks, as the oracle says (design §4a)."""
    program = schedule.program
    plan = lower(program)
    expected = oracle.run(program, inputs)
    loose = within_tolerance(expected, device=True)

    def work(world):
        engine = HostEngine(plan, world, folder, form)
        engine.load({n: inputs[n] if program.types[n].shape == () and not program.types[n].pieces
                     else input_block(program, inputs, n, world.rank)
                     for n in program.inputs if _holds(program, n, world.rank)})  # fmt: skip
        for _ in range(runs):
            engine.reset_state()
            engine.poison()
            engine.run()
        names = [n for n in (*plan.outputs, *plan.state) if _holds(program, n, world.rank)]
        found = {n: engine.read(n) for n in names}
        engine.close()
        return found

    for rank, found in enumerate(ThreadWorld.run(plan.ranks, work)):
        for name, value in found.items():
            last = _last(program, name) if name in plan.state and name not in plan.outputs else name
            want = expected.values[last][rank]
            tolerance = 16 * program.types[last].dtype.eps if last in loose else 0.0
            assert mismatch(value, want, tolerance) is None, f"{name} on rank {rank} of {program.name}"


def _last(program, tensor):
    from coconet_lab.ir.updates import updated_inputs

    return updated_inputs(program)[tensor]


def _holds(program, name, rank):
    group = program.types[name].group
    return group is None or rank // program.group_ranks == group
