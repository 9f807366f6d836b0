"""Writing instead of reading: a rank puts its part of a sum into its peers' staging, one round ahead of its use.

A link carries more as writes than as answers to reads (357 and 328 GB/s a direction between two H200s), so a long phase
that combines the ranks' copies may go in rounds: each CTA writes what the CTA of its number on every peer takes in the
next round, posts the round's number, and works on this round. Four slots are enough: who sees a peer post number n
knows that it has taken what came under n - 2, and writes n + 2 into that slot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from coconet_lab.kernels import kernel as k
from coconet_lab.kernels.cuda_abi import C_TYPES, has_buckets, pushed, scattered_tensors
from coconet_lab.kernels.cuda_phase import PhasePrinter, combined, indent, seeds, spots, uniform
from coconet_lab.kernels.cuda_scalar import register_type
from coconet_lab.kernels.cuda_space import Folding

LANES = 32


def sent(body: tuple[k.Statement, ...], kernel: k.Kernel, folding: Folding) -> tuple[int, ...]:
    """The tensors that a phase may take from staging."""
    return tuple(t for t in combined(body) if t in pushed(kernel, folding))


def kept(body: tuple[k.Statement, ...], kernel: k.Kernel, folding: Folding) -> list[tuple[str, str]]:
    """Type and name of what a phase that goes in rounds finds in shared memory: registers are short there."""
    if not sent(body, kernel, folding):
        return []
    divisors = PhasePrinter(kernel, folding).divisors(body)
    found = [(register_type(kernel.dtypes[r]), f"r{r}") for r in uniform(body) if r not in divisors]
    return found + [("Divisor", f"d{r}") for r in divisors] + [("u64", f"seed{s}") for s in seeds(body)]


def keep(n: int, body: tuple[k.Statement, ...], kernel: k.Kernel, folding: Folding) -> Iterator[str]:
    """Lines that put what `kept` names where phase `n` finds it."""
    values = [f"divisor(r{name[1:]})" if kind == "Divisor" else name for kind, name in kept(body, kernel, folding)]
    if values:
        yield f"KEPT Kept{n} kept{n};"
        yield f"if (!PUSH || threadIdx.x == 0) kept{n} = {{{', '.join(values)}}};"
        yield "if (PUSH) __syncthreads();"


def vector_bytes(kernel: k.Kernel, folding: Folding) -> int:
    """Bytes of staging for one vector of every tensor that a peer sends."""
    return folding.width * sum(kernel.tensors[t].dtype.itemsize for t in pushed(kernel, folding))


def _place(kernel: k.Kernel, folding: Folding, tensor: int, rank: str, source: str, number: str) -> str:
    """Where a CTA's share of a tensor begins in the staging of `rank`, sent by `source`."""
    before = sum(kernel.tensors[t].dtype.itemsize for t in pushed(kernel, folding) if t < tensor)
    share = f"staged(a.stage[{rank}], {number}, {source}, THREADS * UNROLL * {vector_bytes(kernel, folding)})"
    part = f" + THREADS * UNROLL * {folding.width * before}" if before else ""
    return f"({C_TYPES[kernel.tensors[tensor].dtype]}*)({share}{part})"


def takes(body: tuple[k.Statement, ...], kernel: k.Kernel, folding: Folding) -> Iterator[str]:
    """What a phase does instead of reading its peers, once its other loads are on their way."""
    tensors = sent(body, kernel, folding)
    yield "if constexpr (HOW == STAGED) await_push(a.team, from.number);"
    yield "if constexpr (HOW != PULL) {"
    yield "#pragma unroll"
    yield "  for (int u = 0; u < U; ++u) if (live[u]) {"
    for s in body:
        if isinstance(s, k.Combine) and s.tensor in tensors:
            for p in range(1, kernel.space.ranks):
                peer = f"(RANK + {p}) % RANKS"
                place = _place(kernel, folding, s.tensor, "RANK", peer, "from.number")
                yield f"    take(x{s.out}[u][{peer}], {place} + from.first + u * from.step);"
    yield "  }"
    yield "}"


def push_function(n: int, body: tuple[k.Statement, ...], kernel: k.Kernel, folding: Folding) -> Iterator[str]:
    """What all peers take from this rank in one round of phase `n`, written into their staging."""
    if has_buckets(kernel):
        yield "template <int V, int U, int SPANS>"
        yield f"DEVICE u32 push{n}(const Args& a, u32 number, u32 slot, i64 s, i64 warps) {{"
        yield from _span(body, kernel, folding)
    else:
        yield "template <int V, int U>"
        yield f"DEVICE void push{n}(const Args& a, u32 number, i64 first, i64 step) {{"
        yield from _vectors(body, kernel, folding)
    yield "}"


