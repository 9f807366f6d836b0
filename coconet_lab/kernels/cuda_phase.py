"""One phase of a kernel as CUDA text: all loads first, then arithmetic an element at a time, then the stores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from coconet_lab.errors import CodegenError
from coconet_lab.ir.dtypes import FP32, FP64, DType
from coconet_lab.ir.rng import keep_threshold
from coconet_lab.kernels import kernel as k
from coconet_lab.kernels.cuda_abi import C_TYPES, is_per_piece, peer_tensors, pushed, scattered_tensors
from coconet_lab.kernels.cuda_scalar import (
    apply,
    combine_step,
    contribution,
    convert,
    custom,
    finished,
    fold_of,
    number,
    register_type,
    rounded_to,
)
from coconet_lab.kernels.cuda_space import Folding

OUTPUTS = (k.Load, k.Combine, k.Number, k.Argument, k.Apply, k.Convert, k.Drop, k.Call, k.Result)
STORES = (k.Store, k.StoreAll, k.StoreTo)


def operands(statement: k.Statement) -> tuple[int, ...]:
    """Registers a statement reads."""
    if isinstance(statement, k.Apply | k.Call):
        return statement.args
    if isinstance(statement, k.Convert | k.Drop | k.Store | k.StoreAll | k.StoreTo | k.Accumulate):
        return (statement.arg,)
    return ()


def needed(statements: Iterable[k.Statement], wanted: Iterable[k.Statement]) -> tuple[k.Statement, ...]:
    """Those of `statements` that `wanted` (some of them) need, themselves included, in order."""
    made = {s.out: s for s in statements if isinstance(s, OUTPUTS)}
    keep = list(wanted)
    seen = {id(s) for s in keep}
    for statement in keep:
        for register in operands(statement):
            source = made.get(register)
            if source is not None and id(source) not in seen:
                seen.add(id(source))
                keep.append(source)
    return tuple(s for s in statements if id(s) in seen)


def uniform(body: Iterable[k.Statement]) -> list[int]:
    """Registers that a body reads and does not make: the same at every element."""
    body = tuple(body)
    made = {s.out for s in body if isinstance(s, OUTPUTS)}
    return sorted({r for s in body for r in operands(s)} - made)


def seeds(statements: Iterable[k.Statement]) -> list[int]:
    """The scalars that seed dropouts."""
    return sorted({s.seed for s in statements if isinstance(s, k.Drop)})


def indent(lines: Iterable[str], by: int = 2) -> Iterator[str]:
    """Lines further in; the preprocessor's stay where they are."""
    for line in lines:
        yield line if line.startswith("#") or not line else " " * by + line


def spots(spot: str, live: str) -> Iterator[str]:
    """Lines that make UNROLL spots, and say of each whether it is one; both texts are of the vector `u`."""
    yield "Spot at[UNROLL];"
    yield "bool live[UNROLL];"
    yield "#pragma unroll"
    yield "for (int u = 0; u < UNROLL; ++u) {"
    yield f"  live[u] = {live};"
    yield f"  at[u] = {spot};"
    yield "}"


def one_spot(spot: str) -> Iterator[str]:
    """As `spots`, for one vector or element."""
    yield f"Spot at[1] = {{{spot}}};"
    yield "const bool live[1] = {true};"


def finished_name(accumulator: int) -> str:
    """The function that has the results of a reduction for the first tensors of a list."""
    return f"finished{accumulator}"


def combined(body: Iterable[k.Statement]) -> tuple[int, ...]:
    """The tensors whose copies on all ranks a body combines."""
    return tuple(sorted({s.tensor for s in body if isinstance(s, k.Combine)}))


def shown(name: str) -> str:
    """A user's name for a comment: no control characters, and no backslash that would join the next line to it."""
    return ascii(name)[1:-1].rstrip("\\")


