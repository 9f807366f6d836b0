"""What may share one kernel: the rules of a fused group, told as refusals (paper §3.3, design §4a)."""

from __future__ import annotations

from collections.abc import Sequence

from coconet_lab.errors import ProgramError, Refusal
from coconet_lab.ir import ops as o
from coconet_lab.ir.groups import process_groups, written
from coconet_lab.ir.order import order_graph_is_acyclic
from coconet_lab.ir.program import Program
from coconet_lab.ir.spaces import Space, common_space, described, domain, misfit, needs_whole
from coconet_lab.ir.updates import gathers_in_place, storage_of

INSIDE = (
    o.Pointwise, o.Cast, o.Dropout, o.Reduction, o.AllReduce, o.ReduceScatter, o.AllGather, o.LocalSlice, o.Send,
    o.Update,
)  # fmt: skip
ONE_KERNEL = "a fused group is one kernel: pointwise work, one reducing collective at most, gathers, sends [paper §3.3]"
NO_WAIT = "a fused kernel does not wait for what it sends itself [paper §3.3]"
ONE_SPACE = "a fused group runs over one index space; other values are computed where it needs them [paper §3.3]"


def group_refusal(program: Program, members: Sequence[str]) -> Refusal | None:
    """Why `members` cannot be one kernel, or None; cycles of groups are `order_graph_is_acyclic`'s to find."""
    return (
        _outside_kinds(program, members)
        or _reducing(program, members)
        or _reads_moved(program, members)
        or _two_process_groups(program, members)
        or _spaces(program, members)
    )


def _outside_kinds(program: Program, members: Sequence[str]) -> Refusal | None:
    for name in members:
        op = program.ops[name]
        if isinstance(op, o.Input):
            return Refusal(f"{name!r} is an input: there is nothing to compute", ONE_KERNEL, "fuse what reads it")
        if not (isinstance(op, INSIDE) or o.is_pointwise(op)):
            found = f"{name!r} is {op.kind}, which cannot run inside a fused kernel"
            hint = f"fuse what comes before or after {name!r}; overlap(...) runs both at once"
            return Refusal(found, ONE_KERNEL, hint)
    return None


def _reducing(program: Program, members: Sequence[str]) -> Refusal | None:
    found = [m for m in members if isinstance(program.ops[m], o.AllReduce | o.ReduceScatter)]
    if len(found) > 1:
        both = " and ".join(f"{name!r} ({program.ops[name].kind})" for name in found[:2])
        return Refusal(f"{both} both reduce across ranks", ONE_KERNEL, "one group for each")
    inside = set(members)
    for name in found:
        source = next(program.ops[name].sources)
        if source in inside:
            text = f"{name!r} reduces {source!r}, which the group computes"
            rule = "a fused collective reads its operand from every rank's memory, so it comes first [paper §5.2]"
            return Refusal(text, rule, f"leave {source!r} out")
    return None


def _reads_moved(program: Program, members: Sequence[str]) -> Refusal | None:
    inside = set(members)
    for name in members:
        for source in program.ops[name].sources:
            if source in inside and isinstance(program.ops[source], o.AllGather | o.Send):
                found = f"{name!r} reads {source!r}, the group's own {program.ops[source].kind}"
                return Refusal(found, NO_WAIT, f"leave {name!r} out")
    return None


def _two_process_groups(program: Program, members: Sequence[str]) -> Refusal | None:
    groups = process_groups(program, members)
    if len(groups) < 2:
        return None
    other = next(m for m in members if process_groups(program, [m])[:1] == [groups[1]])
    found = f"{other!r} runs in process group {groups[1]}, other members in {groups[0]}"
    return Refusal(found, "a fused group runs on the ranks of one process group", f"leave {other!r} out")


def _spaces(program: Program, members: Sequence[str]) -> Refusal | None:
    space = common_space(program.ops, program.types, members)
    refusal = _in_place_reads(program, members, space)
    if refusal is not None:
        return refusal
    for name in members:
        why = misfit(program.ops, program.types, space, name)
        if why:
            return _two_spaces(program, name, why, space)
    for name in written(program, members):
        why = needs_whole(program.ops, program.types, space, name)
        if why:
            return _two_spaces(program, name, why, space)
    return None


def _two_spaces(program: Program, name: str, why: str, space: Space) -> Refusal:
    is_gatherable = space.dim is not None and program.types[name].layout.is_replicated
    hint = f"leave {name!r} out, or reorder(...) so that it works on slices" if is_gatherable else f"leave {name!r} out"
    return Refusal(f"{name!r} {why}, the group over {described(space)}", ONE_SPACE, hint)


def _in_place_reads(program: Program, members: Sequence[str], space: Space) -> Refusal | None:
    """Ranks write their blocks into each other's tensors, so a rank may read no block but its own."""
    roots = {storage_of(program.ops, m): m for m in members if gathers_in_place(program.ops, program.types, m)}
    for name in members if roots else ():
        op = program.ops[name]
        sources = op.operands[1:] if isinstance(op, o.Update) else op.operands
        for source in sources:
            gather = roots.get(source) if isinstance(source, str) else None
            if gather is None or not isinstance(source, str):
                continue
            kind = program.types[source]
            gathered = domain(program.ops, program.types, gather)
            at = None if gathered.layout.dim is None else space.aligned(gathered, gathered.layout.dim)
            if not space.has_block(kind) or at != space.dim:
                found = f"{name!r} reads more of {source!r} than this rank's block, and {gather!r} gathers into it"
                rule = "a tensor gathered in place is read at the block only: other ranks write the rest meanwhile"
                return Refusal(found, rule, f"leave {gather!r} or {name!r} out")
    return None


def check_fusions(program: Program) -> None:
    """Raise ProgramError unless every fused group can be one kernel and no two groups wait for each other."""
    for fusion in program.fusions:
        refusal = group_refusal(program, fusion.members)
        if refusal is not None:
            raise ProgramError(
                f"fused group {fusion.name!r}: {refusal.found}",
                rule=refusal.rule,
                where=f"program {program.name!r}",
                hint=refusal.hint,
            )
    if not order_graph_is_acyclic(program):
        raise ProgramError(
            "the operations wait for each other" if not program.fusions else "fused groups wait for each other",
            rule="operations, fused groups and overlaps run one after the other: what reads a tensor before its update",
            where=f"program {program.name!r}",
            hint="fuse fewer of them, or cl.copy(...) the old value",
        )
