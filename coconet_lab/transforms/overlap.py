"""overlap: producer and consumer run at once, chunk by chunk (paper §3.4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from coconet_lab.errors import Refusal
from coconet_lab.ir import ops as o
from coconet_lab.ir.order import hull, way_back
from coconet_lab.ir.program import Overlap as Annotation
from coconet_lab.ir.program import Program
from coconet_lab.transforms.base import Transform, call, in_overlap, unknown
from coconet_lab.transforms.chunks import chunk_refusal
from coconet_lab.transforms.rewriting import fresh_name

RULE = "an overlap is a chain of producers and consumers that run at once, chunk by chunk [paper §3.4]"
STAGES = "stages are MatMul, Conv, AllReduce, ReduceScatter, AllGather, Send, fused groups and elementwise work"
LARGE = (o.MatMul, o.Conv, o.AllReduce, o.ReduceScatter, o.AllGather, o.Send)


@dataclass(frozen=True, slots=True)
class Overlap(Transform):
    """layer, fused  -->  ol = layer | fused: a chunk of `fused` starts when its chunk of `layer` is done.

    Parameters
    ----------
    names : tuple of str
        Values or fused groups, each feeding the next.
    name : str or None
        The overlap's name; None makes ``ol``, ``ol_2``, …

    Examples
    --------
    >>> import coconet_lab as cl
    >>> x, w = cl.tensor("x", cl.FP32, (8, 8), cl.Sliced(1)), cl.tensor("w", cl.FP32, (8, 8), cl.Sliced(0))
    >>> total = cl.all_reduce(cl.matmul(x, w, name="layer"), name="total")
    >>> Overlap(("layer", "total"))(cl.program("p", outputs=[total], ranks=2)).overlaps
    (Overlap(name='ol', stages=('layer', 'total'), named=False),)
    """

    names: tuple[str, ...]
    name: str | None = None
    kind: ClassVar[str] = "overlap"

    def plan(self, program: Program) -> Annotation | Refusal:
        """The annotation, or the Refusal."""
        stages = stages_of(program, self.names)
        if isinstance(stages, Refusal):
            return stages
        members = [members_of(program, stage) for stage in stages]
        inside = [name for stage in members for name in stage]
        refusal = (
            in_overlap(program, iter(inside))
            or self._few(stages)
            or self._kinds(program, stages)
            or self._chain(program, stages, members)
            or self._between(program, inside)
            or chunk_refusal(program, stages, members)
        )
        return refusal or self._called(program, stages)

    def _asked(self) -> str:
        return ", ".join(map(repr, self.names))

    def _few(self, stages: Sequence[str]) -> Refusal | None:
        if len(set(stages)) < 2 or len(set(stages)) < len(stages):
            found = f"cannot overlap {self._asked()}: as stages they are {' | '.join(stages) or 'nothing'}"
            rule = f"{RULE}; two or more different stages"
            return Refusal(found, rule, 'overlap("producer", "consumer")', applies=False)
        return None

    def _kinds(self, program: Program, stages: Sequence[str]) -> Refusal | None:
        for stage in stages:
            op = program.ops.get(stage)
            if op is not None and not (isinstance(op, (*LARGE, o.Update)) or o.is_pointwise(op)):
                found = f"cannot overlap {self._asked()}: {stage!r} is {op.kind}, which does not run in chunks"
                return Refusal(found, f"{RULE}; {STAGES}", f"leave {stage!r} out", applies=not isinstance(op, o.Input))
        return None

    def _chain(self, program: Program, stages: Sequence[str], members: Sequence[Sequence[str]]) -> Refusal | None:
        for at in range(len(stages) - 1):
            first, second = stages[at], stages[at + 1]
            if feeds(program, members[at], members[at + 1]):
                continue
            found = f"cannot overlap {self._asked()}: {second!r} reads nothing of {first!r}"
            turned = Overlap((second, first)) if feeds(program, members[at + 1], members[at]) else None
            hint = turned.script() if turned else f"name what {second!r} reads"
            return Refusal(found, f"{RULE}: each feeds the next", hint, turned, applies=turned is not None)
        return None

    def _between(self, program: Program, inside: Sequence[str]) -> Refusal | None:
        start = set(inside)
        between = sorted(hull(program, start) - start, key=program.position.__getitem__)
        if between:
            found = f"cannot overlap {self._asked()}: {between[0]!r} runs between them"
            return Refusal(found, f"{RULE}: nothing else between them", f"fuse {between[0]!r} with a stage first")
        other = way_back(program, start)
        if other is not None:
            found = f"cannot overlap {self._asked()}: {other!r} would wait for them, and they for {other!r}"
            return Refusal(found, "with groups and overlaps taken as one, nothing waits for itself", "fewer stages")
        return None

    def _called(self, program: Program, stages: tuple[str, ...]) -> Annotation | Refusal:
        if self.name is None:
            return Annotation(fresh_name(program, "ol"), stages)
        if not self.name or program.has_name(self.name):
            found = f"cannot call the overlap {self.name!r}: " + ("the name is taken" if self.name else "it is empty")
            return Refusal(found, "values, fused groups and overlaps share one set of names", "another name")
        return Annotation(self.name, stages, True)

    def carry_out(self, program: Program, plan: Annotation) -> Program:
        """The program with the overlap noted."""
        return program.edit(overlaps=(*program.overlaps, plan))

    @classmethod
    def candidates(cls, program: Program) -> Iterator[Self]:
        """From every stage that no other feeds the longest legal chain, then every adjacent pair."""
        pairs: dict[str, list[str]] = {}
        for stage in _worth_overlapping(program):
            for other in _fed(program, stage):
                if cls((stage, other)).why_not(program) is None:
                    pairs.setdefault(stage, []).append(other)
        fed = {other for others in pairs.values() for other in others}
        for start in pairs:
            chain = cls((start,))
            longer = chain._longer(pairs) if start not in fed else []
            while longer and longer[0].why_not(program) is None:
                chain = longer[0]
                longer = chain._longer(pairs)
            if len(chain.names) > 2:
                yield chain
        for stage, others in pairs.items():
            yield from (cls((stage, other)) for other in others)

    def _longer(self, pairs: Mapping[str, Sequence[str]]) -> list[Self]:
        return [type(self)((*self.names, other)) for other in pairs.get(self.names[-1], ())]

    def script(self) -> str:
        """``overlap("layer", "fused")``."""
        return call("overlap", *self.names, name=self.name)


def stages_of(program: Program, names: Sequence[str]) -> tuple[str, ...] | Refusal:
    """The stages `names` mean: a member of a fused group names its group."""
    found = []
    for name in names:
        if name not in program.ops and name not in program.fusion_named:
            return unknown(program, name)
        fusion = program.fusion_of.get(name)
        found.append(fusion.name if fusion else name)
    return tuple(found)


def members_of(program: Program, stage: str) -> tuple[str, ...]:
    """The operations of a stage."""
    fusion = program.fusion_named.get(stage)
    return fusion.members if fusion else (stage,)


def feeds(program: Program, first: Sequence[str], second: Sequence[str]) -> bool:
    """Whether an operation of `second` reads one of `first`."""
    inside = set(second)
    return any(reader in inside for name in first for reader in program.readers[name])


def _worth_overlapping(program: Program) -> Iterator[str]:
    """Collectives, matmuls and fused groups; elementwise work alone hides nothing."""
    seen: set[str] = set()
    for name, op in program.ops.items():
        fusion = program.fusion_of.get(name)
        stage = fusion.name if fusion else name
        if stage not in seen and (fusion or isinstance(op, LARGE)):
            seen.add(stage)
            yield stage


def _fed(program: Program, stage: str) -> list[str]:
    """The stages worth overlapping that read `stage`."""
    found: dict[str, None] = {}
    for name in members_of(program, stage):
        for reader in program.readers[name]:
            fusion = program.fusion_of.get(reader)
            other = fusion.name if fusion else reader
            if other != stage and (fusion or isinstance(program.ops[reader], LARGE)):
                found[other] = None
    return list(found)
