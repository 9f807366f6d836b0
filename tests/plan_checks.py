"""A lowered program held to the oracle: every output and every updated input on every rank, under hostile orders."""

from __future__ import annotations

from typing import Any

from plan_interpreter import Machine, before, run_machine

from coconet_lab.ir import oracle
from coconet_lab.ir.inputs import random_inputs
from coconet_lab.ir.ops import Reduction
from coconet_lab.ir.rounding import allowance, mismatch
from coconet_lab.kernels.lower import lower
from coconet_lab.kernels.plan import Plan

# At random, then rank 0 as far ahead as it gets, then the last rank. Where a Plan lacks one meeting, more orders at
# random find no more than these.
ORDERS = ((0, None), (0, 0), (0, -1))


def differences(program: Any, plan: Plan, machine: Machine, expected: oracle.OracleRun) -> list[str]:
    """Which outputs and states differ, on which rank and where."""
    inexact = any(isinstance(op, Reduction) for op in program.ops.values())
    found = []
    for slots, values in ((plan.outputs, expected.outputs), (plan.state, expected.state)):
        assert set(slots) == set(values)
        for name, slot in slots.items():
            for rank in range(plan.ranks):
                if slot.type.group not in (None, rank // plan.group_ranks):
                    continue
                k, whole = rank % plan.group_ranks, values[name]
                ranges = slot.type.ranges(k, plan.group_ranks)
                part = whole[k] if slot.type.layout.is_local else whole[(..., *(slice(*r) for r in ranges))]
                at = mismatch(machine.view(rank, slot), part, allowance(part, slot.type.dtype) if inexact else 0.0)
                if at is not None:
                    found.append(f"{name} on rank {rank} at {at}: {machine.view(rank, slot)[at]}, not {part[at]}")
    return found + stored_differences(plan, machine, expected, inexact)


def stored_differences(plan: Plan, machine: Machine, expected: oracle.OracleRun, inexact: bool) -> list[str]:
    """Which stored values that are no outputs differ: a Plan says where each is found after the run."""
    found = []
    for name, slot in plan.slots.items():
        for rank, part in enumerate(expected.values[name]):
            group = plan.buffers[slot.buffer].group
            if part is None or group not in (-1, rank // plan.group_ranks):
                continue
            held = machine.view(rank, slot)
            if mismatch(held, part, allowance(part, slot.type.dtype) if inexact else 0.0) is not None:
                found.append(f"{name} on rank {rank}")
    return found


def check_plan(program: Any, inputs: Any = None, *, chunks: int = 4, plan: Plan | None = None, hosts: int = 1) -> Plan:
    """The Plan of `program`, after its values were found right under every order of `ORDERS`."""
    given = random_inputs(program) if inputs is None else inputs
    plan = plan or lower(program, chunks=chunks, hosts=hosts)
    expected = oracle.run(program, given)
    start = before(program, plan, given)
    for seed, greedy in ORDERS:
        machine = run_machine(start.again(), seed, greedy)
        wrong = differences(program, plan, machine, expected)
        assert not wrong, "; ".join(wrong[:3])
    return plan
