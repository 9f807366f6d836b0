"""A kernel whose reductions cross hosts, cut where its phases end: partial results leave, finished ones come back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from coconet_lab.ir.dtypes import FP64, INT64, DType
from coconet_lab.ir.layout import Local
from coconet_lab.kernels import kernel as k
from coconet_lab.kernels.lower_kernel import Made
from coconet_lab.kernels.lower_memory import Memory
from coconet_lab.kernels.lower_region import UnfitError
from coconet_lab.kernels.plan import Slot


@dataclass(frozen=True, slots=True)
class PartialResult:
    """A reduction between two parts: where a rank's partial result lies, and where the finished one goes."""

    value: str
    partial: Slot
    target: Slot
    fn: str
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """One of the kernels, the values it computes, and the reductions that are combined after it."""

    ops: tuple[str, ...]
    made: Made
    results: tuple[PartialResult, ...]


def parts_of(
    made: Made, reductions: Sequence[str], memory: Memory, written: Sequence[str], renamed: Mapping[str, str]
) -> list[Part]:
    """The kernels that run one after the other for `made`; itself, where no reduction crosses the ranks.

    Parameters
    ----------
    made : Made
        Its phases compute again, or keep in buffers, all they need of earlier ones: each can be a kernel.
    reductions : sequence of names
        The values of its accumulators.
    memory : Memory
    written : sequence of names
        What must be stored.
    renamed : mapping of name to name
        Updates and slices among the members, and the values they are.

    Raises
    ------
    UnfitError
        Other reductions are among those that cross.
    """
    crosses = [accumulator.crosses for accumulator in made.kernel.accumulators]
    if not any(crosses):
        return [Part((), made, ())]
    if not all(crosses):
        raise UnfitError("a reduction across hosts ends the kernel, others live on in it")
    known: dict[int, PartialResult] = {}
    parts = []
    for phase in made.kernel.phases:
        cutter = _Cutter(made, reductions, memory, frozenset(written), renamed, known)
        part = cutter.part(phase)
        if part is not None:
            parts.append(part)
    return parts


class _Cutter:
    """Makes a kernel of one phase."""

    def __init__(
        self,
        made: Made,
        reductions: Sequence[str],
        memory: Memory,
        written: frozenset[str],
        renamed: Mapping[str, str],
        known: dict[int, PartialResult],
    ) -> None:
        self.made, self.reductions, self.memory, self.written = made, reductions, memory, written
        self.renamed, self.known = renamed, known
        kernel = made.kernel
        self.tensors, self.slots = list(kernel.tensors), list(made.slots)
        self.dtypes, self.origin = list(kernel.dtypes), list(kernel.origin)
        self.accumulators: list[k.Accumulator] = []
        self.ends: list[tuple[k.Statement, ...]] = []
        self.results: list[PartialResult] = []

    def part(self, phase: k.Phase) -> Part | None:
        """The kernel, or None where nothing is left to do."""
        uniform = self._without_idle(self._rewritten(phase.uniform), phase)
        body = self._without_idle(self._rewritten(phase.body), phase)
        if not uniform and not body:
            return None
        phases = [k.Phase(body, uniform)]
        if self.ends:
            flat = [a.dims is None for a in self.accumulators]
            once = tuple(s for end, is_flat in zip(self.ends, flat) if is_flat for s in end)
            each = tuple(s for end, is_flat in zip(self.ends, flat) if not is_flat for s in end)
            phases.append(k.Phase(each, once))
        kernel = replace(
            self.made.kernel, tensors=tuple(self.tensors), dtypes=tuple(self.dtypes), origin=tuple(self.origin),
            phases=tuple(phases), accumulators=tuple(self.accumulators),
        )  # fmt: skip
        made = _pruned(kernel, self.slots, self.made.scalars)
        return Part(self._computed(made), made, tuple(self.results))

    def _computed(self, made: Made) -> tuple[str, ...]:
        """The values that a kernel computes or stores."""
        kernel = made.kernel
        read = k.Load | k.Combine | k.Argument | _NO_REGISTER
        found = {kernel.origin[s.out] for s in kernel.statements() if not isinstance(s, read)}
        stored = {slot.buffer for slot, tensor in zip(made.slots, kernel.tensors) if tensor.written}
        found |= {name for name in self.written if self.memory.home(name).buffer in stored}
        found |= {name for name, value in self.renamed.items() if value in found}
        return tuple(name for name in self.memory.program.ops if name in found)

    def _rewritten(self, statements: Sequence[k.Statement]) -> list[k.Statement]:
        found: list[k.Statement] = []
        for statement in statements:
            if isinstance(statement, k.Result):
                result = self.known[statement.accumulator]
                per_piece = self.made.kernel.accumulators[statement.accumulator].per_piece
                found.append(k.Load(statement.out, self._tensor(result.value, result.target, per_piece)))
            elif isinstance(statement, k.Accumulate):
                found += self._accumulated(statement)
            else:
                found.append(statement)
        return found

    def _without_idle(self, statements: list[k.Statement], phase: k.Phase) -> tuple[k.Statement, ...]:
        """Without stores of results to where they are found already, and loads for nothing else."""
        targets = {result.target.buffer for result in self.known.values()}
        loaded = {s.out: s.tensor for s in statements if isinstance(s, k.Load)}
        idle = [
            s for s in statements
            if isinstance(s, k.Store) and self.slots[s.tensor].buffer in targets and s.arg in loaded
            and self.slots[loaded[s.arg]].buffer == self.slots[s.tensor].buffer
        ]  # fmt: skip
        kept = [s for s in statements if s not in idle]
        unread = {s.arg for s in idle if isinstance(s, k.Store)} - _used([*kept, *phase.body, *phase.uniform], idle)
        return tuple(s for s in kept if not (isinstance(s, k.Load) and s.out in unread))

    def _register(self, dtype: DType, value: str) -> int:
        self.dtypes.append(dtype)
        self.origin.append(value)
        return len(self.dtypes) - 1

    def _tensor(self, value: str, slot: Slot, per_piece: bool, written: bool = False) -> int:
        kind = slot.type
        self.tensors.append(k.TensorParam(value, kind.dtype, kind.shape, "whole", False, written, per_piece))
        self.slots.append(slot)
        return len(self.slots) - 1

    def _accumulated(self, statement: k.Accumulate) -> list[k.Statement]:
        """The partial result in the wide type, unfinished: sums of squares for a norm, plain sums for a mean."""
        whole, value = self.made.kernel.accumulators[statement.accumulator], self.reductions[statement.accumulator]
        picks = whole.fn in ("max", "min")
        # Of no element, the largest integer is the least of its own type.
        wide = FP64 if whole.dtype.is_float else whole.dtype if picks else INT64
        found: list[k.Statement] = []
        register = statement.arg
        if self.dtypes[register] != wide:
            found.append(k.Convert(self._register(wide, value), register))
            register = len(self.dtypes) - 1
        if whole.fn == "norm":
            found.append(k.Apply(self._register(wide, value), "Mul", (register, register)))
            register = len(self.dtypes) - 1
        fn = whole.fn if picks else "sum"
        at = len(self.accumulators)
        self.accumulators.append(replace(whole, fn=fn, dtype=wide, crosses=False))
        found.append(k.Accumulate(at, register))
        result = self._result(value, whole, wide)
        self.known[statement.accumulator] = result
        self.results.append(result)
        out = self._register(wide, value)
        tensor = self._tensor(value, result.partial, whole.per_piece, written=True)
        self.ends.append((k.Result(out, at), k.Store(tensor, out)))
        return found

    def _result(self, value: str, accumulator: k.Accumulator, wide: DType) -> PartialResult:
        memory, space = self.memory, self.made.kernel.space
        kind = memory.program.types[value]
        partial = memory.new(value, replace(kind, dtype=wide, layout=Local), "temporary")
        target = memory.home(value) if value in self.written else memory.new(value, kind, "temporary")
        dims = range(len(space.shape)) if accumulator.dims is None else accumulator.dims
        counts: tuple[int, ...] = (math.prod(space.shape[d] for d in dims),)
        if accumulator.per_piece:
            counts = tuple(math.prod(piece) for piece in space.pieces)
        return PartialResult(value, partial, target, accumulator.fn, counts)


