"""Schedules written down: the Python that rebuilds one, and JSON that executes nothing when it is read."""

from __future__ import annotations

import json
import keyword
from collections.abc import Iterable, Sequence
from typing import Any

from coconet_lab.arguments import shown
from coconet_lab.errors import ProgramError
from coconet_lab.ir.json import malformed, program_from_json, program_to_json
from coconet_lab.ir.ops import CustomOperator
from coconet_lab.ir.program import Program
from coconet_lab.schedule.kinds import step_from_json
from coconet_lab.transforms.base import Transform

FORMAT = 1


def schedule_script(base: Program, steps: Sequence[Transform]) -> str:
    """Python that rebuilds a schedule where ``cl`` is imported and the base program has its own name."""
    start = f"cl.Schedule({variable_name(base)})"
    if not steps:
        return f"s = {start}\n"
    calls = "\n".join(f"     .{step.script()}" for step in steps)
    return f"s = ({start}\n{calls})\n"


def variable_name(base: Program) -> str:
    """The name a script calls its base program by."""
    usable = base.name.isidentifier() and not keyword.iskeyword(base.name) and base.name not in ("s", "cl")
    return base.name if usable else "program"


def schedule_to_json(base: Program, steps: Sequence[Transform]) -> str:
    """Base program and steps, with the number of this format."""
    data = {"format": FORMAT, "program": program_to_json(base), "steps": [step.to_json() for step in steps]}
    return json.dumps(data, indent=1, ensure_ascii=False)


def schedule_from_json(text: str | bytes, operators: Iterable[Any] = ()) -> tuple[Program, tuple[Transform, ...]]:
    """Base program and steps of such a text.

    Raises
    ------
    ProgramError
        Not JSON, another format, anything malformed, or an operator that was not passed.
    """
    try:
        data = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise malformed(str(error)) from None
    if not isinstance(data, dict) or not {"format", "program", "steps"} <= set(data):
        raise malformed("it has no format, program and steps")
    if data["format"] != FORMAT:
        raise ProgramError(
            f"this JSON has format {data['format']!r}",
            rule=f"this version reads format {FORMAT}",
            where="from_json",
            hint="the version that wrote it",
        )
    if not isinstance(data["steps"], list):
        raise malformed("its steps are no list")
    if isinstance(operators, str) or not isinstance(operators, Iterable):
        operators = [operators]
    base = program_from_json(data["program"], {op.name: op for op in map(_operator, operators)})
    return base, tuple(step_from_json(item) for item in data["steps"])


def _operator(item: Any) -> CustomOperator:
    """The operator behind what ``cl.operator`` returned."""
    found = getattr(item, "operator", item)
    if isinstance(found, CustomOperator):
        return found
    raise ProgramError(
        f"{shown(item)} is no operator",
        rule="operators are what cl.operator returned",
        where="from_json",
        hint="from_json(text, operators=[…])",
    )
