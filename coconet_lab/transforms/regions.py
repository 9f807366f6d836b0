"""Where fusing is worth asking about: connected computation between the same other operations (design §4a)."""

from __future__ import annotations

from coconet_lab.ir import ops as o
from coconet_lab.ir.program import Program

_COMPUTE = (o.Reduction, o.Update, o.LocalSlice)


def is_compute(op: o.Op) -> bool:
    """Whether `op` is work on elements that a fused kernel does."""
    return o.is_pointwise(op) or isinstance(op, _COMPUTE)


def pointwise_regions(program: Program) -> list[tuple[str, ...]]:
    """Connected computation of equal depth, in program order; depth counts the other operations on the longest path.

    No path between two values of a region leaves it, since depth never falls. Regions of scalars only are left out:
    that arithmetic is the host's.
    """
    depth: dict[str, int] = {}
    leader: dict[str, str] = {}
    for name, op in program.ops.items():
        is_inside = is_compute(op)
        below = max((depth[s] for s in op.sources), default=0)
        depth[name] = below + (not is_inside and not isinstance(op, o.Input))
        if not is_inside:
            continue
        leader[name] = name
        for source in op.sources:
            if source in leader and depth[source] == depth[name]:
                one, other = _root(leader, source), _root(leader, name)
                leader[other] = one
    regions: dict[str, list[str]] = {}
    for name in leader:
        regions.setdefault(_root(leader, name), []).append(name)
    found = (tuple(names) for names in regions.values())
    return [names for names in found if not all(program.types[n].is_scalar for n in names)]


def _root(leader: dict[str, str], name: str) -> str:
    while leader[name] != name:
        leader[name] = leader[leader[name]]
        name = leader[name]
    return name


def touching(program: Program, region: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The reducing collectives a region reads, and the gathers and sends that read it."""
    inside = set(region)
    before = dict.fromkeys(
        s
        for name in region
        for s in program.ops[name].sources
        if s not in inside and isinstance(program.ops[s], o.AllReduce | o.ReduceScatter)
    )
    after = dict.fromkeys(
        r for name in region for r in program.readers[name] if isinstance(program.ops[r], o.AllGather | o.Send)
    )
    return tuple(before), tuple(after)


def ends(program: Program, names: tuple[str, ...]) -> tuple[str, ...]:
    """The first and the last values of `names`: what is between them, a hull finds again."""
    inside = set(names)
    kept = [
        name
        for name in names
        if inside.isdisjoint(program.ops[name].operands) or inside.isdisjoint(program.readers[name])
    ]
    return tuple(kept)