@dataclass(frozen=True)
class PhasePrinter:
    """Prints the statements of `kernel`.

    Parameters
    ----------
    kernel : Kernel
    folding : Folding
    """

    kernel: k.Kernel
    folding: Folding

    # -- places --------------------------------------------------------------------------------------------------

    def is_wide(self, tensor: int) -> bool:
        """Whether neighbours along the last run are neighbours in the tensor: it is read a vector at a time."""
        return self.folding.present[tensor][-1]

    def place(self, tensor: int, at: str) -> str:
        """Element offset of a tensor at the spot `at`."""
        if is_per_piece(self.kernel, tensor):
            return f" + {at}.piece"
        if self.kernel.tensors[tensor].scattered:
            number = scattered_tensors(self.kernel).index(tensor)
            return f" + {at}.c0 + words(0, {at}.slot)[SHIFT + {number}]"
        terms = [f"{at}.c{r} * a.t{tensor}_step[{r}]" for r in self.folding.steps(tensor)]
        if self.is_wide(tensor):
            terms.append(f"{at}.c{len(self.folding.dims) - 1}")
        return "".join(f" + {term}" for term in terms)

    def own(self, tensor: int) -> str:
        """This rank's own copy (of a send's target: the partner's)."""
        return f"a.t{tensor}[RANK]" if tensor in peer_tensors(self.kernel) else f"a.t{tensor}"

    def kept_runs(self, accumulator: int) -> tuple[int, ...]:
        """The runs a reduction keeps: its results are numbered along them."""
        dims = self.kernel.accumulators[accumulator].dims
        if dims is None or self.kernel.accumulators[accumulator].per_piece:
            return ()
        return tuple(r for r, run in enumerate(self.folding.dims) if run and run[0] not in dims)

    def row(self, accumulator: int, at: str) -> str:
        """Number of the reduction's result at a spot."""
        if self.kernel.accumulators[accumulator].per_piece:
            return f"{at}.piece"
        text = ""
        for r in self.kept_runs(accumulator):
            text = f"({text}) * a.extent[{r}] + {at}.c{r}" if text else f"{at}.c{r}"
        return text or "0"

    # -- statements ----------------------------------------------------------------------------------------------

    def dtype(self, register: int) -> DType:
        """The dtype of a register."""
        return self.kernel.dtypes[register]

    def comment(self, register: int) -> str:
        """The user's name of what a register holds, so that no name can end the comment or the line."""
        name = self.kernel.origin[register] if register < len(self.kernel.origin) else ""
        return f"  // {shown(name)}" if name else ""

    def result(self, accumulator: int, row: str) -> str:
        """A finished reduction, rounded to its dtype."""
        item = self.kernel.accumulators[accumulator]
        ranks = "RANKS" if item.crosses else "1"
        whole = f"combined<{fold_of(item.fn)}>(parts{accumulator}, {row}, a.a{accumulator}_rows, {ranks})"
        count = f"a.piece_elements[{row}]" if item.per_piece else f"a.a{accumulator}_count"
        return finished(item.fn, whole, count, item.dtype)

    def expression(self, statement: k.Statement, *, lane: str = "0", at: str = "") -> str:
        """What a register is set to; `lane` picks the element of a vector, `at` is its spot."""
        match statement:
            case k.Number(out=out, value=value):
                return number(value, self.dtype(out))
            case k.Argument(out=out, scalar=scalar):
                return f"({register_type(self.dtype(out))})*a.s{scalar}"
            case k.Apply(out=out, fn=fn, args=args):
                return self._apply(out, fn, args)
            case k.Convert(out=out, arg=arg):
                return convert(f"r{arg}", self.dtype(arg), self.dtype(out))
            case k.Call(out=out, expression=text, args=args):
                return custom(text, tuple(f"r{r}" for r in args), self.dtype(out))
            case k.Drop(out=out, arg=arg, p=p):
                kind = self.dtype(out)
                scale = number(1.0 / (1.0 - p), FP64 if kind == FP64 else FP32)
                zero = number(0.0, FP64 if kind == FP64 else FP32)
                return f"kept{out}[{lane}] ? {rounded_to(kind, f'r{arg} * {scale}')} : {zero}"
            case k.Result(accumulator=accumulator):
                row = self.row(accumulator, at)
                if self.kernel.accumulators[accumulator].per_piece and row == "at[u].piece":
                    kept = f"{finished_name(accumulator)}()[{row}]"
                    return f"{row} < FINISHED ? {kept} : {self.result(accumulator, row)}"
                wide = lane != "0" and len(self.folding.dims) - 1 in self.kept_runs(accumulator)
                return self.result(accumulator, f"{row} + {lane}" if wide else row)
        raise CodegenError(f"no CUDA form for {type(statement).__name__}", where=f"kernel {self.kernel.name!r}")

    def divisors(self, body: Iterable[k.Statement]) -> tuple[int, ...]:
        """Uniform float registers that elements are divided by: their reciprocals are made once a thread."""
        body = tuple(body)
        divisions = {s.args[1] for s in body if isinstance(s, k.Apply) and s.fn == "Div"}
        return tuple(r for r in uniform(body) if r in divisions and register_type(self.dtype(r)) == "float")

    def _apply(self, out: int, fn: str, args: tuple[int, ...]) -> str:
        kinds = tuple(self.dtype(r) for r in args)
        return apply(fn, tuple(f"r{r}" for r in args), kinds, self.dtype(out))

    def define(self, statement: k.Statement, **where: str) -> str:
        """A register's definition, on one line."""
        out = statement.out  # type: ignore[union-attr]
        text = self.expression(statement, **where)
        return f"const {register_type(self.dtype(out))} r{out} = {text};{self.comment(out)}"

    # -- one vector ----------------------------------------------------------------------------------------------

    def reads(self, body: Iterable[k.Statement]) -> Iterator[tuple[str, str]]:
        """Declarations and statements of the loads of a body, for the vector `u`."""
        for s in body:
            if isinstance(s, k.Load):
                kind, wide = C_TYPES[self.kernel.tensors[s.tensor].dtype], self.is_wide(s.tensor)
                text = f"get(x{s.out}[u], {self.own(s.tensor)}{self.place(s.tensor, 'at[u]')});"
                yield f"Pack<{kind}, {'V' if wide else '1'}> x{s.out}[U];", text
            if isinstance(s, k.Combine):
                kind, wide = C_TYPES[self.kernel.tensors[s.tensor].dtype], self.is_wide(s.tensor)
                place = self.place(s.tensor, "at[u]")
                peers = [f"[(RANK + {p}) % RANKS]" for p in range(self.kernel.space.ranks)]
                if_read = "if constexpr (HOW == PULL) " if s.tensor in pushed(self.kernel, self.folding) else ""
                text = "\n".join(
                    f"{if_read if n else ''}fetch(x{s.out}[u]{p}, a.t{s.tensor}{p}{place});"
                    for n, p in enumerate(peers)
                )
                yield f"Pack<{kind}, {'V' if wide else '1'}> x{s.out}[U][RANKS];", text

    def loaded(self, s: k.Load | k.Combine) -> str:
        """The register of a load, from the vector that holds it."""
        tensor = self.kernel.tensors[s.tensor]
        lane = "j" if self.is_wide(s.tensor) else "0"
        kind = register_type(self.dtype(s.out))
        if isinstance(s, k.Load):
            return f"const {kind} r{s.out} = up(x{s.out}[u].at[{lane}]);{self.comment(s.out)}"
        step = combine_step(s.reduction, tensor.dtype)
        text = f"up(x{s.out}[u][0].at[{lane}])"
        for peer in range(1, self.kernel.space.ranks):
            text = step(text, f"up(x{s.out}[u][{peer}].at[{lane}])")
        # A host's part of a sum of 16-bit values stays wide: its register does.
        return f"const {kind} r{s.out} = {rounded_to(self.dtype(s.out), text)};{self.comment(s.out)}"

    def element(
        self, body: Iterable[k.Statement], skip: Sequence[k.Statement] = (), divisors: Sequence[int] = ()
    ) -> Iterator[str]:
        """The arithmetic at element `j` of the vector; stores go into packs, which are put away after the vector."""
        for n, s in enumerate(body):
            if s in skip:
                continue
            match s:
                case k.Load() | k.Combine():
                    yield self.loaded(s)
                case k.Store() | k.StoreAll() | k.StoreTo():
                    wide = self.is_wide(s.tensor)
                    yield f"down(r{s.arg}, y{n}.at[j]);" if wide else f"if (j == 0) down(r{s.arg}, y{n}.at[0]);"
                case k.Accumulate(accumulator=accumulator, arg=arg):
                    item = self.kernel.accumulators[accumulator]
                    value = contribution(item.fn, f"r{arg}", self.dtype(arg))
                    yield f"sum{accumulator} = {fold_of(item.fn)}::of(sum{accumulator}, {value});"
                case k.Apply(out=out, fn="Div", args=(top, bottom)) if bottom in divisors:
                    quotient = rounded_to(self.dtype(out), f"over(r{top}, d{bottom})")
                    yield f"const float r{out} = {quotient};{self.comment(out)}"
                case _:
                    yield self.define(s, lane="j", at="at[u]")

    def packs(self, body: Iterable[k.Statement]) -> Iterator[str]:
        """What the stores of a vector gather in, and the masks of its dropouts."""
        for n, s in enumerate(body):
            if isinstance(s, STORES):
                wide = self.is_wide(s.tensor)
                yield f"Pack<{C_TYPES[self.kernel.tensors[s.tensor].dtype]}, {'V' if wide else '1'}> y{n};"
            if isinstance(s, k.Drop):
                steps = "".join(f" + at[u].c{r} * a.index_step[{r}]" for r in range(len(self.folding.dims)))
                yield f"bool kept{s.out}[V];"
                yield (
                    f"keep<V>(kept{s.out}, a.index{steps}, {s.stream & 0xFFFF_FFFF_FFFF_FFFF:#x}ull, seed{s.seed}, "
                    f"{keep_threshold(s.p)}ull);"
                )

    def writes(self, body: Iterable[k.Statement], shared: Sequence[k.StoreAll] = ()) -> Iterator[str]:
        """The stores of a vector; of those `shared` afterwards, if DEFER says so, this rank's own copy alone."""
        for n, s in enumerate(body):
            if not isinstance(s, STORES):
                continue
            if isinstance(s, k.StoreAll) and self.kernel.space.ranks > 1:
                yield self.put(s.tensor, 0, f"y{n}")
                for peer in range(1, self.kernel.space.ranks):
                    yield self.put(s.tensor, peer, f"y{n}", ("!DEFER",) if s in shared else ())
            else:
                yield self.put(s.tensor, None, f"y{n}")

    def put(self, tensor: int, peer: int | None, pack: str, only: Sequence[str] = ()) -> str:
        """One store of a vector. What is broadcast along a run is stored once, where the run begins."""
        place = self.own(tensor) if peer is None else f"a.t{tensor}[(RANK + {peer}) % RANKS]"
        present = self.folding.present[tensor]
        conditions = [*only, *(f"at[u].c{r} == 0" for r, has in enumerate(present) if not has)]
        guard = f"if ({' && '.join(conditions)}) " if conditions else ""
        return f"{guard}put({place}{self.place(tensor, 'at[u]')}, {pack});"

    def shares(self, shared: Sequence[k.StoreAll]) -> Iterator[str]:
        """What a rank has stored in its own copy, read again and stored in the others'."""
        for n, s in enumerate(shared):
            kind, wide = C_TYPES[self.kernel.tensors[s.tensor].dtype], self.is_wide(s.tensor)
            yield f"Pack<{kind}, {'V' if wide else '1'}> z{n}[U];"
        yield "#pragma unroll"
        yield "for (int u = 0; u < U; ++u) if (live[u]) {"
        for n, s in enumerate(shared):
            yield f"  get(z{n}[u], {self.own(s.tensor)}{self.place(s.tensor, 'at[u]')});"
        yield "}"
        yield "#pragma unroll"
        yield "for (int u = 0; u < U; ++u) if (live[u]) {"
        for n, s in enumerate(shared):
            yield from (f"  {self.put(s.tensor, p, f'z{n}[u]')}" for p in range(1, self.kernel.space.ranks))
        yield "}"
