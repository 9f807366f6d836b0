"""A kernel of the IR as CUDA C++ over peer pointers: one text for every size, compiled by NVRTC without any header.

A launch of `grid` CTAs of THREADS threads on every rank of a group. RANK, UNROLL and THREADS are compile options.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from coconet_lab.errors import CodegenError
from coconet_lab.kernels import kernel as k
from coconet_lab.kernels.cuda_abi import (
    MAX_RANKS,
    Field,
    fields,
    has_buckets,
    is_per_piece,
    peer_tensors,
)
from coconet_lab.kernels.cuda_buckets import finished, places
from coconet_lab.kernels.cuda_exchange import exchange
from coconet_lab.kernels.cuda_loops import loops, share_loops
from coconet_lab.kernels.cuda_phase import (
    OUTPUTS,
    STORES,
    PhasePrinter,
    indent,
    needed,
    operands,
    seeds,
    shown,
    uniform,
)
from coconet_lab.kernels.cuda_push import keep, kept, push_function, sent, takes
from coconet_lab.kernels.cuda_scalar import accumulator_type, fold_of, register_type
from coconet_lab.kernels.cuda_space import Folding, fold

__all__ = ["CudaSource", "prelude", "print_kernel"]


@dataclass(frozen=True, slots=True)
class CudaSource:
    """A printed kernel.

    Parameters
    ----------
    name : str
        Of its ``__global__`` function: a digest, never a user's name.
    body : str
        Its own text.
    layout : tuple of Field
        Its argument struct.
    kernel : Kernel
        What it was printed from (with as many phases as the text has).
    folding : Folding
    """

    name: str
    body: str
    layout: tuple[Field, ...]
    kernel: k.Kernel
    folding: Folding

    @property
    def text(self) -> str:
        """All that is compiled: the number of ranks, the prelude, the kernel."""
        return f"#define RANKS {self.kernel.space.ranks}\n{prelude()}{self.body}"


def without_comments(text: str) -> str:
    """The text that decides what is compiled: users' names are in comments alone."""
    return re.sub(r"\s*//[^\n]*", "", text)


@lru_cache(maxsize=1)
def prelude() -> str:
    """The text that every kernel stands on."""
    return (Path(__file__).parent / "prelude.cuh").read_text(encoding="utf-8")


def print_kernel(kernel: k.Kernel) -> CudaSource:
    """The CUDA text of a kernel.

    Raises
    ------
    CodegenError
        An operation with no form in CUDA, or a group of more ranks than a signal line has flags for.

    Examples
    --------
    >>> from coconet_lab.ir.dtypes import FP32
    >>> from coconet_lab.kernels.kernel import *
    >>> x, y = (TensorParam(n, FP32, (64,), "whole") for n in "xy")
    >>> body = (Load(0, 0), Apply(1, "Add", (0, 0)), Store(1, 1))
    >>> double = Kernel("double", Space((64,), None, 1), (x, y), (), (FP32, FP32), (Phase(body),))
    >>> "r0 + r0" in print_kernel(double).text
    True
    """
    if kernel.space.ranks > MAX_RANKS:
        raise CodegenError(
            f"kernel {kernel.name!r} is for a group of {kernel.space.ranks} ranks",
            rule=f"kernels over peer pointers join at most {MAX_RANKS} ranks of one host",
            where="the CUDA printer",
            hint="groups of ranks inside a host: cl.program(…, groups=…)",
        )
    kernel = split_phases(kernel)
    folding = fold(kernel)
    layout = fields(kernel, folding)
    body = "\n".join(_Printer(kernel, folding, layout).lines("KERNEL")) + "\n"
    digest = hashlib.blake2b(without_comments(body).encode(), digest_size=6).hexdigest()
    return CudaSource(f"k_{digest}", body.replace("KERNEL", f"k_{digest}"), layout, kernel, folding)


def split_phases(kernel: k.Kernel) -> k.Kernel:
    """Phases of at most one shape of results: reductions over other dims get a phase of their own before it."""
    folding = fold(kernel)
    printer = PhasePrinter(kernel, folding)
    phases: list[k.Phase] = []
    for phase in kernel.phases:
        sums = [s for s in phase.body if isinstance(s, k.Accumulate)]
        shapes = {printer.kept_runs(s.accumulator) for s in sums} - {()}
        for shape in sorted(shapes)[:-1]:
            here = [s for s in sums if printer.kept_runs(s.accumulator) == shape]
            phases.append(k.Phase(needed(phase.body, here), phase.uniform if not phases else ()))
            phase = replace(phase, body=tuple(s for s in phase.body if s not in here))
        phases.append(phase)
    return replace(kernel, phases=tuple(phases))


