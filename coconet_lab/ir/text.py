"""A program as text: one aligned line an operation, then its groups and outputs."""

from __future__ import annotations

from coconet_lab.ir.program import Program
from coconet_lab.ir.value import op_text


def program_text(program: Program) -> str:
    """The program as the notebook prints it and golden files keep it."""
    rows = [(op_text(op), program.types[name]) for name, op in program.ops.items()]
    width = min(max((len(text) for text, _ in rows), default=0), 72)
    groups = f", {program.groups} groups" if program.groups > 1 else ""
    lines = [f"{program.name}: {len(rows)} ops, {program.ranks} ranks{groups}"]
    lines += [f"  {text:<{width}}  {kind}" for text, kind in rows]
    lines += [f"  fused {f.name} = {{{', '.join(f.members)}}}" for f in program.fusions]
    lines += [f"  overlap {v.name} = {' | '.join(v.stages)}" for v in program.overlaps]
    return "\n".join([*lines, f"  outputs {', '.join(program.outputs)}"])
