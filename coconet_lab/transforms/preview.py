"""A program as it would be after a step, around what the step changes only: so that asking costs what changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from coconet_lab.errors import Refusal
from coconet_lab.ir import ops as o
from coconet_lab.ir.group_rules import group_refusal
from coconet_lab.ir.program import Program
from coconet_lab.ir.types import TensorType

T = TypeVar("T")


class Over(Mapping[str, T]):
    """A mapping with some entries changed, without copying the rest."""

    __slots__ = ("_changed", "_rest")

    def __init__(self, changed: Mapping[str, T], rest: Mapping[str, T]) -> None:
        self._changed, self._rest = changed, rest

    def __getitem__(self, name: str) -> T:
        return self._changed[name] if name in self._changed else self._rest[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._rest
        yield from (name for name in self._changed if name not in self._rest)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def preview(
    program: Program,
    ops: Mapping[str, o.Op],
    types: Mapping[str, TensorType],
    readers: Mapping[str, tuple[str, ...]],
) -> Program:
    """`program` with some operations, types and readers changed: enough for the rules of single groups.

    Its order is not: operations stand where they stood, new ones at the end, dropped ones are still there.
    """
    result = replace(program, ops=Over(ops, program.ops), types=Over(types, program.types))
    result.__dict__["readers"] = Over(readers, program.readers)
    result.__dict__["output_set"] = program.output_set
    return result


def groups_refusal(after: Program, groups: Mapping[str, tuple[str, ...]], script: str) -> Refusal | None:
    """Why one of `groups` (name -> members after the step that `script` calls) would be no kernel any more."""
    for name, members in groups.items():
        refusal = group_refusal(after, members)
        if refusal is not None:
            found = f"cannot {script}: fused group {name!r}: {refusal.found}"
            return Refusal(found, refusal.rule, refusal.hint)
    return None
