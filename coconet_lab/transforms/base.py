"""What every transformation is: a frozen step with one predicate for exception, button and tuner (paper §3)."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, ClassVar, Self

from coconet_lab.errors import CoconetError, IllegalTransform, Refusal
from coconet_lab.ir.program import Program


class Transform(ABC):
    """One step of a schedule: it holds names and numbers only, so it is JSON-able and needs no program to exist.

    A subclass implements `plan`, which looks only at what the step touches and either refuses or says what changes,
    and `carry_out`, which makes the new program. `why_not`, `rewrite` and calling the step all go through these two,
    so that they cannot disagree.
    """

    __slots__ = ()
    kind: ClassVar[str]

    @abstractmethod
    def plan(self, program: Program) -> Any:
        """What the step changes, or the Refusal."""

    @abstractmethod
    def carry_out(self, program: Program, plan: Any) -> Program:
        """The program after the step whose `plan` this is."""

    @classmethod
    @abstractmethod
    def candidates(cls, program: Program) -> Iterator[Self]:
        """Steps of this kind worth asking about; each may still be refused."""

    @abstractmethod
    def script(self) -> str:
        """The method call of a Schedule that makes this step: ``split("total")``."""

    def needs_trial(self, program: Program, plan: Any) -> bool:
        """Whether rules of annotations on the changed operations are known only from the new program."""
        return False

    def why_not(self, program: Program) -> Refusal | None:
        """Why the step is refused on `program`; None exactly when `rewrite` succeeds."""
        plan = self.plan(program)
        if isinstance(plan, Refusal):
            return plan
        if self.needs_trial(program, plan):
            result = self._try(program, plan)
            return result if isinstance(result, Refusal) else None
        return None

    def rewrite(self, program: Program) -> Program:
        """The program after the step; `program` itself never changes.

        Raises
        ------
        IllegalTransform
            With the words of `why_not`.
        """
        plan = self.plan(program)
        result = plan if isinstance(plan, Refusal) else self._try(program, plan)
        if isinstance(result, Refusal):
            raise self._error(program, result)
        return result

    def __call__(self, program: Program) -> Program:
        """As `rewrite`."""
        return self.rewrite(program)

    def _try(self, program: Program, plan: Any) -> Program | Refusal:
        try:
            return self.carry_out(program, plan)
        except CoconetError as error:
            return Refusal(f"cannot {self.script()}: {error.found}", error.rule, error.hint)

    def _error(self, program: Program, refusal: Refusal) -> IllegalTransform:
        where = f"program {program.name!r}, {self.script()}"
        return IllegalTransform(refusal.found, rule=refusal.rule, where=where, hint=refusal.hint)

    def to_json(self) -> dict[str, Any]:
        """The step as JSON: its kind and its arguments."""
        arguments = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        return {"kind": self.kind, **{k: list(v) if isinstance(v, tuple) else v for k, v in arguments.items()}}

    def __str__(self) -> str:
        return self.script()


def quoted(text: str) -> str:
    """A Python string literal in double quotes, as scripts write names."""
    return json.dumps(text, ensure_ascii=False).encode("utf-8", "backslashreplace").decode("utf-8")


def call(method: str, *names: str, **arguments: Any) -> str:
    """``fuse("total_rs", "out", name="fused")``; arguments that are None are left out."""
    shown = [quoted(name) for name in names]
    for key, value in arguments.items():
        if value is not None:
            shown.append(f"{key}={_literal(value)}")
    return f"{method}({', '.join(shown)})"


def _literal(value: Any) -> str:
    if isinstance(value, tuple):
        return _literal(value[0]) if len(value) == 1 else f"[{', '.join(map(_literal, value))}]"
    return quoted(value) if isinstance(value, str) else repr(value)


def unknown(program: Program, name: str) -> Refusal:
    """The refusal of a name that `program` does not have: it says where the value went."""
    error = program.unknown(name)
    return Refusal(error.found, error.rule, error.hint, applies=False)


def in_overlap(program: Program, names: Iterator[str]) -> Refusal | None:
    """The refusal of a step that would change a stage of an overlap."""
    for name in names:
        overlap = program.overlap_of.get(name)
        if overlap is not None:
            return Refusal(
                f"{name!r} runs in overlap {overlap.name!r} ({' | '.join(overlap.stages)})",
                "overlap comes last: other steps leave its stages alone [paper §3.4]",
                "take this step before overlap(...)",
            )
    return None
