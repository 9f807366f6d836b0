"""The loops around a phase: flat, a row at a time for results that keep dims, or a bucket at a time for lists.

Flat: neighbouring threads take neighbouring vectors, UNROLL of them a grid apart. Rows: a warp adds a row where the
last run is reduced, a thread where it is kept. Buckets: a warp adds a bucket, and none crosses a tensor of the list.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from coconet_lab.kernels.cuda_abi import has_buckets
from coconet_lab.kernels.cuda_buckets import bucket_loop, share_bucket_loop
from coconet_lab.kernels.cuda_phase import PhasePrinter, indent, one_spot, spots
from coconet_lab.kernels.cuda_push import flat_rounds
from coconet_lab.kernels.cuda_scalar import fold_of

if TYPE_CHECKING:
    from coconet_lab.kernels.cuda_printer import _Printer


def loops(printer: _Printer, n: int) -> Iterator[str]:
    """The loops of phase `n` with the sums they add to."""
    phase = PhasePrinter(printer.kernel, printer.folding)
    rows = [a for a in printer.accumulators(n) if phase.kept_runs(a)]
    for a in printer.accumulators(n):
        if a not in rows and not printer.kernel.accumulators[a].per_piece:
            yield f"{printer.wide(a)} sum{a} = {printer.none(a)};"
    if printer.element_body(n):
        if rows:
            yield from _row_loop(printer, n, rows)
        elif has_buckets(printer.kernel):
            yield "{"
            yield from indent(bucket_loop(printer, n, _bucket_calls(printer, n)))
            yield "}"
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
    if has_buckets(printer.kernel):
        yield from share_bucket_loop(printer, n, _bucket_calls(printer, n, shares=True))
    else:
        yield from _flat_loop(printer, n, shares=True)


def _call(printer: _Printer, n: int, width: str, unroll: str, shares: bool = False, how: str = "PULL") -> str:
    if shares:
        return f"share{n}<{width}, {unroll}>(a, at, live);"
    parameters = [name for _, name in printer.parameters(printer.element_body(n), printer.accumulators(n))]
    if printer.sent(n):
        unroll, parameters = f"{unroll}, {how}", ["Source()" if how == "PULL" else "from", *parameters]
        parameters = [f"kept{n}" if name == "kept" else name for name in parameters]
    return f"phase{n}<{width}, {unroll}>(a, at, live{''.join(f', {name}' for name in parameters)});"


def _bucket_calls(printer: _Printer, n: int, shares: bool = False) -> dict[str, str]:
    """The calls of a phase's function by what they work on."""
    width = str(printer.folding.width)
    found = {
        "vectors": _call(printer, n, width, "UNROLL", shares),
        "vector": _call(printer, n, width, "1", shares),
        "one": _call(printer, n, "1", "1", shares),
    }
    if printer.sent(n):
        found["staged"] = _call(printer, n, width, "UNROLL", how="STAGED")
        found["ready"] = _call(printer, n, width, "1", how="READY")
        found["ready_one"] = _call(printer, n, "1", "1", how="READY")
    return found


def _one(spot: str, call: str) -> Iterator[str]:
    yield from indent((*one_spot(spot), call))


def _flat_loop(printer: _Printer, n: int, shares: bool = False) -> Iterator[str]:
    width = printer.folding.width
    first = "thread"
    if printer.sent(n) and not shares:
        first = f"start{n}"
        yield f"i64 start{n} = thread;"
        yield "if (PUSH && a.push) {"
        rounds = flat_rounds(n, printer.folding, _call(printer, n, str(width), "UNROLL", how="STAGED"))
        yield from indent(rounds)
        yield "}"
    if width > 1:
        yield f"for (i64 i = {first}; i < a.vectors; i += threads * UNROLL) {{"
        yield from indent(spots(f"spot<{width}>(a, i + u * threads)", "u == 0 || i + u * threads < a.vectors"))
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
        yield f"    {printer.wide(a)} sum{a} = {printer.none(a)};"
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
