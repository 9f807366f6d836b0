"""An engine held to the oracle: every output and every updated input on every rank of a world."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coconet_lab.ir import oracle
from coconet_lab.ir.inputs import input_block, random_inputs
from coconet_lab.ir.rounding import mismatch
from coconet_lab.kernels.lower import lower
from coconet_lab.kernels.plan import Plan
from coconet_lab.run.engine import Engine
from coconet_lab.run.world import ThreadWorld, World


def own_inputs(program: Any, plan: Plan, inputs: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """The parts of the inputs that a rank of the program has, and the scalars."""
    group = rank // plan.group_ranks
    found = {name: inputs[name] for name in plan.scalar_inputs if name in inputs}
    for name in plan.inputs:
        if program.types[name].group in (None, group):
            found[name] = input_block(program, inputs, name, rank)
    return found


def run_on(
    world: World, program: Any, inputs: Mapping[str, Any], chunks: int = 4, runs: int = 1, hosts: int = 1
) -> dict[str, Any]:
    """What this rank has of every output and updated input after `runs` runs, each from the same start, poisoned."""
    plan = lower(program, chunks=chunks, hosts=hosts)
    engine = Engine(plan, world, deadline_s=20)
    engine.load(own_inputs(program, plan, inputs, world.rank))
    for _ in range(runs):
        engine.reset_state()
        engine.poison()
        engine.run()
    slots = {**plan.outputs, **plan.state}
    found = {name: engine.read(name) for name, slot in slots.items() if slot.buffer in engine.memory.arrays}
    world.barrier()
    engine.close()
    return found


def differences(program: Any, inputs: Mapping[str, Any], found: list[dict[str, Any]], tolerance: float) -> list[str]:
    """Where ranks' values are not the oracle's."""
    expected, plan, wrong = oracle.run(program, inputs), lower(program), []
    for rank, values in enumerate(found):
        for name, array in values.items():
            slot = plan.outputs.get(name) or plan.state[name]
            k, whole = rank % plan.group_ranks, (expected.outputs if name in plan.outputs else expected.state)[name]
            ranges = slot.type.ranges(k, plan.group_ranks)
            part = whole[k] if slot.type.layout.is_local else whole[tuple(slice(*r) for r in ranges)]
            at = mismatch(array, part, tolerance)
            if at is not None:
                wrong.append(f"{name} on rank {rank} at {at}: {array[at]}, not {part[at]}")
    return wrong


def check_on_threads(
    program: Any, inputs: Any = None, *, chunks: int = 4, runs: int = 2, tolerance: float = 0.0, hosts: int = 1
) -> list[dict[str, Any]]:
    """Run `program` on threads as ranks; its values must be the oracle's."""
    given = random_inputs(program) if inputs is None else inputs
    found = ThreadWorld.run(
        program.ranks, lambda world: run_on(world, program, given, chunks, runs, hosts), hosts=hosts
    )
    assert not differences(program, given, found, tolerance)
    return found