def _vectors(body: tuple[k.Statement, ...], kernel: k.Kernel, folding: Folding) -> Iterator[str]:
    """All loads for all peers, then the stores."""
    tensors, phase = sent(body, kernel, folding), PhasePrinter(kernel, folding)
    yield from (f"  Pack<{C_TYPES[kernel.tensors[t].dtype]}, V> z{t}[RANKS][U];" for t in tensors)

    def for_all(lines: Sequence[str]) -> Iterator[str]:
        yield "#pragma unroll"
        yield "  for (int p = 1; p < RANKS; ++p) {"
        yield "    const int to = (RANK + p) % RANKS;"
        yield "#pragma unroll"
        yield "    for (int u = 0; u < U; ++u) {"
        yield from (f"      {line}" for line in lines)
        yield "    }"
        yield "  }"

    loads = [f"fetch(z{t}[p][u], a.t{t}_far[to]{phase.place(t, 'at')});" for t in tensors]
    yield from for_all(["const Spot at = spot<V>(a, first + u * step);", *loads])
    places = {t: _place(kernel, folding, t, "to", "RANK", "number") for t in tensors}
    yield from for_all([f"put({places[t]} + (u * THREADS + threadIdx.x) * V, z{t}[p][u]);" for t in tensors])


def _span(body: tuple[k.Statement, ...], kernel: k.Kernel, folding: Folding) -> Iterator[str]:
    """A warp's span of each peer's buckets; the rings of peers follow this rank's own."""
    scattered = scattered_tensors(kernel)
    yield "  Ahead of[RANKS];"
    yield "#pragma unroll"
    yield "  for (int p = 1; p < RANKS; ++p) of[p] = ask(a, p, slot, far_of(a, p), (s + 2 * warps) / SPANS);"
    yield "#pragma unroll"
    yield "  for (int p = 1; p < RANKS; ++p) {"
    yield "    const int to = (RANK + p) % RANKS;"
    yield "    volatile i64* there = words(p, slot);"
    yield f"    const i64 begin = there[BEGIN] + s % SPANS * ({LANES} * V * U), left = there[END] - begin;"
    yield f"    const i64 count = left < {LANES} * V * U ? left : {LANES} * V * U;"
    for t in sent(body, kernel, folding):
        shift = f" + there[SHIFT + {scattered.index(t)}]" if t in scattered else ""
        place = f"{_place(kernel, folding, t, 'to', 'RANK', 'number')} + threadIdx.x / {LANES} * ({LANES} * V * U)"
        yield f"    deliver<V, U>({place}, a.t{t}_far[to] + begin{shift}, count);"
    yield "  }"
    yield "  u32 next = slot;"
    yield "#pragma unroll"
    yield "  for (int p = 1; p < RANKS; ++p) next = settle(p, slot, of[p]);"
    yield "  return next;"


def flat_rounds(n: int, folding: Folding, call: str) -> Iterator[str]:
    """The rounds of a flat phase in which all ranks have all their vectors; `call` works on the vectors of one."""
    width = folding.width
    yield "const u32 before = met;"
    yield "const i64 step = threads * UNROLL;"
    yield "const int rounds = (int)(least(a.far_vectors) / step);"
    yield "for (int n = -1; n < rounds; ++n) {"
    yield from ahead(f"push{n}<{width}, UNROLL>(a, number + 1, thread + (n + 1) * step, threads);")
    yield "  const i64 i = thread + n * step;"
    yield from indent(spots(f"spot<{width}>(a, i + u * threads)", "true"))
    yield f"  const Source from = {{number, (int)threadIdx.x * {width}, THREADS * {width}}};"
    yield f"  {call}"
    yield "}"
    yield f"start{n} += rounds * step;"
    yield "met = before + (u32)rounds;"


def ahead(push: str) -> Iterator[str]:
    """The next round's writes, before this round's work; the first round has none."""
    yield "  const u32 number = before + 1 + (u32)n;"
    yield "  if (n + 1 < rounds) {"
    yield f"    {push}"
    yield "    announce(a.team, number + 1);"
    yield "  }"
    yield "  if (n < 0) continue;"
