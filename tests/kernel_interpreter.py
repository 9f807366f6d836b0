"""The kernel IR in NumPy: one launch on one rank, a phase at a time, on whole blocks at once."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from coconet_lab.ir.contract import accumulator, finished
from coconet_lab.ir.elementwise import FUNCTIONS, erf
from coconet_lab.ir.layout import Replicated, Sliced
from coconet_lab.ir.rank_values import spread
from coconet_lab.ir.rng import dropout_keep, flat_indices
from coconet_lab.ir.rounding import cast, literal, rounded
from coconet_lab.ir.types import TensorType
from coconet_lab.kernels import kernel as k

Array = np.ndarray[Any, Any]
COMBINE = {"+": np.add, "max": np.maximum, "min": np.minimum}
FINISH = {"sum": np.add, "mean": np.add, "norm": np.add, "max": np.maximum, "min": np.minimum}
EXPRESSION = {
    "abs": np.abs, "sqrt": np.sqrt, "exp": np.exp, "log": np.log, "tanh": np.tanh, "erf": erf,
    "min": np.minimum, "max": np.maximum,
}  # fmt: skip


class KernelRun:
    """One launch of a kernel on one rank."""

    def __init__(self, machine: Any, entry: Any, rank: int) -> None:
        self.machine, self.entry, self.rank = machine, entry, rank
        self.kernel: k.Kernel = entry.kernel
        space = self.kernel.space
        self.k = machine.shifted(rank, entry.shift)
        assert (space.ranks, space.parts) == (machine.plan.placement.local, machine.size)
        layout = Replicated if space.dim is None else Sliced(space.dim)
        self.type = TensorType(self.kernel.dtypes[0], space.shape, layout, 0, space.pieces, False, space.bucket)
        self.block = self.type.ranges(self.k, space.parts)
        self.ranges = self._cut(entry.chunk)
        self.results: dict[int, Array] = {}
        self.partials: dict[int, Array] = {}

    def _cut(self, chunk: Any) -> list[tuple[int, int]]:
        ranges, space = list(self.block), self.kernel.space
        assert (chunk is None) == (space.chunk_dim is None)
        if chunk is not None:
            assert chunk.dim == space.chunk_dim
            start, stop = ranges[chunk.dim]
            base = start if chunk.dim == space.dim else 0
            ranges[chunk.dim] = (min(base + chunk.start, stop), min(base + chunk.stop, stop))
        return ranges

    def phase(self, number: int) -> None:
        """Run a phase: everything is read before anything is stored, as each element's own thread does it."""
        self.partials, self.registers, stores = {}, {}, []
        phase = self.kernel.phases[number]
        with np.errstate(all="ignore"):
            for inside, statements in ((False, phase.uniform), (True, phase.body)):
                for statement in statements:
                    if isinstance(statement, k.Store | k.StoreAll | k.StoreTo):
                        stores.append((statement, inside))
                    elif isinstance(statement, k.Accumulate):
                        self._accumulate(statement)
                    else:
                        value = np.asarray(self._value(statement, inside))
                        dtype = self.kernel.dtypes[statement.out]
                        assert value.dtype == dtype.numpy, (statement, value.dtype)
                        self.registers[statement.out] = value
            for statement, inside in stores:
                self._store(statement, inside)

    # -- values ------------------------------------------------------------------------------------------------------

    def _value(self, statement: Any, inside: bool) -> Array:
        kernel, dtypes = self.kernel, self.kernel.dtypes
        match statement:
            case k.Load(_, tensor):
                return self._read(self.rank, tensor, inside).copy()
            case k.Combine(out, tensor, reduction):
                compute = dtypes[out].compute
                copies = [self._read(r, tensor, inside).astype(compute) for r in self.machine.peers(self.rank)]
                total = copies[0]
                for copy in copies[1:]:
                    total = COMBINE[reduction](total, copy)
                return rounded(np.asarray(total), dtypes[out])
            case k.Number(out, value):
                return literal(value, dtypes[out])
            case k.Argument(_, scalar):
                assert kernel.scalars[scalar].dtype == self.machine.plan.scalar_types[self.entry.scalars[scalar]].dtype
                return self.machine.scalars[self.entry.scalars[scalar]]
            case k.Apply(_, fn, args):
                dtype = dtypes[args[1]] if fn == "Where" else dtypes[args[0]]
                return FUNCTIONS[fn](dtype, *(self.registers[a] for a in args))
            case k.Convert(out, arg):
                return cast(self.registers[arg], dtypes[arg], dtypes[out])
            case k.Drop():
                return self._drop(statement)
            case k.Call(out, expression, args):
                names = [f"a{i}" for i in range(len(args))]
                wide = {n: self.registers[a].astype(dtypes[a].compute) for n, a in zip(names, args)}
                made = eval(expression.format(*names), {"__builtins__": {}}, {**EXPRESSION, **wide})
                return rounded(np.asarray(made), dtypes[out])
            case k.Result(_, number):
                found = self.results[number]
                per_piece = kernel.accumulators[number].per_piece
                return self._spread(found) if per_piece and inside else found
        raise AssertionError(statement)

    def _drop(self, statement: k.Drop) -> Array:
        space, dtype = self.kernel.space, self.kernel.dtypes[statement.out]
        seed = int(self.machine.scalars[self.entry.scalars[statement.seed]])
        keep = dropout_keep(seed, statement.stream, flat_indices(space.shape, self.ranges), statement.p)
        scale = np.asarray(1.0 / (1.0 - statement.p)).astype(dtype.compute)
        scaled = rounded(self.registers[statement.arg].astype(dtype.compute) * scale, dtype)
        return np.where(keep, scaled, dtype.numpy.type(0))

    def _spread(self, per_piece: Array) -> Array:
        return spread(per_piece, self.type)[slice(*self.ranges[0])]

    def _is_per_piece(self, param: k.TensorParam) -> bool:
        return param.per_piece

    def _index(self, param: k.TensorParam) -> tuple[Any, ...]:
        space = self.kernel.space
        shift = len(space.shape) - len(param.shape)
        index = []
        for dim, extent in enumerate(param.shape, shift):
            start, stop = self.ranges[dim]
            if extent != space.shape[dim]:
                assert extent == 1
                start, stop = 0, 1
            elif param.placement == "block" and dim == space.dim:
                start, stop = start - self.block[dim][0], stop - self.block[dim][0]
            index.append(slice(start, stop))
        return (..., *index)

    def _buffer(self, rank: int, tensor: int) -> Array:
        slot, param = self.entry.tensors[tensor], self.kernel.tensors[tensor]
        assert self.machine.plan.buffers[slot.buffer].placement == param.placement
        assert rank == self.rank or (param.peers and self.machine.plan.buffers[slot.buffer].symmetric)
        return self.machine.memory[rank][slot.buffer]

    def _read(self, rank: int, tensor: int, inside: bool) -> Array:
        param, buffer = self.kernel.tensors[tensor], self._buffer(rank, tensor)
        if self._is_per_piece(param):
            return self._spread(buffer) if inside else buffer
        if not inside:
            assert buffer.size == 1
            return buffer.reshape(())
        return buffer[self._index(param)]

    def _store(self, statement: Any, inside: bool) -> None:
        param, value = self.kernel.tensors[statement.tensor], self.registers[statement.arg]
        assert param.written
        ranks = [self.rank]
        if isinstance(statement, k.StoreAll):
            ranks = list(self.machine.peers(self.rank))
        elif isinstance(statement, k.StoreTo):
            slot = self.entry.tensors[statement.tensor]
            ranks = [self.machine.plan.buffers[slot.buffer].group * self.machine.size + self.k]
            assert self.machine.host(ranks[0]) == self.machine.host(self.rank)
        for rank in ranks:
            buffer = self._buffer(rank, statement.tensor)
            if not inside:
                assert self._is_per_piece(param) or buffer.size == 1
                buffer[...] = value
            else:
                assert not self._is_per_piece(param), "a rank does not walk all pieces"
                target = buffer[self._index(param)]
                if target.size:
                    target[...] = value

    # -- reductions --------------------------------------------------------------------------------------------------

    def _accumulate(self, statement: k.Accumulate) -> None:
        wanted = self.kernel.accumulators[statement.accumulator]
        value = self.registers[statement.arg]
        wide = np.broadcast_to(value, [b - a for a, b in self.ranges]).astype(accumulator(wanted.dtype))
        if wanted.fn == "norm":
            wide = wide * wide
        combine = FINISH[wanted.fn]
        if wanted.fn in ("max", "min"):
            info = None if wanted.dtype.is_float else np.iinfo(wanted.dtype.numpy)
            low, high = (-np.inf, np.inf) if info is None else (info.min, info.max)
            options = {"initial": low if wanted.fn == "max" else high}
        else:
            options = {}
        if wanted.per_piece:
            starts = self.type.piece_starts()
            first, last = self.ranges[0]
            borders = [min(max(start, first), last) - first for start in starts]
            cuts = pairwise(borders)
            self.partials[statement.accumulator] = np.array([combine.reduce(wide[a:b], **options) for a, b in cuts])
        else:
            dims = tuple(range(wide.ndim)) if wanted.dims is None else wanted.dims
            keep = wanted.dims is not None
            self.partials[statement.accumulator] = np.asarray(combine.reduce(wide, axis=dims, keepdims=keep, **options))

    def finish(self, shared: dict[int, dict[int, Array]]) -> None:
        """Combine partials over the ranks in rank order, where they cross; round once."""
        for number in self.partials:
            wanted = self.kernel.accumulators[number]
            assert not wanted.crosses or self.machine.plan.placement.span == 1
            members = self.machine.members(self.rank) if wanted.crosses else [self.rank]
            total = shared[members[0]][number]
            for rank in members[1:]:
                total = FINISH[wanted.fn](total, shared[rank][number])
            with np.errstate(all="ignore"):
                if wanted.fn == "mean":
                    total = total / self._count(wanted)
                if wanted.fn == "norm":
                    total = np.sqrt(total)
                self.results[number] = finished(np.asarray(total), wanted.dtype)

    def _count(self, wanted: k.Accumulator) -> Array:
        space = self.kernel.space
        if wanted.per_piece:
            return np.diff(self.type.piece_starts()).astype(np.float64)
        dims = range(len(space.shape)) if wanted.dims is None else wanted.dims
        return np.float64(np.prod([space.shape[d] for d in dims]))
