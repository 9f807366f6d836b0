"""What an exported folder's ``main.py`` calls on every rank: its kernels from files, the check, the benchmark."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from coconet_lab.errors import CoconetError
from coconet_lab.ir import oracle
from coconet_lab.ir.compare import Difference, first_difference
from coconet_lab.ir.exact import integer_inputs, within_tolerance
from coconet_lab.ir.inputs import input_block, proof_inputs, random_block
from coconet_lab.ir.ops import Input
from coconet_lab.ir.program import Program
from coconet_lab.ir.updates import updated_inputs
from coconet_lab.kernels.lower import lower
from coconet_lab.kernels.numba_compile import Compiled, compile_file
from coconet_lab.kernels.numba_printer import kernel_name
from coconet_lab.kernels.plan import Plan
from coconet_lab.run.engine import Engine
from coconet_lab.run.results import Timing
from coconet_lab.run.world import World
from coconet_lab.schedule.schedule import Schedule
from coconet_lab.schedule.shrink import shrunk

Array = np.ndarray[Any, Any]


class ExportedEngine(Engine):
    """An engine whose kernels are the files of an exported folder, as they are now.

    Parameters
    ----------
    plan : Plan
    world : World
    folder : Path
        With a file for every kernel of the Plan.
    """

    def __init__(self, plan: Plan, world: World, folder: Path) -> None:
        self._folder = folder
        super().__init__(plan, world)

    def _compile(self) -> Mapping[Any, Compiled]:  # type: ignore[override]
        started_s = time.perf_counter()
        names = {kernel: kernel_name(kernel) for kernel in self.plan.kernels()}
        found = {kernel: compile_file(self._folder / f"{name}.py", name) for kernel, name in names.items()}
        self.compile_s = time.perf_counter() - started_s
        return found


def check(schedule: Schedule, world: World, folder: Path, *, seed: int = 0) -> str | None:
    """Run the folder's kernels and compare outputs and state of all ranks with the oracle's, collectively.

    At small extents where the kernels are the same there, else at the program's own.

    Returns
    -------
    str or None
        The first difference, None if there is none.
    """
    base, program = _to_check(schedule, folder)
    inputs = proof_inputs(base, integer_inputs(base), seed)
    expected = oracle.run(base, inputs)
    plan = lower(program)
    engine = ExportedEngine(plan, world, folder)
    engine.load(_parts(program, inputs, world.rank))
    engine.poison()
    engine.run()
    here = [str(difference) for difference in _differences(expected, program, plan, engine)]
    engine.close()
    everywhere = [text for rank in world.mpi.allgather(here) for text in rank] if world.mpi is not None else here
    return everywhere[0] if everywhere else None


def measure(schedule: Schedule, world: World, folder: Path, *, repeats: int, seed: int = 0) -> Timing:
    """Times of the folder's kernels at the program's own extents: the slowest rank's, of each repeat."""
    program = schedule.program
    engine = ExportedEngine(lower(program), world, folder)
    size = program.group_ranks
    group, index = divmod(world.rank, size)
    given: dict[str, Any] = {}
    for name in program.inputs:
        op = cast(Input, program.ops[name])
        if op.type.group in (None, group):
            given[name] = random_block(op, seed, op.type.ranges(index, size), index)
    engine.load({name: value if value.ndim else value.item() for name, value in given.items()})
    samples = []
    for repeat in range(-2, repeats):
        engine.reset_state()
        engine.poison()
        started_s = time.perf_counter()
        engine.run()
        if repeat >= 0:
            samples.append((time.perf_counter() - started_s) * 1e6)
    compile_s = engine.compile_s
    engine.close()
    slowest = samples if world.mpi is None else np.max(world.mpi.allgather(samples), axis=0)
    return Timing(tuple(map(float, slowest)), compile_s)


def _to_check(schedule: Schedule, folder: Path) -> tuple[Program, Program]:
    """The unscheduled and the scheduled program that are run: small where that uses the folder's kernels."""
    try:
        small = schedule.on(shrunk(schedule.base))
    except CoconetError:  # extents that something ties together: the real ones then
        return schedule.base, schedule.program
    needed = {f"{kernel_name(kernel)}.py" for kernel in lower(small.program).kernels()}
    if all((folder / name).exists() for name in needed):
        return small.base, small.program
    return schedule.base, schedule.program


def _parts(program: Program, inputs: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """This rank's part of every input that its group has."""
    found = {}
    for name in program.inputs:
        kind = program.types[name]
        if kind.group not in (None, rank // program.group_ranks):
            continue
        is_scalar = kind.shape == () and not kind.pieces
        found[name] = inputs[name].item() if is_scalar else input_block(program, inputs, name, rank)
    return found


def _differences(expected: oracle.OracleRun, program: Program, plan: Plan, engine: Engine) -> Iterator[Difference]:
    """Where this rank's outputs and state differ from the unscheduled program's."""
    loose, rank, size = within_tolerance(expected), engine.place.rank, program.group_ranks
    before, after = updated_inputs(expected.program), updated_inputs(program)
    wanted = [(name, name, name) for name in plan.outputs]
    wanted += [(tensor, before[tensor], after[tensor]) for tensor in plan.state]
    for shown, value, made in wanted:
        kind = program.types[made]
        if kind.group not in (None, engine.place.group):
            continue
        slot = plan.outputs.get(shown) or plan.state[shown]
        found = first_difference(
            shown, slot.type, [(rank, engine.read(shown))], expected.output(value),
            group_ranks=size, tolerant=value in loose,
        )  # fmt: skip
        if found is not None:
            yield found
