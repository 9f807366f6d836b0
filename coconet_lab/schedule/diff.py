"""What differs between two programs: names added, removed and changed, and a text that shows it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from coconet_lab.ir.program import Program
from coconet_lab.ir.value import op_text


@dataclass(frozen=True, slots=True)
class ProgramDiff:
    """Names of one program that another does not have, has besides, or has with another operation or type."""

    before: Program
    after: Program
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]

    @property
    def text(self) -> str:
        """One line an operation: ``-`` as it was, ``+`` as it is, in program order; then groups and overlaps."""
        lines = list(_lines(self))
        return "\n".join(lines) if lines else "no difference"

    def __bool__(self) -> bool:
        return self.text != "no difference"

    def __repr__(self) -> str:
        return self.text


def program_diff(before: Program, after: Program) -> ProgramDiff:
    """Compare two programs, operation by operation."""
    return ProgramDiff(
        before,
        after,
        tuple(name for name in after.ops if name not in before.ops),
        tuple(name for name in before.ops if name not in after.ops),
        tuple(name for name in after.ops if name in before.ops and _differs(before, after, name)),
    )


def _differs(before: Program, after: Program, name: str) -> bool:
    return before.ops[name] != after.ops[name] or before.types[name] != after.types[name]


def _lines(diff: ProgramDiff) -> Iterator[str]:
    gone, new, changed = set(diff.removed), set(diff.added), set(diff.changed)
    pending = [name for name in diff.before.ops if name in gone or name in changed]
    position = diff.before.position
    for name in diff.after.ops:
        if name not in new and name not in changed:
            continue
        # What was removed is shown where it stood: before the first later value that is still there.
        while pending and name not in new and position[pending[0]] <= position[name]:
            yield _line("-", diff.before, pending.pop(0))
        yield _line("+", diff.after, name)
    for name in pending:
        yield _line("-", diff.before, name)
    yield from _annotations(diff.before, diff.after)


def _line(sign: str, program: Program, name: str) -> str:
    return f"{sign} {op_text(program.ops[name])}: {program.types[name]}"


def _annotations(before: Program, after: Program) -> Iterator[str]:
    old, new = _annotation_lines(before), _annotation_lines(after)
    yield from (f"- {line}" for line in old if line not in new)
    yield from (f"+ {line}" for line in new if line not in old)


def _annotation_lines(program: Program) -> list[str]:
    lines = [f"fused {f.name} = {{{', '.join(f.members)}}}" for f in program.fusions]
    lines += [f"overlap {v.name} = {' | '.join(v.stages)}" for v in program.overlaps]
    return [*lines, f"{program.ranks} ranks in {program.groups} groups", f"outputs {', '.join(program.outputs)}"]
