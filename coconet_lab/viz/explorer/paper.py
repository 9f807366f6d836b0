"""The paper's schedules of a program that has the form of one of `cl.workloads`, for "Go to" and for names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coconet_lab import workloads
from coconet_lab.errors import CoconetError
from coconet_lab.ir.program import Program
from coconet_lab.schedule.schedule import Schedule

_MOST_OPS = 120  # names of schedules are told by comparing programs, which takes its time


def paper_schedules(program: Program) -> dict[str, Schedule]:
    """The paper's name → the schedule, on `program` itself; empty where it is none of the workloads.

    Examples
    --------
    >>> import coconet_lab as cl
    >>> program = cl.workloads.sgd(elements=64).program
    >>> "AR-Opt" in paper_schedules(program)
    True
    """
    for recipes in _recipes(program):
        found = {}
        for name, recipe in recipes.items():
            try:
                found[name] = recipe(Schedule(program))
            except CoconetError:
                continue
        return {name: schedule for name, schedule in found.items() if schedule.steps}
    return {}


def _recipes(program: Program) -> Any:
    maker = getattr(workloads, program.name, None) if program.name in workloads.__all__ else None
    if maker is None or len(program) > _MOST_OPS:
        return
    for dtype in ("fp32", "fp16"):
        try:
            workload = maker(dtype=dtype)
        except (CoconetError, TypeError):
            return
        if _form(workload.program) == _form(program):
            yield workload.recipes


def _form(program: Program) -> list[tuple[str, str]]:
    return sorted((name, op.kind) for name, op in program.ops.items())


def known_names(schedules: Mapping[str, Schedule], base: Program) -> dict[str, str]:
    """Key of a program → the paper's name of the schedule that makes it."""
    if len(base) > _MOST_OPS:
        return {}
    return {schedule.key(): name for name, schedule in schedules.items()}