@dataclass(frozen=True)
class _Printer:
    kernel: k.Kernel
    folding: Folding
    layout: tuple[Field, ...]

    @property
    def meets(self) -> bool:
        return self.kernel.space.ranks > 1 and (self.kernel.opens or self.kernel.closes)

    def lines(self, name: str) -> Iterator[str]:
        yield f"// {shown(self.kernel.name)}"
        yield f"namespace in_{name} {{  // so that the kernels of a Plan make one file"
        yield "struct Args {"
        yield from map(str, self.layout)
        yield "};"
        yield from self.spot()
        for n in range(len(self.kernel.phases)):
            yield ""
            yield from self.phase_function(n)
        yield ""
        yield f'extern "C" __global__ void __launch_bounds__(BOUNDS) {name}(const __grid_constant__ Args a) {{'
        yield from indent(self.kernel_body())
        yield "}"
        yield "}"

    # -- the walk ------------------------------------------------------------------------------------------------

    def spot(self) -> Iterator[str]:
        """Where a vector begins: its coordinates along the runs."""
        runs = len(self.folding.dims)
        yield ""
        piece = " i64 piece; u32 slot;" if has_buckets(self.kernel) else ""
        yield f"struct Spot {{ i64 {', '.join(f'c{r}' for r in range(runs))};{piece} }};"
        yield ""
        yield "template <int V> DEVICE Spot spot(const Args& a, i64 i) {"
        yield "  Spot at;"
        if runs == 1:
            yield "  at.c0 = i * V;"
        else:
            yield "  i64 rest = i, next;"
            for r in range(runs - 1, 0, -1):
                extent = f"a.extent[{r}] / V" if r == runs - 1 else f"a.extent[{r}]"
                yield f"  cut(rest, {extent}, next, at.c{r});"
                yield "  rest = next;"
            yield f"  at.c{runs - 1} *= V;"
            yield "  at.c0 = rest;"
        yield "  return at;"
        yield "}"
        if has_buckets(self.kernel):
            yield from places(self)
            yield from finished(self)

    # -- phases --------------------------------------------------------------------------------------------------

    def element_body(self, n: int) -> tuple[k.Statement, ...]:
        """The statements at every element."""
        body = self.kernel.phases[n].body
        return needed(body, [s for s in body if isinstance(s, (k.Accumulate, *STORES))])

    def piece_body(self, n: int) -> tuple[k.Statement, ...]:
        """The uniform statements that run once a tensor of a list: what they read or write has one element for each."""
        registers: set[int] = set()
        found: list[k.Statement] = []
        for s in self.kernel.phases[n].uniform:
            is_result = isinstance(s, k.Result) and self.kernel.accumulators[s.accumulator].per_piece
            is_access = isinstance(s, (k.Load, *STORES)) and is_per_piece(self.kernel, s.tensor)
            if is_result or is_access or registers & set(operands(s)):
                found.append(s)
                registers |= {s.out} if isinstance(s, OUTPUTS) else set()
        return tuple(found)

    def shared(self, n: int) -> tuple[k.StoreAll, ...]:
        """Stores to all ranks that may wait until the phase has read its peers: not where it goes row by row."""
        printer = PhasePrinter(self.kernel, self.folding)
        if self.kernel.space.ranks == 1 or any(printer.kept_runs(a) for a in self.accumulators(n)):
            return ()
        return tuple(s for s in self.element_body(n) if isinstance(s, k.StoreAll))

    def sent(self, n: int) -> tuple[int, ...]:
        """The tensors that phase `n` may take from staging."""
        return sent(self.element_body(n), self.kernel, self.folding)

    def accumulators(self, n: int) -> tuple[int, ...]:
        """The reductions that phase `n` adds to."""
        found = (s.accumulator for s in self.kernel.phases[n].body if isinstance(s, k.Accumulate))
        return tuple(dict.fromkeys(found))

    def parameters(self, body: tuple[k.Statement, ...], accumulators: tuple[int, ...]) -> list[tuple[str, str]]:
        """Type and name of what a phase's function takes beside the place: uniform registers, seeds, parts, sums."""
        if kept(body, self.kernel, self.folding):
            found = [("const Kept&", "kept")]
        else:
            found = [(f"const {register_type(self.kernel.dtypes[r])}", f"r{r}") for r in uniform(body)]
            found += [("const u64", f"seed{s}") for s in seeds(body)]
        results = sorted({s.accumulator for s in body if isinstance(s, k.Result)})
        found += [(f"const {self.wide(r)}*", f"parts{r}") for r in results]
        return found + [(f"{self.wide(a)}&", f"sum{a}") for a in accumulators]

    def wide(self, accumulator: int) -> str:
        """The wide type of a reduction."""
        return accumulator_type(self.kernel.accumulators[accumulator].dtype)

    def none(self, accumulator: int) -> str:
        """What a reduction starts from."""
        return f"{fold_of(self.kernel.accumulators[accumulator].fn)}::none({self.wide(accumulator)}())"

    def phase_function(self, n: int) -> Iterator[str]:
        """The function of phase `n`: U vectors of V elements, so that their loads are in flight together."""
        body = self.element_body(n)
        extra = "".join(f", {kind} {name}" for kind, name in self.parameters(body, self.accumulators(n)))
        shared = kept(body, self.kernel, self.folding)
        if shared:
            yield f"struct Kept{n} {{ {' '.join(f'{kind} {name};' for kind, name in shared)} }};"
        if body:
            pushing = f", How HOW{', class Kept' if shared else ''}" if self.sent(n) else ""
            yield f"template <int V, int U{pushing}>"
            source = ", const Source& from" if self.sent(n) else ""
            yield f"DEVICE void phase{n}(const Args& a, const Spot (&at)[U], const bool (&live)[U]{source}{extra}) {{"
            yield from indent(self.vectors(n))
            yield "}"
        if self.sent(n):
            yield from push_function(n, body, self.kernel, self.folding)
        if self.shared(n):
            yield "template <int V, int U>"
            yield f"DEVICE void share{n}(const Args& a, const Spot (&at)[U], const bool (&live)[U]) {{"
            yield from indent(PhasePrinter(self.kernel, self.folding).shares(self.shared(n)))
            yield "}"
        pieces = self.piece_body(n)
        if pieces:
            extra = "".join(f", {kind} {name}" for kind, name in self.parameters(pieces, ()))
            yield f"DEVICE void pieces{n}(const Args& a, const Spot (&at)[1]{extra}) {{"
            yield "  enum { V = 1, U = 1, u = 0, j = 0 };"
            yield from indent(self.one_vector(pieces, loads=True))
            yield "}"

    def vectors(self, n: int) -> Iterator[str]:
        """All loads of all vectors, then each vector's arithmetic and stores."""
        body = self.element_body(n)
        printer = PhasePrinter(self.kernel, self.folding)
        reads = list(printer.reads(body))
        yield from (declaration for declaration, _ in reads)
        if reads:
            yield "#pragma unroll"
            yield "for (int u = 0; u < U; ++u) if (live[u]) {"
            yield from indent(line for _, text in reads for line in text.split("\n"))
            yield "}"
        if sent(body, self.kernel, self.folding):
            yield from takes(body, self.kernel, self.folding)
        found = kept(body, self.kernel, self.folding)
        yield from (f"const {kind} {name} = kept.{name};" for kind, name in found)
        made = "const float r{r} = d{r}.d;" if found else "const Divisor d{r} = divisor(r{r});"
        yield from (made.format(r=r) for r in printer.divisors(body))
        yield "#pragma unroll"
        yield "for (int u = 0; u < U; ++u) if (live[u]) {"
        yield from indent(self.one_vector(body, self.shared(n)))
        yield "}"

    def one_vector(
        self, body: tuple[k.Statement, ...], shared: tuple[k.StoreAll, ...] = (), *, loads: bool = False
    ) -> Iterator[str]:
        """Arithmetic and stores of the vector `u` (and its loads, where nothing else has them)."""
        printer = PhasePrinter(self.kernel, self.folding)
        if loads:
            for declaration, text in printer.reads(body):
                yield declaration
                yield text
        last = len(self.folding.dims) - 1
        early = [s for s in body if isinstance(s, k.Result) and last not in printer.kept_runs(s.accumulator)]
        yield from (printer.define(s, at="at[0]" if loads else "at[u]") for s in early)
        yield from printer.packs(body)
        if not loads:
            yield "#pragma unroll"
            yield "for (int j = 0; j < V; ++j) {"
        inner = list(printer.element(body, skip=early, divisors=() if loads else printer.divisors(body)))
        yield from inner if loads else indent(iter(inner))
        if not loads:
            yield "}"
        yield from printer.writes(body, shared)

    # -- the kernel ----------------------------------------------------------------------------------------------

    def kernel_body(self) -> Iterator[str]:
        """Meet, run the phases with an exchange after each that reduces, meet again."""
        early = self.early_uniforms()
        if self.meets:
            yield "const u32 epoch = a.team.state->epoch[blockIdx.x];"
            yield "u32 met = epoch;"
            yield "if (a.team.meets & 1) announce_start(a.team, ++met);"
        yield from self.kernel_scope()
        yield from self.uniforms(early)
        if self.meets:
            yield "if (a.team.meets & 1) await_all(a.team, met);"
        exchanges = 0
        total = sum(bool(self.accumulators(n)) for n in range(len(self.kernel.phases)))
        for n, phase in enumerate(self.kernel.phases):
            yield ""
            if len(self.kernel.phases) > 1:
                yield f"// phase {n}"
            apart = (*early, *self.piece_body(n))
            yield from self.uniforms(tuple(s for s in phase.uniform if s not in apart))
            yield from keep(n, self.element_body(n), self.kernel, self.folding)
            yield from loops(self, n)
            if self.shared(n):
                yield "if (DEFER) {  // reading all peers first, then writing to them, keeps both ways of a link busy"
                yield from indent(share_loops(self, n))
                yield "}"
            if self.accumulators(n):
                exchanges += 1
                yield from exchange(self.kernel, self.folding, self.accumulators(n), exchanges, exchanges == total)
        if self.meets:
            yield ""
            yield "if (a.team.meets & 2) {"
            yield "  announce(a.team, ++met);"
            yield "  await_all(a.team, met);"
            yield "}"
            yield "if (threadIdx.x == 0) a.team.state->epoch[blockIdx.x] = met;"

    def kernel_scope(self) -> Iterator[str]:
        """Names that every phase uses."""
        yield "const i64 thread = (i64)blockIdx.x * THREADS + threadIdx.x, threads = (i64)gridDim.x * THREADS;"
        for seed in seeds(self.kernel.statements()):
            yield f"const u64 seed{seed} = (u64)*a.s{seed};"
        if self.kernel.accumulators:
            yield "const u32 exchanges = a.team.state->exchanges, turn = a.team.state->turn;"
            # A peer may write the next turn's half as soon as this rank has announced its parts: a launch that does
            # not cross ranks, for which no peer waits, works in the half of the turn before.
            yield f"const i64 half = turn & 1 ? {'a.half : 0' if self.kernel.crosses else '0 : a.half'};"
            for n in range(len(self.kernel.accumulators)):
                yield f"const {self.wide(n)}* parts{n} = (const {self.wide(n)}*)(a.exchange[RANK] + half + a.a{n}_at);"

    def early_uniforms(self) -> tuple[k.Statement, ...]:
        """Those of the first phase that need nothing but arguments: they are read while the ranks meet."""
        late = {s.out for s in self.piece_body(0) if isinstance(s, OUTPUTS)} if self.kernel.phases else set()
        found: list[k.Statement] = []
        for s in self.kernel.phases[0].uniform if self.kernel.phases else ():
            if isinstance(s, k.Load | k.Combine | k.Result) or late & set(operands(s)):
                late |= {s.out} if isinstance(s, OUTPUTS) else set()
            elif isinstance(s, OUTPUTS):
                found.append(s)
        return tuple(found)

    def uniforms(self, statements: tuple[k.Statement, ...]) -> Iterator[str]:
        """Statements of one element for the whole launch: computed by every thread, stored by one."""
        printer = PhasePrinter(self.kernel, self.folding)
        for s in statements:
            if isinstance(s, k.Load):
                kind = register_type(self.kernel.dtypes[s.out])
                yield f"const {kind} r{s.out} = up(*{printer.own(s.tensor)});{printer.comment(s.out)}"
            elif isinstance(s, STORES):
                copies = [printer.own(s.tensor)]
                if isinstance(s, k.StoreAll) and s.tensor in peer_tensors(self.kernel):
                    copies = [f"a.t{s.tensor}[{peer}]" for peer in range(self.kernel.space.ranks)]
                yield from (f"if (thread == 0) down(r{s.arg}, *{copy});" for copy in copies)
            else:
                yield printer.define(s)
