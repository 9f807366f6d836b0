"""as_slice: tensors every rank holds whole, of which it needs one block, are stored as blocks (paper §3.2)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from coconet_lab.errors import Refusal
from coconet_lab.ir import ops as o
from coconet_lab.ir.layout import Sliced
from coconet_lab.ir.program import Program
from coconet_lab.ir.types import TensorType
from coconet_lab.ir.updates import storage_of, updated_inputs
from coconet_lab.transforms.base import Transform, call, in_overlap, quoted, unknown
from coconet_lab.transforms.crossing import retyped_below
from coconet_lab.transforms.preview import groups_refusal, preview

RULE = "a tensor is stored as blocks where its own update works on blocks and nothing else changes [paper §3.2]"


@dataclass(frozen=True, slots=True)
class AsSlice(Transform):
    """m Replicated  -->  m Sliced: each rank keeps its block; the gather of its update is not needed any more.

    Parameters
    ----------
    names : tuple of str
        Replicated inputs.
    dim : int or None
        The dim to slice; None is the dim of the tensor's own update, or the first that divides among the ranks.

    Examples
    --------
    >>> import coconet_lab as cl
    >>> m, g = cl.tensor("m", cl.FP32, (8,), cl.Replicated), cl.tensor("g", cl.FP32, (8,), cl.Sliced(0))
    >>> part = cl.update(m, cl.add(m, g, name="sum"), name="m1_part")
    >>> before = cl.program("p", inputs=[m, g], outputs=[cl.all_gather(part, name="m1")], ranks=4)
    >>> AsSlice(("m",))(before)
    p: 5 ops, 4 ranks
      m = Tensor                FP32[8] Sliced(0)
      g = Tensor                FP32[8] Sliced(0)
      sum = Add(m, g)           FP32[8] Sliced(0)
      m1_part = Update(m, sum)  FP32[8] Sliced(0)
      m1 = AllGather(m1_part)   FP32[8] Replicated
      outputs m1
    """

    names: tuple[str, ...]
    dim: int | None = None
    kind: ClassVar[str] = "as_slice"

    def plan(self, program: Program) -> dict[str, TensorType] | Refusal:
        """The new types of the inputs and of everything that changes with them, or the Refusal."""
        if not self.names:
            return Refusal("as_slice names no tensor", RULE, 'as_slice("m")', applies=False)
        inputs: dict[str, TensorType] = {}
        for name in self.names:
            kind = self._sliced(program, name)
            if isinstance(kind, Refusal):
                return kind
            inputs[name] = kind
        changed = retyped_below(program, inputs)
        if isinstance(changed, tuple):
            name, error = changed
            found = f"cannot slice {self._asked()}: {name!r} cannot work on blocks: {error.found}"
            return Refusal(found, f"{RULE}; {error.rule}", self._hint(program))
        return (
            in_overlap(program, iter([*changed, *(r for name in self.names for r in program.readers[name])]))
            or self._changes_more(program, changed)
            or self._breaks_group(program, changed)
            or changed
        )

    def _asked(self) -> str:
        return ", ".join(map(repr, self.names))

    def _sliced(self, program: Program, name: str) -> TensorType | Refusal:
        op = program.ops.get(name)
        if op is None:
            return unknown(program, name)
        kind = program.types[name]
        if not isinstance(op, o.Input) or kind.shape == () or not kind.layout.is_replicated:
            what = f"a {kind.layout} input" if isinstance(op, o.Input) else op.kind
            what = "a scalar" if isinstance(op, o.Input) and kind.shape == () else what
            rule = "as_slice is for inputs that every rank holds whole (Replicated tensors) [paper §3.2]"
            return Refusal(f"cannot slice {name!r}: it is {what}", rule, "name a Replicated input", applies=False)
        dim = self._dim(program, name, kind) if self.dim is None else self.dim
        if not _divides(kind, dim, program.group_ranks):
            found = f"cannot slice {name!r} ({kind}) along dim {dim} among {program.group_ranks} ranks"
            rule = "a sliced dim is one of its dims and divides evenly among the ranks (one-dimensional: any size)"
            way_out = None if self.dim is None else AsSlice(self.names)
            padded = "pad the tensor, or leave it Replicated"
            return Refusal(found, rule, way_out.script() if way_out else padded, way_out)
        again = _gather_updated_again(program, name)
        if again:
            found = f"cannot slice {name!r}: {again!r} updates a gathered version of it"
            return Refusal(found, f"{RULE}; a whole version is no block", self._hint(program))
        return kind.with_layout(Sliced(dim))

    def _dim(self, program: Program, name: str, kind: TensorType) -> int:
        for reader in program.readers[name]:
            op, layout = program.ops[reader], program.types[reader].layout
            if isinstance(op, o.Update) and op.operands[0] == name and layout.dim is not None:
                return layout.dim
        fits = (d for d in range(len(kind.shape)) if _divides(kind, d, program.group_ranks))
        return next(fits, 0)

    def _changes_more(self, program: Program, changed: dict[str, TensorType]) -> Refusal | None:
        own = set(self.names)
        for name in changed:
            op = program.ops[name]
            what = ""
            if name in program.output_set:
                what = "an output"
            elif isinstance(op, o.Send):
                what = "what is sent"
            elif isinstance(op, o.Update) and storage_of(program.ops, name) not in own:
                what = f"the update of {storage_of(program.ops, name)!r}"
            if what:
                found = f"cannot slice {self._asked()}: {name!r}, {what}, would become {changed[name].layout}"
                return Refusal(found, RULE, self._hint(program))
        return None

    def _hint(self, program: Program) -> str:
        """What makes the updates work on whole tensors: the nearest collective above what reads the tensors."""
        waiting = deque(dict.fromkeys(reader for name in self.names for reader in program.readers[name]))
        seen = set(waiting)
        while waiting:
            op = program.ops[waiting.popleft()]
            if isinstance(op, o.AllGather):
                return f"reorder({quoted(op.name)}, past=…) first, so that the updates work on blocks"
            if isinstance(op, o.AllReduce):
                return f"{call('split', op.name)} and reorder first, so that the updates work on blocks"
            new = [source for source in op.sources if source not in seen]
            seen.update(new)
            waiting.extend(new)
        return "leave it Replicated"

    def _breaks_group(self, program: Program, changed: dict[str, TensorType]) -> Refusal | None:
        touched = [*changed, *(r for name in self.names for r in program.readers[name])] if program.fusions else []
        fusions = dict.fromkeys(program.fusion_of[name] for name in touched if name in program.fusion_of)
        after = preview(program, {}, changed, {})
        return groups_refusal(after, {f.name: f.members for f in fusions}, self.script())

    def carry_out(self, program: Program, plan: dict[str, TensorType]) -> Program:
        """The program with the inputs stored as blocks, and everything below typed again."""
        new: dict[str, o.Op] = {}
        for name in self.names:
            op = program.ops[name]
            if isinstance(op, o.Input):
                new[name] = replace(op, type=plan[name])
        return program.edit({**program.ops, **new}, inferred=plan)

    @classmethod
    def candidates(cls, program: Program) -> Iterator[Self]:
        """All updated Replicated tensors, those whose gathers then die (the paper's form), and each of them."""
        tensors = updated_tensors(program)
        last = updated_inputs(program)
        dying = tuple(n for n in tensors if not program.readers[last[n]] and last[n] not in program.output_set)
        for names in dict.fromkeys([tensors, dying, *((name,) for name in tensors)]):
            if names:
                yield cls(names)

    def script(self) -> str:
        """``as_slice("m", "v")``."""
        return call("as_slice", *self.names, dim=self.dim)


def updated_tensors(program: Program) -> tuple[str, ...]:
    """Replicated inputs that an update writes."""
    found = []
    for name in program.inputs:
        updated = any(
            isinstance(program.ops[r], o.Update) and program.ops[r].operands[0] == name for r in program.readers[name]
        )
        if updated and program.types[name].layout.is_replicated:
            found.append(name)
    return tuple(found)


def _gather_updated_again(program: Program, tensor: str) -> str:
    """An update that writes into a gathered version of `tensor`; empty where there is none."""
    version: str | None = tensor
    while version is not None:
        update = _updated_by(program, version)
        for reader in program.readers[update] if update else ():
            again = _updated_by(program, reader) if isinstance(program.ops[reader], o.AllGather) else None
            if again is not None:
                return again
        version = update
    return ""


def _updated_by(program: Program, version: str) -> str | None:
    for reader in program.readers[version]:
        op = program.ops[reader]
        if isinstance(op, o.Update) and op.operands[0] == version:
            return reader
    return None


def _divides(kind: TensorType, dim: int, ranks: int) -> bool:
    if not 0 <= dim < len(kind.shape) or (kind.pieces and dim):
        return False
    return len(kind.shape) == 1 or kind.shape[dim] % ranks == 0
