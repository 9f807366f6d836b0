"""What makes operations a program, checked after every step (design §4a)."""

from __future__ import annotations

from coconet_lab.arguments import whole
from coconet_lab.errors import ProgramError
from coconet_lab.ir import ops as o
from coconet_lab.ir.group_rules import check_fusions
from coconet_lab.ir.program import Program
from coconet_lab.ir.updates import storage_of


def verify(program: Program) -> None:
    """Raise ProgramError unless names, order, groups, updates and annotations of `program` hold together."""
    _check_names(program)
    _check_order(program)
    _check_groups(program)
    _check_updates(program)
    _check_annotations(program)
    check_fusions(program)


def check_ranks(name: str, ranks: int, groups: int) -> tuple[int, int]:
    """R ranks make Q groups of R/Q; both as ints."""
    where = f"program {name!r}"
    ranks = whole(ranks, "the number of ranks", least=1, hint="ranks=4", where=where)
    groups = whole(groups, "the number of groups", least=1, hint="groups=1", where=where)
    if ranks % groups:
        raise ProgramError(
            f"program {name!r} asks for {ranks} ranks in {groups} groups",
            rule="a group has the same whole number of ranks, 1 or more",
            where=where,
            hint=f"ranks={groups * max(1, ranks // groups)}",
        )
    return ranks, groups


def _check_names(program: Program) -> None:
    for name, op in program.ops.items():
        if name != op.name or not name:
            raise ProgramError(
                f"an operation called {op.name!r} stands under the name {name!r}", rule="any non-empty string is a name"
            )
    for output in program.outputs:
        if output not in program.ops:
            raise program.unknown(output)
    annotated = [*(f.name for f in program.fusions), *(v.name for v in program.overlaps)]
    doubled = {name for name in annotated if name in program.ops or annotated.count(name) > 1}
    if doubled:
        raise ProgramError(
            f"two things are called {min(doubled)!r}",
            rule="values, fused groups and overlaps share one set of names",
            where=f"program {program.name!r}",
            hint='name="another"',
        )


def _check_order(program: Program) -> None:
    seen: set[str] = set()
    for name, op in program.ops.items():
        missing = [x for x in op.operands if type(x) is str and x not in seen]
        if missing:
            raise ProgramError(
                f"{name!r} reads {missing[0]!r}, which does not come before it",
                rule="a program has no cycle, and every operand is one of its values",
                where=f"program {program.name!r}",
            )
        seen.add(name)


def _check_groups(program: Program) -> None:
    check_ranks(program.name, program.ranks, program.groups)
    for name, kind in program.types.items():
        if kind.group is not None and not 0 <= kind.group < program.groups:
            raise ProgramError(
                f"{name!r} lives in group {kind.group}, but the program has {program.groups}",
                rule=f"groups are 0 to {program.groups - 1}",
                where=f"program {program.name!r}",
                hint=f"cl.program(…, groups={max(kind.group, 0) + 1})",
            )


def _check_updates(program: Program) -> None:
    for name, op in program.ops.items():
        if not isinstance(op, o.Update):
            continue
        tensor = op.operands[0]
        if not isinstance(tensor, str) or storage_of(program.ops, tensor) is None:
            raise ProgramError(
                f"{name!r} updates {tensor!r}, which is no input",
                rule="an update writes into an input or its newest version",
                where=f"program {program.name!r}",
                hint="update(the input, value)",
            )
        _check_version(program, name, tensor)
        _check_gathered(program, name, tensor)


def _check_version(program: Program, name: str, tensor: str) -> None:
    readers = program.readers[tensor]
    others = [
        r
        for r in readers
        if r != name and isinstance(program.ops[r], o.Update) and program.ops[r].operands[0] == tensor
    ]
    if others:
        raise ProgramError(
            f"{tensor!r} is updated twice, by {name!r} and {others[0]!r}",
            rule="each version of a tensor is updated once",
            where=f"program {program.name!r}",
            hint=f"update({name}, …)",
        )
    if tensor in program.outputs:
        raise ProgramError(
            f"{tensor!r} is an output, but {name!r} overwrites it",
            rule="the old value is gone after an update",
            where=f"program {program.name!r}",
            hint=f"output {name!r}, or cl.copy({tensor}) before the update",
        )
    start = program.position[name]
    for reader in readers:
        if program.position[reader] > start and depends_on(program, reader, name):
            raise ProgramError(
                f"{reader!r} reads {tensor!r} below {name!r}, which overwrites it",
                rule="an operation below an update reads the new version",
                where=f"program {program.name!r}",
                hint=f"cl.copy({tensor}) first, or read {name!r}",
            )


def _check_gathered(program: Program, name: str, tensor: str) -> None:
    root = storage_of(program.ops, tensor)
    if root is None or not (program.types[root].layout.is_replicated and program.types[name].layout.is_sliced):
        return
    if not any(isinstance(program.ops[r], o.AllGather | o.Update) for r in program.readers[name]):
        raise ProgramError(
            f"{name!r} updates one block of the Replicated {root!r} on each rank, and nothing gathers it",
            rule="a sliced update of a Replicated tensor is all_gathered, in place",
            where=f"program {program.name!r}",
            hint=f"all_gather({name})",
        )


def depends_on(program: Program, name: str, ancestor: str) -> bool:
    """Whether `name` reads `ancestor`, directly or through others."""
    floor = program.position[ancestor]
    stack, seen = [name], {name}
    while stack:
        for source in program.ops[stack.pop()].sources:
            if source == ancestor:
                return True
            if source not in seen and program.position[source] > floor:
                seen.add(source)
                stack.append(source)
    return False


def _check_annotations(program: Program) -> None:
    taken: set[str] = set()
    for fusion in program.fusions:
        for member in fusion.members:
            if member not in program.ops or member in taken:
                raise ProgramError(
                    f"fused group {fusion.name!r} names {member!r}, which is "
                    + ("in another group" if member in taken else "no value"),
                    rule="a value is in one fused group at most",
                    where=f"program {program.name!r}",
                )
            taken.add(member)
    for overlap in program.overlaps:
        for stage in overlap.stages:
            if stage not in program.ops and stage not in program.fusion_named:
                raise ProgramError(
                    f"overlap {overlap.name!r} names {stage!r}, which is neither a value nor a fused group",
                    rule="a stage is a value or a fused group",
                    where=f"program {program.name!r}",
                )
