"""One phase of a CPU kernel: statements at the loop they vary along, tiles in the innermost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coconet_lab.errors import CodegenError
from coconet_lab.ir.dtypes import DType
from coconet_lab.kernels import kernel as k
from coconet_lab.kernels import numba_forms as forms
from coconet_lab.kernels.numba_text import TILE, Frame, comment_name
from coconet_lab.kernels.numba_walk import is_per_piece

_Stores = k.Store | k.StoreAll | k.StoreTo


class PhasePrinter:
    """Prints the phases of one kernel; remembers which registers are known outside of loops."""

    def __init__(self, frame: Frame) -> None:
        self.frame, self.kernel, self.walk, self.lines = frame, frame.kernel, frame.walk, frame.lines
        self._depths: dict[int, int] = {}
        self._told = ""

    def print(self, phase: k.Phase) -> None:
        """All loops of a phase."""
        statements = [*phase.uniform, *phase.body]
        self._depths = {register: 0 for register, depth in self._depths.items() if depth == 0}
        self.placed: list[tuple[int, k.Statement]] = [(self._depth(s), s) for s in statements]
        self.deepest = max((depth for depth, _ in self.placed), default=0)
        self._told = ""
        for at in self.frame.accumulated(phase):
            self._print_start(at)
        self._print_level(0)

    def _depth(self, statement: k.Statement) -> int:
        """How many loops surround a statement."""
        depth = self._needed(statement)
        if not isinstance(statement, k.Accumulate | _Stores):
            self._depths[statement.out] = depth
        return depth

    def _needed(self, statement: k.Statement) -> int:
        tensors, run = self.walk.tensors, self.walk.run
        match statement:
            case k.Load(tensor=tensor) | k.Combine(tensor=tensor):
                return self.walk.depth(tensors[tensor])
            case k.Store() | k.StoreAll() | k.StoreTo():
                return max(self.walk.depth(tensors[statement.tensor]), self._known(statement.arg))
            case k.Number() | k.Argument():
                return 0
            case k.Apply(args=args) | k.Call(args=args):
                return max((self._known(arg) for arg in args), default=0)
            case k.Convert(arg=arg):
                return self._known(arg)
            case k.Result(accumulator=at):
                return self.walk.depth(self.walk.accumulators[at])
            case k.Drop() | k.Accumulate():
                return run + 1

    def _known(self, register: int) -> int:
        if register not in self._depths:
            raise CodegenError(
                f"kernel {comment_name(self.kernel.name)} reads register {register} where it is not computed",
                rule="a phase computes what it reads; only values outside of loops live on into the next",
                hint="recompute it in the phase, or keep it in a buffer",
            )
        return self._depths[register]

    # -- loops ----------------------------------------------------------------------------------------------------

    def _print_level(self, depth: int) -> None:
        """Statements inside `depth` loops, then the next loop."""
        self._print_offsets(depth)
        for at, statement in self.placed:
            if at == depth:
                self._print_statement(statement, inside=False)
        if self.deepest <= depth:
            return
        if depth == self.walk.run:
            self._print_run()
            return
        self.lines.add(f"for x{depth} in range(b{depth}, e{depth}):")
        with self.lines.block():
            self._print_level(depth + 1)

    def _print_offsets(self, depth: int) -> None:
        """Offsets that change with the loop just entered."""
        tensors = {s.tensor for _, s in self.placed if isinstance(s, k.Load | k.Combine | _Stores)}
        for at in sorted(tensors):
            outer = self.walk.tensors[at] - {self.walk.run}
            if self.walk.depth(outer) == depth and self.frame.offset(at):
                self.lines.add(f"o{at} = {self.frame.offset(at)}", self.kernel.tensors[at].value)
        results = {s.accumulator for _, s in self.placed if isinstance(s, k.Result | k.Accumulate)}
        for at in sorted(results):
            outer = self.walk.accumulators[at] - {self.walk.run}
            if self.walk.depth(outer) == depth and self.frame.result_offset(at):
                self.lines.add(f"i{at} = {self.frame.result_offset(at)}", self.frame.accumulator_origin(at))

    def _print_run(self) -> None:
        """The innermost loop, tile by tile: load and compute into tiles, then store them."""
        run, add = self.walk.run, self.lines.add
        inside = [s for depth, s in self.placed if depth == run + 1]
        begin, end = f"b{run}", f"e{run}"
        if self.walk.by_piece:
            at = self.frame.pieces_at
            add(f"begin, end = max(b{run}, extents[{at} + x0]), min(e{run}, extents[{at + 1} + x0])")
            begin, end = "begin", "end"
        tiles = self._tiles(inside)
        for register, dtype in tiles.items():
            add(f"v{register} = tile_{forms.held(dtype)}()", self.frame.origin(register))
        drops = [s for s in inside if isinstance(s, k.Drop)]
        for drop in drops:
            add(f"w{drop.out} = tile_u32()", self.frame.origin(drop.out))
        add(f"for at in range({begin}, {end}, {TILE}):")
        with self.lines.block():
            add(f"count = min({TILE}, {end} - at)")
            for drop in drops:
                self._print_words(drop)
            add("for j in range(count):")
            with self.lines.block():
                add("x = at + j")
                for statement in inside:
                    if not isinstance(statement, k.Accumulate | _Stores):
                        self._print_statement(statement, inside=True)
                for register in tiles:
                    add(f"v{register}[j] = r{register}", self.frame.origin(register))
            for statement in inside:
                if isinstance(statement, _Stores):
                    self._print_tile_store(statement)
                elif isinstance(statement, k.Accumulate):
                    self._print_accumulate(statement)

    def _tiles(self, inside: Sequence[k.Statement]) -> dict[int, DType]:
        """Registers whose elements leave the compute loop."""
        kept = [s.arg for s in inside if isinstance(s, k.Accumulate)]
        kept += [s.arg for s in inside if isinstance(s, _Stores) and self._depths[s.arg] == self.walk.run + 1]
        return {register: self.kernel.dtypes[register] for register in sorted(set(kept))}

    def _print_words(self, drop: k.Drop) -> None:
        """Random words of a tile: one Philox call serves four neighbours."""
        out, add, origin = drop.out, self.lines.add, self.frame.origin(drop.out)
        flat = self.frame.flat()
        add(f"flat = {flat + ' + ' if flat else ''}at", origin)
        add(f"skip{out} = flat % 4", origin)
        stream = drop.stream - 2**64 if drop.stream >= 2**63 else drop.stream
        seed = self._argument(drop.seed)
        add(f"random_words(w{out}, flat // 4, (skip{out} + count + 3) // 4, {seed}, {stream})", origin)

    # -- statements -----------------------------------------------------------------------------------------------

    def _print_statement(self, statement: k.Statement, inside: bool) -> None:
        if isinstance(statement, _Stores):
            self._print_store(statement)
        elif not isinstance(statement, k.Accumulate):
            origin = self.frame.origin(statement.out)
            note = comment_name(origin) if origin and origin != self._told else ""
            self._told = origin
            self.lines.add(f"r{statement.out} = {self._value(statement, inside)}", origin, note)

    def _value(self, statement: k.Statement, inside: bool) -> str:
        dtypes = self.kernel.dtypes
        match statement:
            case k.Load(tensor=tensor):
                return self._get(tensor, f"t{tensor}", inside)
            case k.Combine(out=out, tensor=tensor, reduction=reduction):
                terms = [self._get(tensor, f"t{tensor}_{rank}", inside) for rank in range(self.kernel.space.ranks)]
                return forms.combined(terms, reduction, dtypes[out])
            case k.Number(out=out, value=value):
                return forms.number(value, dtypes[out])
            case k.Argument(out=out, scalar=scalar):
                text = self._argument(scalar)
                return text if forms.held(dtypes[out]) in ("f64", "i64") else f"{forms.held(dtypes[out])}({text})"
            case k.Apply(fn=fn, args=args):
                return forms.apply(fn, [f"r{arg}" for arg in args], dtypes[args[-1]])
            case k.Call(out=out, expression=expression, args=args):
                return forms.call(expression, [f"r{arg}" for arg in args], dtypes[out])
            case k.Convert(out=out, arg=arg):
                return forms.convert(f"r{arg}", dtypes[arg], dtypes[out])
            case k.Result(out=out, accumulator=at):
                return self._result(at, dtypes[out], inside)
            case k.Drop():
                return self._drop(statement)
            case _:
                raise CodegenError(
                    f"no CPU form for {type(statement).__name__}",
                    rule="every statement of the kernel IR has one",
                    hint='plan.code("cuda")',
                )

    def _drop(self, statement: k.Drop) -> str:
        dtype = self.kernel.dtypes[statement.out]
        held = forms.held(dtype)
        scale = repr(float(dtype.compute.type(1.0 / (1.0 - statement.p))))
        scaled = forms.rounded(f"r{statement.arg} * {held}({scale})", dtype)
        threshold = int(statement.p * 2**32)
        word = f"w{statement.out}[skip{statement.out} + j]"
        return f"choose(i32({word} >= u32({threshold})), {scaled}, {held}(0.0))"

    def _argument(self, scalar: int) -> str:
        """A scalar argument: floating-point ones and integers travel in arrays of their own."""
        params = self.kernel.scalars
        is_float = params[scalar].dtype.is_float
        place = sum(p.dtype.is_float == is_float for p in params[:scalar])
        return f"scalars[{place}]" if is_float else f"integers[{place}]"

    def _get(self, tensor: int, address: str, inside: bool) -> str:
        dtype = self.kernel.tensors[tensor].dtype
        return f"get_{forms.suffix(dtype)}({address}, {self._index(tensor, inside)})"

    def _index(self, tensor: int, inside: bool, run_index: str = "x") -> str:
        offset = f"o{tensor}" if self.frame.offset(tensor) else ""
        if inside and self.walk.run in self.walk.tensors[tensor] and not is_per_piece(self.kernel, tensor):
            return f"{offset} + {run_index}" if offset else run_index
        return offset or "0"

    def _result(self, at: int, dtype: DType, inside: bool) -> str:
        index = f"i{at}" if self.frame.result_offset(at) else ""
        if inside and self.walk.run in self.walk.accumulators[at]:
            index = f"{index} + x" if index else "x"
        kind = "fp64" if dtype.is_float else "int64"
        text = f"get_{kind}(q{at}, {index or '0'})"
        return text if forms.held(dtype) in ("f64", "i64") else f"{forms.held(dtype)}({text})"

    # -- stores ---------------------------------------------------------------------------------------------------

    def _print_store(self, statement: _Stores) -> None:
        """A store outside of the innermost loop."""
        index = self._index(statement.tensor, inside=False)
        self._print_puts(statement, index, f"r{statement.arg}", looped=False)

    def _print_tile_store(self, statement: _Stores) -> None:
        deep = self._depths[statement.arg] == self.walk.run + 1
        varies = self.walk.run in self.walk.tensors[statement.tensor]
        if varies:
            value = f"v{statement.arg}[j]" if deep else f"r{statement.arg}"
            self._print_puts(statement, self._index(statement.tensor, True, "at + j"), value, looped=True)
        else:  # broadcast along the run: all elements are one
            index = self._index(statement.tensor, inside=False)
            self._print_puts(statement, index, f"v{statement.arg}[count - 1]", looped=False)

    def _print_puts(self, statement: _Stores, index: str, value: str, looped: bool) -> None:
        tensor, add = self.kernel.tensors[statement.tensor], self.lines.add
        address, everywhere = f"t{statement.tensor}", isinstance(statement, k.StoreAll)
        note = f"{comment_name(tensor.value)}{' on every rank' if everywhere else ''}"
        if everywhere:
            ranks = self.kernel.space.ranks
            add(f"for shift in range({ranks}):", tensor.value)
            address = "there"
        with self.lines.block(everywhere):
            if everywhere:
                # Each rank begins with itself: all at once to one rank would queue there.
                add(f"there = pointers[{statement.tensor}, (rank + shift) % {ranks}]", tensor.value)
            if looped:
                add("for j in range(count):", tensor.value)
            with self.lines.block(looped):
                add(f"put_{forms.suffix(tensor.dtype)}({address}, {index}, {value})", tensor.value, note)

    def _print_start(self, at: int) -> None:
        """Partials begin with what changes nothing."""
        accumulator, origin = self.kernel.accumulators[at], self.frame.accumulator_origin(at)
        kind = "fp64" if accumulator.dtype.is_float else "int64"
        self.lines.add(f"for i in range(z{at}):", origin)
        with self.lines.block():
            self.lines.add(f"put_{kind}(s{at}, i, {_nothing(accumulator)})", origin)

    def _print_accumulate(self, statement: k.Accumulate) -> None:
        at, add = statement.accumulator, self.lines.add
        accumulator, origin = self.kernel.accumulators[at], self.frame.accumulator_origin(at)
        is_float = accumulator.dtype.is_float
        kind, tile, base = "fp64" if is_float else "int64", f"v{statement.arg}", f"i{at}"
        base = base if self.frame.result_offset(at) else ""
        if self.walk.run in self.walk.accumulators[at]:
            index = f"{base} + at + j" if base else "at + j"
            add("for j in range(count):", origin)
            with self.lines.block():
                wide = f"{'f64' if is_float else 'i64'}({tile}[j])"
                old = f"get_{kind}(s{at}, {index})"
                add(f"put_{kind}(s{at}, {index}, {_added(accumulator.fn, old, wide)})", origin)
            return
        old = f"get_{kind}(s{at}, {base or '0'})"
        add(f"put_{kind}(s{at}, {base or '0'}, {_folded(accumulator, old, tile)})", origin)


def _nothing(accumulator: k.Accumulator) -> str:
    """The value that any other replaces."""
    if accumulator.fn not in ("max", "min"):
        return "0.0" if accumulator.dtype.is_float else "0"
    if accumulator.dtype.is_float:
        return "-np.inf" if accumulator.fn == "max" else "np.inf"
    limits = np.iinfo(accumulator.dtype.numpy)
    return str(limits.min if accumulator.fn == "max" else limits.max)


def _added(fn: str, old: str, value: str) -> str:
    if fn in ("max", "min"):
        return f"{'maximum' if fn == 'max' else 'minimum'}({old}, {value})"
    return f"{old} + {value} * {value}" if fn == "norm" else f"{old} + {value}"


def _folded(accumulator: k.Accumulator, old: str, tile: str) -> str:
    kind = "" if accumulator.dtype.is_float else "_integers"
    if accumulator.fn in ("max", "min"):
        return f"{accumulator.fn}{kind}_tile({tile}, count, {old})"
    name = "sum_squares" if accumulator.fn == "norm" else f"sum{kind}"
    return f"{old} + {name}_tile({tile}, count)"