_NO_REGISTER = k.Store | k.StoreAll | k.StoreTo | k.Accumulate


def _used(statements: Sequence[k.Statement], idle: Sequence[k.Statement]) -> set[int]:
    """Registers that statements read."""
    found: set[int] = set()
    for statement in statements:
        if isinstance(statement, k.Apply | k.Call):
            found.update(statement.args)
        elif isinstance(statement, k.Convert | k.Drop | _NO_REGISTER) and statement not in idle:
            found.add(statement.arg)
    return found


def _pruned(kernel: k.Kernel, slots: Sequence[Slot], scalars: Sequence[str]) -> Made:
    """The kernel with the tensors and scalars that it uses; what it does not write is not written."""
    statements = list(kernel.statements())
    tensors = sorted({s.tensor for s in statements if isinstance(s, _OF_TENSOR)})
    wanted = {s.scalar for s in statements if isinstance(s, k.Argument)}
    wanted |= {s.seed for s in statements if isinstance(s, k.Drop)}
    arguments = sorted(wanted)

    def renumbered(statement: k.Statement) -> k.Statement:
        if isinstance(statement, _OF_TENSOR):
            return replace(statement, tensor=tensors.index(statement.tensor))
        if isinstance(statement, k.Argument):
            return replace(statement, scalar=arguments.index(statement.scalar))
        if isinstance(statement, k.Drop):
            return replace(statement, seed=arguments.index(statement.seed))
        return statement

    phases = tuple(
        k.Phase(tuple(map(renumbered, phase.body)), tuple(map(renumbered, phase.uniform))) for phase in kernel.phases
    )
    stored = {s.tensor for s in statements if isinstance(s, k.Store | k.StoreAll | k.StoreTo)}
    reached = {s.tensor for s in statements if isinstance(s, k.Combine | k.StoreAll | k.StoreTo)}
    params = tuple(replace(kernel.tensors[t], written=t in stored, peers=t in reached) for t in tensors)
    chosen = tuple(kernel.scalars[at] for at in arguments)
    made = replace(kernel, tensors=params, scalars=chosen, phases=phases)
    return Made(made, tuple(slots[t] for t in tensors), tuple(scalars[at] for at in arguments), ())


_OF_TENSOR = k.Load | k.Combine | k.Store | k.StoreAll | k.StoreTo
