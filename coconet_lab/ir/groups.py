"""A fused group as one kernel sees it: what it reads and writes, over which elements, in which phases (paper §3.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from coconet_lab.ir import ops as o
from coconet_lab.ir.program import Fusion, Program
from coconet_lab.ir.spaces import Space, common_space, crosses, misfit
from coconet_lab.ir.updates import is_effect, is_in_place_gather


@dataclass(frozen=True, slots=True)
class GroupView:
    """The structure of a fused group, for its legality and for the lowering.

    Parameters
    ----------
    name : str
    members : tuple of names
        In an order that keeps the order graph's edges (program order where that does).
    reads : tuple of names
        Non-scalar values read from outside, in order of first use. The tensor an update overwrites counts only where
        a member reads its old value.
    scalars : tuple of names
        Zero-dimensional values (and one per tensor of a list) read from outside.
    written : tuple of names
        Members that must be stored: read outside, outputs, effects. An update whose in-place gather is a member is
        stored by that gather, and a member only a Send or gather of the group reads is not stored.
    space : Space
        The index space: global shape and the sliced dim (None: the whole on every rank).
    process_group : int or None
        The ranks that run it; None for scalars only.
    reducing : str or None
        The AllReduce or ReduceScatter. Its operand is always read from outside.
    gathers, sends : tuple of names
        AllGather and Send members; no member reads them.
    in_place : tuple of names
        Those gathers that write into a Replicated input, on every rank.
    absorbed : tuple of names
        Replicated members that are computed at this rank's block only; none of them is written.
    crossing : tuple of names
        Reductions across the sliced dim: partials of this rank's block, one exchange a phase, added in rank order.
    phases : tuple of tuples of names
        The members again, by phase: a reduction whose result later members need ends its phase.
    form : str
        "one-shot", "two-shot", "reduce-scatter", "gather", "send" or "pointwise".
    """

    name: str
    members: tuple[str, ...]
    reads: tuple[str, ...]
    scalars: tuple[str, ...]
    written: tuple[str, ...]
    space: Space
    process_group: int | None
    reducing: str | None
    gathers: tuple[str, ...]
    sends: tuple[str, ...]
    in_place: tuple[str, ...]
    absorbed: tuple[str, ...]
    crossing: tuple[str, ...]
    phases: tuple[tuple[str, ...], ...]
    form: str

    @property
    def space_shape(self) -> tuple[int, ...]:
        """Global shape of the index space."""
        return self.space.shape

    @property
    def space_dim(self) -> int | None:
        """The sliced dim of the index space; None where every rank runs over the whole."""
        return self.space.dim


def group_view(program: Program, group: str | Fusion) -> GroupView:
    """The view of a fused group of `program`.

    Parameters
    ----------
    program : Program
    group : str or Fusion
        A fused group's name; or a Fusion that is not (yet) one of the program's.

    Examples
    --------
    >>> import coconet_lab as cl
    >>> x = cl.tensor("x", cl.FP32, (8,), cl.Local)
    >>> program = cl.program("p", outputs=[cl.add(cl.mul(x, 2.0, name="a"), x, name="b")], ranks=2)
    >>> view = group_view(program, Fusion("fused", ("a", "b")))
    >>> view.form, view.reads, view.written
    ('pointwise', ('x',), ('b',))
    """
    fusion = program.fusion_named[group] if isinstance(group, str) else group
    position = program.order.position
    members = tuple(sorted(fusion.members, key=position.__getitem__))
    space = common_space(program.ops, program.types, members)
    reads, scalars = _read(program, members)
    reducing = next((m for m in members if isinstance(program.ops[m], o.AllReduce | o.ReduceScatter)), None)
    gathers = tuple(m for m in members if isinstance(program.ops[m], o.AllGather))
    sends = tuple(m for m in members if isinstance(program.ops[m], o.Send))
    crossing = tuple(m for m in members if crosses(program.ops, program.types, space, m))
    return GroupView(
        name=fusion.name,
        members=members,
        reads=reads,
        scalars=scalars,
        written=written(program, members),
        space=space,
        process_group=process_group(program, members),
        reducing=reducing,
        gathers=gathers,
        sends=sends,
        in_place=tuple(g for g in gathers if is_in_place_gather(program, g)),
        absorbed=tuple(m for m in members if _at_the_block(program, space, m)),
        crossing=crossing,
        phases=_phases(program, members),
        form=_form(program, reducing, gathers, sends),
    )


def _read(program: Program, members: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    inside = set(members)
    found: dict[str, None] = {}
    for member in members:
        op = program.ops[member]
        sources = op.operands[1:] if isinstance(op, o.Update) else op.operands
        found.update((s, None) for s in sources if isinstance(s, str) and s not in inside)
    reads = tuple(s for s in found if not program.types[s].is_scalar)
    return reads, tuple(s for s in found if program.types[s].is_scalar)


def written(program: Program, members: Iterable[str]) -> tuple[str, ...]:
    """Members of a group that its kernel must store."""
    inside = set(members)
    return tuple(m for m in members if m in program.output_set or _is_stored(program, m, inside))


def _is_stored(program: Program, name: str, inside: set[str]) -> bool:
    readers = program.readers[name]
    if any(reader not in inside for reader in readers):
        return True
    gathered = isinstance(program.ops[name], o.Update) and any(is_in_place_gather(program, r) for r in readers)
    return is_effect(program, name) and not gathered


def process_group(program: Program, members: Iterable[str]) -> int | None:
    """The one process group members run in (a Send runs where its operand is); the first, where there are several."""
    for group in process_groups(program, members):
        return group
    return None


def process_groups(program: Program, members: Iterable[str]) -> list[int]:
    """Process groups that members run in."""
    found: dict[int, None] = {}
    for member in members:
        op = program.ops[member]
        group = program.types[next(op.sources) if isinstance(op, o.Send) else member].group
        if group is not None:
            found[group] = None
    return list(found)


def _at_the_block(program: Program, space: Space, name: str) -> bool:
    op, kind = program.ops[name], program.types[name]
    is_moved = isinstance(op, o.AllGather | o.AllReduce | o.Send)
    return (
        not is_moved
        and kind.layout.is_replicated
        and space.has_block(kind)
        and not crosses(program.ops, program.types, space, name)
    )


def _phases(program: Program, members: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    level: dict[str, int] = {}
    for member in members:
        op = program.ops[member]
        start = 0
        for source in op.sources:
            if source in level:
                start = max(start, level[source] + isinstance(program.ops[source], o.Reduction))
        for reader in program.order.earlier.get(member, ()):
            start = max(start, level.get(reader, 0))
        level[member] = start
    return tuple(tuple(m for m in members if level[m] == at) for at in range(max(level.values(), default=-1) + 1))


def _form(program: Program, reducing: str | None, gathers: Sequence[str], sends: Sequence[str]) -> str:
    if reducing is not None and isinstance(program.ops[reducing], o.AllReduce):
        return "one-shot"
    if reducing is not None:
        return "two-shot" if gathers else "reduce-scatter"
    return "gather" if gathers else "send" if sends else "pointwise"


def absorbed_into(
    program: Program, members: set[str], leads_back: Callable[[str], bool], taken: Callable[[str], bool]
) -> set[str]:
    """What a group takes in beside its hull: repeatedly, any pointwise op, cast or reduction whose readers are all
    members, which is no output and which fits the index space.

    Parameters
    ----------
    members : set of names
        The hull; grows in place and is returned.
    leads_back : callable
        Whether an update outside must come before a member: what reads the old tensor then stays outside too.
    taken : callable
        Whether a value is in another group.
    """
    space = common_space(program.ops, program.types, members)
    outputs = program.output_set
    stack = list(members)
    while stack:
        member = stack.pop()
        for source in program.ops[member].sources:
            op = program.ops[source]
            if (
                source in members
                or source in outputs
                or taken(source)
                or not (o.is_pointwise(op) or isinstance(op, o.Reduction))
                or not members.issuperset(program.readers[source])
                or misfit(program.ops, program.types, space, source)
                or any(isinstance(program.ops[r], o.AllReduce | o.ReduceScatter) for r in program.readers[source])
                or any(u not in members and leads_back(u) for u in program.order.later.get(source, ()))
            ):
                continue
            members.add(source)
            stack.append(source)
    return members
