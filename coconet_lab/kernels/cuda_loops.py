"""The loops around a phase: flat, a row at a time for results that keep dims, or a bucket at a time for lists.

Flat: neighbouring threads take neighbouring vectors, UNROLL of them a grid apart. Rows: a warp adds a row where the
last run is reduced, a thread where it is kept. Buckets: a warp adds a bucket, and none crosses a tensor of the list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from coconet_lab.kernels.cuda_abi import has_buckets, scattered_tensors
from coconet_lab.kernels.cuda_phase import PhasePrinter
from coconet_lab.kernels.cuda_scalar import fold_of

if TYPE_CHECKING:
    from coconet_lab.kernels.cuda_printer import _Printer

DRAWN = 4
"""Neighbours that one draw of a dropout serves."""


def loops(printer: _Printer, n: int) -> Iterator[str]:
    """The loops of phase `n` with the sums they add to."""
    phase = PhasePrinter(printer.kernel, printer.folding)
    rows = [a for a in printer.accumulators(n) if phase.kept_runs(a)]
    for a in printer.accumulators(n):
        if a not in rows and not printer.kernel.accumulators[a].per_piece:
            yield f"{printer.wide(a)} sum{a} = {_none(printer, a)};"
    if printer.element_body(n):
        if rows:
            yield from _row_loop(printer, n, rows)
        elif has_buckets(printer.kernel):
            yield from _bucket_loop(printer, n)
        else:
            yield from _flat_loop(printer, n)
    if printer.piece_body(n):
        extra = "".join(f", {name}" for _, name in printer.parameters(printer.piece_body(n), ()))
        yield "for (i64 piece = thread; piece < a.pieces; piece += threads) {"
        yield "  Spot at[1] = {};"
        yield "  at[0].piece = piece;"
        yield f"  pieces{n}(a, at{extra});"
        yield "}"


def share_loops(printer: _Printer, n: int) -> Iterator[str]:
    """The same loops once more: each thread comes to the elements it has stored itself, and waits for nobody."""
    yield from (
        _bucket_loop(printer, n, shares=True) if has_buckets(printer.kernel) else _flat_loop(printer, n, shares=True)
    )


def _none(printer: _Printer, a: int) -> str:
    return f"{fold_of(printer.kernel.accumulators[a].fn)}::none({printer.wide(a)}())"


def _call(printer: _Printer, n: int, width: str, unroll: str, shares: bool = False) -> str:
    if shares:
        return f"share{n}<{width}, {unroll}>(a, at, live);"
    parameters = printer.parameters(printer.element_body(n), printer.accumulators(n))
    return f"phase{n}<{width}, {unroll}>(a, at, live{''.join(f', {name}' for _, name in parameters)});"


def _one(spot: str, call: str, of_bucket: Sequence[str] = ()) -> Iterator[str]:
    yield f"  Spot at[1] = {{{spot}}};"
    yield from (f"  at[0].{name} = {name};" for name in of_bucket)
    yield "  const bool live[1] = {true};"
    yield f"  {call}"


def _flat_loop(printer: _Printer, n: int, shares: bool = False) -> Iterator[str]:
    width = printer.folding.width
    if width > 1:
        yield "for (i64 i = thread; i < a.vectors; i += threads * UNROLL) {"
        yield "  Spot at[UNROLL];"
        yield "  bool live[UNROLL];"
        yield "#pragma unroll"
        yield "  for (int u = 0; u < UNROLL; ++u) {"
        yield "    live[u] = u == 0 || i + u * threads < a.vectors;"
        yield f"    at[u] = spot<{width}>(a, i + u * threads);"
        yield "  }"
        yield f"  {_call(printer, n, str(width), 'UNROLL', shares)}"
        yield "}"
    yield "for (i64 i = a.first + thread; i < a.total; i += threads) {"
    yield from _one("spot<1>(a, i)", _call(printer, n, "1", "1", shares))
    yield "}"


def _row_loop(printer: _Printer, n: int, rows: list[int]) -> Iterator[str]:
    phase = PhasePrinter(printer.kernel, printer.folding)
    runs = range(len(printer.folding.dims))
    kept = phase.kept_runs(rows[0])
    reduced = tuple(r for r in runs if r not in kept)
    by_warp = runs[-1] not in kept
    width = printer.folding.width
    yield "{"
    yield f"  const i64 rows = {' * '.join(f'a.extent[{r}]' for r in kept)};"
    yield f"  const i64 depth = {' * '.join(f'a.extent[{r}]' for r in reduced)};"
    step = "threads / 32" if by_warp else "threads"
    yield f"  for (i64 row = {'thread / 32' if by_warp else 'thread'}; row < rows; row += {step}) {{"
    for a in rows:
        yield f"    {printer.wide(a)} sum{a} = {_none(printer, a)};"
    yield "    Spot start = {};"
    yield from (f"    {line}" for line in _coordinates(printer, "row", kept, "1"))
    if by_warp and width > 1:
        yield f"    const bool wide = a.vectors && a.extent[{runs[-1]}] % {width} == 0;"
        yield f"    for (i64 k = threadIdx.x % 32; wide && k < depth / {width}; k += 32) {{"
        yield from (f"      {line}" for line in _coordinates(printer, "k", reduced, str(width)))
        yield from (f"    {line}" for line in _one("start", _call(printer, n, str(width), "1")))
        yield "    }"
        yield "    for (i64 k = threadIdx.x % 32; !wide && k < depth; k += 32) {"
    else:
        first, stride = ("threadIdx.x % 32", "32") if by_warp else ("0", "1")
        yield f"    for (i64 k = {first}; k < depth; k += {stride}) {{"
    yield from (f"      {line}" for line in _coordinates(printer, "k", reduced, "1"))
    yield from (f"    {line}" for line in _one("start", _call(printer, n, "1", "1")))
    yield "    }"
    for a in rows:
        item = printer.kernel.accumulators[a]
        guard = "if (threadIdx.x % 32 == 0) " if by_warp else ""
        if by_warp:
            yield f"    sum{a} = fold_warp<{fold_of(item.fn)}>(sum{a});"
        place = f"half + a.a{a}_at" + (f" + RANK * a.a{a}_rows" if item.crosses else "")
        peers = range(printer.kernel.space.ranks) if item.crosses else ["RANK"]
        for peer in peers:
            yield f"    {guard}(({printer.wide(a)}*)(a.exchange[{peer}] + {place}))[row] = sum{a};"
    yield "  }"
    yield "}"


def _coordinates(printer: _Printer, number: str, runs: tuple[int, ...], width: str) -> Iterator[str]:
    """Lines that set the coordinates along `runs` of `start` from one number; the last run counts in vectors."""
    last = len(printer.folding.dims) - 1
    if not runs:
        return
    yield f"i64 rest_{number} = {number}, next_{number};"
    for r in reversed(runs[1:]):
        extent = f"a.extent[{r}] / {width}" if r == last and width != "1" else f"a.extent[{r}]"
        yield f"cut(rest_{number}, {extent}, next_{number}, start.c{r});"
        yield f"rest_{number} = next_{number};"
    yield f"start.c{runs[0]} = rest_{number};"
    if last in runs and width != "1":
        yield f"start.c{last} *= {width};"


def _bucket_loop(printer: _Printer, n: int, shares: bool = False) -> Iterator[str]:
    width = printer.folding.width
    sums = [a for a in printer.accumulators(n) if printer.kernel.accumulators[a].per_piece and not shares]
    scattered = scattered_tensors(printer.kernel)
    # A bucket's place is read while the one before it is worked on.
    yield f"Bucket next{n} = bucket(a, thread / 32);"
    yield "for (i64 b = thread / 32; b < a.buckets; b += threads / 32) {"
    yield f"  const i64 begin = next{n}.begin, end = next{n}.end, piece = next{n}.piece;"
    yield f"  next{n} = bucket(a, b + threads / 32);"
    yield from (f"  const i64 shift{t} = a.t{t}_shift[piece];" for t in scattered)
    for a in sums:
        yield f"  {printer.wide(a)} sum{a} = {_none(printer, a)};"
    yield "  i64 rest = begin;"
    if width > 1:
        yield f"  if (a.vectors && {_aligned(printer)}) {{"
        yield f"    const i64 vectors = (end - begin) / {width};"
        yield "    for (i64 i = threadIdx.x % 32; i < vectors; i += 32 * UNROLL) {"
        yield "      Spot at[UNROLL];"
        yield "      bool live[UNROLL];"
        yield "#pragma unroll"
        yield "      for (int u = 0; u < UNROLL; ++u) {"
        yield "        live[u] = u == 0 || i + u * 32 < vectors;"
        yield f"        at[u].c0 = begin + (i + u * 32) * {width};"
        yield from (f"        at[u].{name} = {name};" for name in _of_bucket(printer))
        yield "      }"
        yield f"      {_call(printer, n, str(width), 'UNROLL', shares)}"
        yield "    }"
        yield f"    rest += vectors * {width};"
        yield "  }"
    yield "  for (i64 i = rest + threadIdx.x % 32; i < end; i += 32) {"
    call = _call(printer, n, "1", "1", shares)
    one = _one("spot<1>(a, i)", call, of_bucket=_of_bucket(printer))
    yield from (f"  {line}" for line in one)
    yield "  }"
    for a in sums:
        fold = fold_of(printer.kernel.accumulators[a].fn)
        yield f"  sum{a} = fold_warp<{fold}>(sum{a});"
        yield f"  if (threadIdx.x % 32 == 0) (({printer.wide(a)}*)(a.partial + a.a{a}_partial))[b] = sum{a};"
    yield "}"


def bucket() -> Iterator[str]:
    """A bucket of a list: its elements, and the tensor they are of."""
    yield ""
    yield "struct Bucket { i64 begin, end, piece; };"
    yield ""
    yield "DEVICE Bucket bucket(const Args& a, i64 b) {"
    yield "  if (b >= a.buckets) return {};"
    yield "  return {a.bucket_start[b], a.bucket_start[b + 1], a.bucket_piece[b]};"
    yield "}"


def _of_bucket(printer: _Printer) -> list[str]:
    """What all elements of a bucket share: their tensor, and how far it lies from its place in a row."""
    return ["piece", *(f"shift{t}" for t in scattered_tensors(printer.kernel))]


def _aligned(printer: _Printer) -> str:
    """Whether a bucket begins at a multiple of a vector in every tensor that is read or written by vectors."""
    kernel, folding = printer.kernel, printer.folding
    scattered = scattered_tensors(kernel)
    in_a_row = any(runs[-1] for t, runs in enumerate(folding.present) if t not in scattered)
    firsts = ["begin"] if in_a_row else []
    firsts += [f"(begin + shift{t})" for t in scattered]
    first = f"({' | '.join(firsts)})" if len(firsts) > 1 else firsts[0]
    aligned = f"{first} % {folding.width} == 0"
    if folding.has_dropout and (not in_a_row or folding.width < DRAWN):
        aligned += f" && begin % {DRAWN} == 0"
    return aligned
