"""What a reorder puts in place of operations it crosses: themselves on blocks, or a part and a gather (paper §3.2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from coconet_lab.ir import ops as o
from coconet_lab.ir.program import Program
from coconet_lab.ir.types import TensorType
from coconet_lab.transforms.crossing import Crossing, gather_stays, needed_whole
from coconet_lab.transforms.rewriting import fresh_name


@dataclass(frozen=True, slots=True)
class Replacements:
    """The changes of a reorder.

    Parameters
    ----------
    at : mapping
        Old name -> the operations in its place: none, itself, or its part and a gather.
    read_as : mapping
        Old name -> what crossed operations read instead.
    gone : mapping
        Dropped name -> what carries its value.
    inferred : mapping
        Types of the values that became Sliced, under their new names.
    """

    at: Mapping[str, tuple[o.Op, ...]]
    read_as: Mapping[str, str]
    gone: Mapping[str, str]
    inferred: Mapping[str, TensorType]

    @property
    def renamed(self) -> dict[str, tuple[str, ...]]:
        """What stands in a fused group for each old member: its part or itself; gathers are no members by that."""
        return {name: tuple(op.name for op in new[:1]) for name, new in self.at.items()}

    def readers(self, program: Program, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Who reads `names` (as they are called after the reorder) then."""
        was: dict[str, list[str]] = {}
        for old, new in self.read_as.items():
            was.setdefault(new, []).append(old)
        found: dict[str, tuple[str, ...]] = {}
        for name in names:
            olds = [*was.get(name, ()), *([name] if name in program.ops else [])]
            asked = dict.fromkeys(x for old in olds for x in (old, *program.readers[old]))
            new_ops = (op for old in asked for op in self.at.get(old, (program.ops[old],)))
            found[name] = tuple(op.name for op in new_ops if name in op.operands)
        return found


def replacements(program: Program, gather: str, crossing: Crossing) -> Replacements:
    """The operations that stand for those of a crossing."""
    read_as = {gather: crossing.source}
    whole = needed_whole(program, gather, crossing)
    given: set[str] = set()
    for name in whole:
        read_as[name] = fresh_name(program, f"{name}_part", given)
        given.add(read_as[name])
    gone: dict[str, str] = {}
    for name, instead in crossing.gone.items():
        if name not in program.output_set:
            gone[name] = read_as[name] = read_as.get(instead, instead)
    at = _changed(program, crossing, read_as, set(whole), gone)
    if not gather_stays(program, gather, crossing.region):
        at[gather] = ()
        gone[gather] = crossing.source
    inferred = {read_as.get(name, name): kind for name, kind in crossing.sliced.items()}
    return Replacements(at, read_as, gone, inferred)


def _changed(
    program: Program, crossing: Crossing, read_as: Mapping[str, str], whole: set[str], gone: Mapping[str, str]
) -> dict[str, tuple[o.Op, ...]]:
    inside = dict.fromkeys([*crossing.region, *crossing.gone])
    inside.update(dict.fromkeys(r for name in gone for r in program.readers[name]))
    at: dict[str, tuple[o.Op, ...]] = {}
    for name in inside:
        op = program.ops[name]
        operands = tuple([read_as.get(x, x) if type(x) is str else x for x in op.operands])
        if name in gone:
            at[name] = ()
        elif name in crossing.gone:  # an output keeps its name: what it sliced is sliced already
            sliced = crossing.gone[name]
            copied = (read_as.get(sliced, sliced),)
            at[name] = (o.Pointwise(name=name, fn="Copy", operands=copied, label=op.label, site=op.site),)
        elif name in whole:
            part = replace(op, name=read_as[name], operands=operands)
            at[name] = part, o.AllGather(name=name, operands=(part.name,), label=op.label, site=op.site)
        elif operands != op.operands:
            at[name] = (replace(op, operands=operands),)
    return at
