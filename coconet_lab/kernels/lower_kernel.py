"""One kernel from operations of a program: registers, parameters and statements, phase by phase."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from coconet_lab.ir import ops as o
from coconet_lab.ir.dtypes import INT32, DType
from coconet_lab.ir.layout import Replicated, Sliced
from coconet_lab.ir.types import TensorType
from coconet_lab.kernels import kernel as k
from coconet_lab.kernels.lower_memory import Memory, source_of
from coconet_lab.kernels.lower_phases import PhasePlanner, check_fits, moved
from coconet_lab.kernels.lower_region import Region, UnfitError, region_of
from coconet_lab.kernels.plan import Slot


@dataclass(frozen=True, slots=True)
class Made:
    """A kernel and its arguments; `sends` are the members stored on partners in other groups."""

    kernel: k.Kernel
    slots: tuple[Slot, ...]
    scalars: tuple[str, ...]
    sends: tuple[str, ...]


@dataclass(slots=True)
class _Text:
    """What the builder has written so far; the caches are of the current phase."""

    tensors: list[k.TensorParam] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    scalars: list[str] = field(default_factory=list)
    dtypes: list[DType] = field(default_factory=list)
    origin: list[str] = field(default_factory=list)
    uniform: list[k.Statement] = field(default_factory=list)
    body: list[k.Statement] = field(default_factory=list)
    last_uniform: list[k.Statement] = field(default_factory=list)
    last: list[k.Statement] = field(default_factory=list)
    registers: dict[tuple[object, ...], int] = field(default_factory=dict)


class KernelBuilder:
    """Builds the kernel of `members` that stores `written`.

    Parameters
    ----------
    memory : Memory
    name : str
        The group's or operation's name.
    members : tuple of names
        In program order, host scalars left out.
    written : tuple of names
        What is read outside, outputs, effects.
    region : Region or None
        The index space; None: found from the members.

    Raises
    ------
    UnfitError
        The members are no single kernel.
    """

    def __init__(
        self,
        memory: Memory,
        name: str,
        members: tuple[str, ...],
        written: tuple[str, ...],
        region: Region | None = None,
    ) -> None:
        self.memory, self.program, self.name = memory, memory.program, name
        self.ranks = memory.program.group_ranks
        self.members, self.inside = members, frozenset(members)
        self.region = region or region_of(memory.program, members or written)
        check_fits(memory, self.region, members, written)
        self.planner = PhasePlanner(memory, self.region, members, written)
        self.phases = self.planner.plan()
        self.text = _Text()
        self.phase = 0
        self.found: dict[str, Slot] = {}
        self.overwritten: dict[str, str] = {}

    def build(self) -> Made:
        """The kernel."""
        phases = []
        for phase in range(self.phases.count):
            self.phase = phase
            phases.append(self._statements())
        text = self.text
        peers = any(isinstance(s, k.Combine | k.StoreAll) for p in phases for s in (*p.uniform, *p.body))
        kernel = k.Kernel(
            self.name,
            self.region.space(self.ranks),
            tuple(text.tensors),
            tuple(k.ScalarParam(name, self.program.types[name].dtype) for name in text.scalars),
            tuple(text.dtypes),
            tuple(phases),
            tuple(self._accumulator(name) for name in self.phases.reductions),
            opens=peers,
            closes=peers,
            origin=tuple(text.origin),
        )
        self._check_hazards(kernel)
        sends = tuple(n for n in self.phases.stores if isinstance(self.program.ops[n], o.Send))
        return Made(kernel, tuple(text.slots), tuple(text.scalars), sends)

    def _statements(self) -> k.Phase:
        text, level = self.text, self.phases.level
        text.uniform, text.body, text.last, text.last_uniform, text.registers = [], [], [], [], {}
        for at, name in enumerate(self.phases.reductions):
            if level[name] - 1 == self.phase:
                text.body.append(k.Accumulate(at, self.value(source_of(self.program.ops[name]))))
        stored_now = [name for name, at in self.phases.stores.items() if at == self.phase]
        for name in stored_now:
            self._store(name)
        for name in sorted(self.phases.keeps, key=self.program.position.__getitem__):
            if level[name] == self.phase:
                self._keep(name)
        for name in stored_now:
            value = self.planner.stored_value(name)
            if value is not None:
                self.found.setdefault(value, self.memory.home(name))
                self.overwritten[self.memory.home(name).buffer] = value
        return k.Phase((*text.body, *text.last), (*text.uniform, *text.last_uniform))

    # -- registers ---------------------------------------------------------------------------------------------------

    def _register(self, dtype: DType, origin: str) -> int:
        self.text.dtypes.append(dtype)
        self.text.origin.append(origin)
        return len(self.text.dtypes) - 1

    def value(self, name: str, pieces: bool = False) -> int:
        """The register of a value in this phase; `pieces`: in statements that run once a tensor of a list."""
        key = (self.planner.canonical(name), pieces)
        registers, pending = self.text.registers, [key]
        while key not in registers:  # operands first, without recursion: a group may be thousands of operations deep
            missing = self._missing(*pending[-1])
            if missing is not None:
                pending.append(missing)
            else:
                last = pending.pop()
                registers[last] = self._compute(*last)
        return registers[key]

    def _missing(self, name: str, pieces: bool) -> tuple[str, bool] | None:
        """The first operand that needs a register and has none; numbers get theirs in passing."""
        op = self.program.ops[name]
        if self._is_read(name) or isinstance(op, o.AllReduce | o.ReduceScatter):
            return None
        dtype = operand_dtype(self.memory, op)
        for x in op.operands[:1] if isinstance(op, o.Dropout) else op.operands:
            if not isinstance(x, str):
                self._number(x.resolve(self.ranks), dtype)
                continue
            key = (self.planner.canonical(x), pieces and self.region.is_per_piece(self.program.types[x]))
            if key not in self.text.registers:
                return key
        return None

    def _is_read(self, name: str) -> bool:
        """Whether a value is there: an argument, in memory, or the result of an earlier phase."""
        if name in self.memory.host or name not in self.inside or self.planner.accumulates(name):
            return True
        return self.phases.level[name] < self.phase and not self.planner.is_small(name)

    def _compute(self, name: str, pieces: bool) -> int:
        op, kind = self.program.ops[name], self.program.types[name]
        uniform = pieces or self.region.is_uniform(kind) or name in self.memory.host
        place = self.text.uniform if uniform else self.text.body
        if name in self.memory.host:
            out = self._register(kind.dtype, name)
            place.append(k.Argument(out, self._scalar(name)))
        elif name not in self.inside:
            out = self._load(name, self.memory.home(name), place)
        elif self.planner.accumulates(name):
            out = self._register(kind.dtype, name)
            place.append(k.Result(out, self.phases.reductions.index(name)))
        elif self._is_read(name):
            out = self._load(name, self.found[name], place)
        else:
            out = self._apply(op, kind, pieces, place)
        return out

    def _apply(self, op: o.Op, kind: TensorType, pieces: bool, place: list[k.Statement]) -> int:
        if isinstance(op, o.AllReduce | o.ReduceScatter):
            source = source_of(op)
            tensor = self._tensor(source, self.memory.home(source), peers=True)
            out = self._register(kind.dtype, op.name)
            place.append(k.Combine(out, tensor, op.reduction))
            return out
        args = self._arguments(op, pieces)
        out = self._register(kind.dtype, op.name)
        match op:
            case o.Pointwise():
                place.append(k.Apply(out, op.fn, args))
            case o.Cast():
                place.append(k.Convert(out, args[0]))
            case o.Dropout():
                place.append(k.Drop(out, args[0], self._scalar(source_of(op, 1)), op.stream, op.p))
            case o.Reduction():
                place.append(k.Apply(out, "Abs" if op.fn == "norm" else "Copy", args))
            case o.Custom():
                place.append(k.Call(out, op.operator.expression or "", args))
            case _:
                raise UnfitError(f"{op.kind} is no part of a kernel")
        return out

    def _arguments(self, op: o.Op, pieces: bool) -> tuple[int, ...]:
        operands = op.operands[:1] if isinstance(op, o.Dropout) else op.operands
        dtype = operand_dtype(self.memory, op)
        return tuple(
            self.value(x, pieces and self.region.is_per_piece(self.program.types[x]))
            if isinstance(x, str)
            else self._number(x.resolve(self.ranks), dtype)
            for x in operands
        )

    def _number(self, value: float | int, dtype: DType) -> int:
        key = (type(value), value, dtype)
        if key not in self.text.registers:
            out = self._register(dtype, "")
            self.text.uniform.append(k.Number(out, value))
            self.text.registers[key] = out
        return self.text.registers[key]

    def _scalar(self, name: str) -> int:
        if name not in self.memory.host:
            raise UnfitError(f"{name!r} is no argument")
        if name not in self.text.scalars:
            self.text.scalars.append(name)
        return self.text.scalars.index(name)

    # -- memory ------------------------------------------------------------------------------------------------------

    def _tensor(self, name: str, slot: Slot, *, peers: bool = False, written: bool = False) -> int:
        """The number of the parameter for a buffer."""
        text = self.text
        known = [at for at, other in enumerate(text.slots) if other.buffer == slot.buffer]
        if not known:
            placement = self.memory.placement(slot)
            if placement == "block" and not self.region.is_cut(slot.type):
                raise UnfitError(f"{name!r} is a block of another index space")
            text.slots.append(slot)
            kind, pieces = slot.type, self.region.is_per_piece(slot.type)
            text.tensors.append(k.TensorParam(name, kind.dtype, kind.shape, placement, peers, written, pieces))
            return len(text.slots) - 1
        at = known[0]
        param = text.tensors[at]
        if param.shape != slot.type.shape or param.dtype != slot.type.dtype:
            raise UnfitError(f"{name!r} shares the memory of another type")
        text.tensors[at] = replace(param, peers=param.peers or peers, written=param.written or written)
        if text.slots[at].type.layout.is_sliced and not slot.type.layout.is_sliced:
            text.slots[at] = slot
        return at

    def _load(self, name: str, slot: Slot, place: list[k.Statement]) -> int:
        if self.overwritten.get(slot.buffer, name) != name:
            raise UnfitError(f"{name!r} is overwritten before it is read again")
        tensor = self._tensor(name, slot)
        out = self._register(slot.type.dtype, name)
        place.append(k.Load(out, tensor))
        return out

    def _store(self, name: str) -> None:
        op, kind = self.program.ops[name], self.program.types[name]
        gathers, sends = isinstance(op, o.AllGather), isinstance(op, o.Send)
        pieces = self.region.is_per_piece(kind)
        register = self.value(source_of(op) if gathers or sends else name, pieces)
        tensor = self._tensor(name, self.memory.home(name), peers=gathers or sends, written=True)
        if sends and self.region.is_cut(kind) and not kind.layout.is_sliced:
            raise UnfitError(f"{name!r} is sent whole where a rank walks its block")
        uniform = pieces or self.region.is_uniform(moved(self.program, name))
        place = self.text.last_uniform if uniform else self.text.last
        form = k.StoreAll if gathers else k.StoreTo if sends else k.Store
        place.append(form(tensor, register))

    def _keep(self, name: str) -> None:
        """Store a value that later phases need in a buffer of the kernel's own, block-sized where it is cut."""
        kind = self.program.types[name]
        layout = kind.layout
        if self.region.dim is not None and self.region.is_cut(kind):
            layout = Sliced(self.region.dim - len(self.region.shape) + len(kind.shape))
        elif layout.is_sliced:
            layout = Replicated
        slot = self.memory.new(name, kind.with_layout(layout), "temporary")
        self.found[name] = slot
        register = self.value(name)
        self.text.last.append(k.Store(self._tensor(name, slot, written=True), register))

    def _accumulator(self, name: str) -> k.Accumulator:
        op = self.program.ops[name]
        source = self.program.types[source_of(op)]
        dims = op.dims if isinstance(op, o.Reduction) else None
        if source.is_list or (dims is not None and set(dims) == set(range(len(source.shape)))):
            dims = None
        crosses = self.region.dim is not None and (dims is None or self.region.dim in dims)
        fn = op.fn if isinstance(op, o.Reduction) else ""
        return k.Accumulator(fn, self.program.types[name].dtype, dims, crosses, source.is_list)

    def _check_hazards(self, kernel: k.Kernel) -> None:
        """No element may be written before another thread or rank has read it."""
        loaded = {s.tensor for s in kernel.statements() if isinstance(s, k.Load)}
        combined = {s.tensor for s in kernel.statements() if isinstance(s, k.Combine)}
        for at, tensor in enumerate(kernel.tensors):
            if tensor.written and at in combined:
                raise UnfitError(f"{tensor.value!r} is overwritten while other ranks read it")
            shared = not self.region.is_full(self.text.slots[at].type) and not self.region.is_point
            if tensor.written and at in loaded and shared and self.text.slots[at] not in self.found.values():
                raise UnfitError(f"{tensor.value!r} is overwritten while other elements read it")


def operand_dtype(memory: Memory, op: o.Op) -> DType:
    """The dtype a Python number among the operands takes: that of the first value beside it."""
    kinds = [memory.program.types[x] for x in op.operands if isinstance(x, str)]
    if op.kind == "Where" and isinstance(op.operands[0], str):
        kinds = kinds[1:]
    return kinds[0].dtype if kinds else INT32
