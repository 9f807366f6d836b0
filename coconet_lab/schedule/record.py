"""One step of a schedule and the programs before and after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coconet_lab.errors import CoconetError, IllegalTransform
from coconet_lab.ir.program import Moved, Program
from coconet_lab.schedule.diff import ProgramDiff, program_diff
from coconet_lab.transforms.base import Transform


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A step that was taken.

    Attributes
    ----------
    step : Transform
    before, after : Program
    """

    step: Transform
    before: Program
    after: Program

    @property
    def diff(self) -> ProgramDiff:
        """What the step changed."""
        return program_diff(self.before, self.after)

    @property
    def changed(self) -> tuple[str, ...]:
        """Names that are new or have another operation, type or group."""
        groups = {
            name
            for name in self.after.ops
            if self.before.fusion_of.get(name) != self.after.fusion_of.get(name)
            or self.before.overlap_of.get(name) != self.after.overlap_of.get(name)
        }
        diff = self.diff
        lit = {*diff.added, *diff.changed, *groups}
        return tuple(name for name in self.after.ops if name in lit)

    @property
    def moved(self) -> Mapping[str, Moved]:
        """Names the step dropped, and what carries their values now."""
        return {name: moved for name, moved in self.after.moved.items() if name in self.before.ops}

    def __repr__(self) -> str:
        return f"{self.step.script()}: {len(self.before)} ops before, {len(self.after)} after"


def take(program: Program, step: Transform, number: int) -> StepRecord:
    """Take a step; where it is refused the error names it and its number."""
    try:
        return StepRecord(step, program, step(program))
    except IllegalTransform as error:
        raise _placed(error, program, step, number) from error
    except CoconetError as error:
        refused = IllegalTransform(error.found, rule=error.rule, hint=error.hint)
        raise _placed(refused, program, step, number) from error


def _placed(error: IllegalTransform, program: Program, step: Transform, number: int) -> IllegalTransform:
    where = f"program {program.name!r}, step {number}: {step.script()}"
    return IllegalTransform(error.found, rule=error.rule, where=where, hint=error.hint)
