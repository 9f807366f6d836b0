"""The loops over a list: a warp takes a bucket at a time, and none crosses a tensor of the list.

Where a bucket lies takes two reads after each other, of its tensor and of how far that lies from its place in a row.
They are made one and two buckets ahead, a word a lane, and wait in shared memory: registers are short here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from coconet_lab.kernels import kernel as k
from coconet_lab.kernels.cuda_abi import scattered_tensors
from coconet_lab.kernels.cuda_phase import PhasePrinter, finished_name, indent, one_spot, spots
from coconet_lab.kernels.cuda_push import ahead
from coconet_lab.kernels.cuda_scalar import fold_of, register_type

if TYPE_CHECKING:
    from coconet_lab.kernels.cuda_printer import _Printer

DRAWN = 4
"""Neighbours that one draw of a dropout serves."""

OWN = "{a.bucket_start, a.bucket_piece, a.buckets}"


def ring_bytes(kernel: k.Kernel, threads: int, rings: int = 1) -> int:
    """Shared memory for the places of a CTA's buckets; a launch that pushes has a ring for each rank."""
    return 8 * 3 * (3 + len(scattered_tensors(kernel))) * rings * threads // 32


def places(printer: _Printer) -> Iterator[str]:
    """Where buckets lie, for all loops of a kernel: of this rank's, and of those that it pushes to peers.

    A ring of three for each warp: of the bucket at work everything, of the next all but its tensor's shifts, and room
    for the one after. What a lane has asked for it keeps in registers only until it is put there.
    """
    shifts = len(scattered_tensors(printer.kernel))
    pushes = any(printer.sent(n) for n in range(len(printer.kernel.phases)))
    # A lane asks for every 32nd shift: few lists have as many buffers as that, but a group of any size may.
    of_lane = [f"LANE + {n}" for n in range(0, shifts, 32)]
    asked = "".join(f", {lane} < SHIFTS ? a.shift[piece * SHIFTS + {lane}] : 0" for lane in of_lane)
    settled = "\n".join(
        f"  if ({lane} < SHIFTS) words(ring, slot)[SHIFT + {lane}] = of.shift{n};" for n, lane in enumerate(of_lane)
    )
    yield from f"""
// A bucket's begin, end and tensor, then how far the tensor lies from its place in a row in each buffer.
enum {{ SHIFTS = {shifts}, WORDS = SHIFT + SHIFTS, RINGS = {"PUSH ? RANKS : 1" if pushes else "1"} }};

// What a lane has asked for: its word of the bucket after the next, its shifts of the next.
struct Ahead {{ i64 word{"".join(f", shift{n}" for n in range(len(of_lane)))}; }};

DEVICE volatile i64* words(int ring, u32 slot) {{
  __shared__ i64 all[THREADS / 32][RINGS][3][WORDS];
  return all[threadIdx.x / 32][ring][slot];
}}

// For the next bucket its shifts, for the one after that its place.
DEVICE Ahead ask(const Args& a, int ring, u32 slot, const Buckets& all, i64 after) {{
  const i64 piece = words(ring, following(slot))[PIECE];
  return {{bucket_word(all, after){asked}}};
}}

// Puts what was asked for in its place; the slot of the next bucket.
DEVICE u32 settle(int ring, u32 slot, const Ahead& of) {{
  slot = following(slot);
  __syncwarp();
{settled}
  if (LANE <= PIECE) words(ring, following(slot))[LANE] = of.word;
  __syncwarp();
  return slot;
}}

// Begins with bucket `first` in slot 0; `second` follows.
DEVICE void prepare(const Args& a, int ring, const Buckets& all, i64 first, i64 second) {{
  const Ahead of = {{bucket_word(all, first)}};
  settle(ring, 1, of);
  settle(ring, 2, ask(a, ring, 2, all, second));
}}""".split("\n")
    if pushes:
        yield ""
        yield "DEVICE Buckets far_of(const Args& a, int p) {"
        yield "  const int to = (RANK + p) % RANKS;"
        yield "  return {a.far_start[to], a.far_piece[to], a.far_buckets[to]};"
        yield "}"


def bucket_loop(printer: _Printer, n: int, call: dict[str, str]) -> Iterator[str]:
    """The loop of phase `n`; `call` has its function's calls by what they work on."""
    yield from _finish(printer, n)
    if _sums(printer, n):
        yield from _whole_buckets(printer, call, _sums(printer, n))
    elif printer.sent(n):
        yield "if (PUSH && a.push) {"
        yield from indent(_rounds(printer, n, call))
        yield "} else {"
        yield from indent(_spans(printer, call))
        yield "}"
    else:
        yield from _spans(printer, call)


def share_bucket_loop(printer: _Printer, n: int, call: dict[str, str]) -> Iterator[str]:
    """The walk of phase `n` once more, to send what the same thread has stored."""
    yield from _whole_buckets(printer, call, ()) if _sums(printer, n) else _spans(printer, call)


def _sums(printer: _Printer, n: int) -> tuple[int, ...]:
    """The reductions of phase `n` that have a result for each tensor of the list."""
    return tuple(a for a in printer.accumulators(n) if printer.kernel.accumulators[a].per_piece)


def _whole_buckets(printer: _Printer, call: dict[str, str], sums: Sequence[int]) -> Iterator[str]:
    """A bucket a warp, which adds it up."""
    width = printer.folding.width
    yield "const i64 warp = thread / 32, warps = threads / 32;"
    yield "u32 slot = 0;"
    yield f"prepare(a, 0, {OWN}, warp, warp + warps);"
    yield "for (i64 b = warp; b < a.buckets; b += warps) {"
    yield f"  const Ahead of = ask(a, 0, slot, {OWN}, b + 2 * warps);"
    yield "  volatile i64* here = words(0, slot);"
    yield "  const i64 begin = here[BEGIN], end = here[END], piece = here[PIECE];"
    yield from (f"  {printer.wide(a)} sum{a} = {printer.none(a)};" for a in sums)
    yield "  i64 rest = begin;"
    if width > 1:
        yield f"  if (a.vectors && {_aligned(printer)}) {{"
        yield f"    const i64 vectors = (end - begin) / {width};"
        yield "    for (i64 i = threadIdx.x % 32; i < vectors; i += 32 * UNROLL) {"
        yield from indent(spots(_spot(f"begin + (i + u * 32) * {width}"), "u == 0 || i + u * 32 < vectors"), 6)
        yield f"      {call['vectors']}"
        yield "    }"
        yield f"    rest += vectors * {width};"
        yield "  }"
    yield "  for (i64 i = rest + threadIdx.x % 32; i < end; i += 32) {"
    yield from indent(one_spot(_spot("i")), 4)
    yield f"    {call['one']}"
    yield "  }"
    for a in sums:
        yield f"  sum{a} = fold_warp<{fold_of(printer.kernel.accumulators[a].fn)}>(sum{a});"
        yield f"  if (threadIdx.x % 32 == 0) (({printer.wide(a)}*)(a.partial + a.a{a}_partial))[b] = sum{a};"
    yield "  slot = settle(0, slot, of);"
    yield "}"


def _span(printer: _Printer) -> Iterator[str]:
    """What a warp does at once, a part of a bucket: neighbouring warps take neighbouring spans, as in a flat walk."""
    width, bucket = printer.folding.width, printer.kernel.space.bucket
    yield f"enum {{ SPAN = 32 * {width} * UNROLL, SPANS = ({bucket} + SPAN - 1) / SPAN }};"
    yield "const i64 warp = thread / 32, warps = threads / 32;"
    yield "u32 slot = 0;"
    yield f"prepare(a, 0, {OWN}, warp / SPANS, (warp + warps) / SPANS);"


def _span_here(printer: _Printer) -> Iterator[str]:
    """Where span `s` lies, and how many elements it has; none past a bucket's end, or past the last bucket."""
    yield "volatile i64* here = words(0, slot);"
    yield "const i64 begin = here[BEGIN], piece = here[PIECE], low = begin + (s % SPANS) * SPAN;"
    yield "const i64 left = here[END] - low, count = left < SPAN ? left : SPAN;"
    yield f"const bool by_vectors = a.vectors && {_aligned(printer)};"


def _spans(printer: _Printer, call: dict[str, str]) -> Iterator[str]:
    width = printer.folding.width
    yield from _span(printer)
    yield "for (i64 s = warp; s < a.buckets * SPANS; s += warps) {"
    yield f"  const Ahead of = ask(a, 0, slot, {OWN}, (s + 2 * warps) / SPANS);"
    yield from indent(_span_here(printer))
    yield "  if (UNROLL > 1 && by_vectors && count == SPAN) {"
    yield "    const i64 i = threadIdx.x % 32;"
    yield from indent(spots(_spot(f"low + (i + u * 32) * {width}"), "true"), 4)
    yield f"    {call['vectors']}"
    yield "  } else {"
    yield from indent(_rest(width, call["vector"], call["one"], ""), 4)
    yield "  }"
    yield "  slot = settle(0, slot, of);"
    yield "}"


def _rest(width: int, vector: str, one: str, source: str) -> Iterator[str]:
    """A span that is shorter, or begins at no vector: vector by vector, then element by element."""
    yield f"const i64 vectors = by_vectors && count > 0 ? count / {width} : 0;"
    yield "for (i64 i = threadIdx.x % 32; i < vectors; i += 32) {"
    if source:
        yield f"  {source.format(at=f'i * {width}')}"
    yield from indent(one_spot(_spot(f"low + i * {width}")))
    yield f"  {vector}"
    yield "}"
    yield f"for (i64 i = vectors * {width} + threadIdx.x % 32; i < count; i += 32) {{"
    if source:
        yield f"  {source.format(at='i')}"
    yield from indent(one_spot(_spot("low + i")))
    yield f"  {one}"
    yield "}"


def _rounds(printer: _Printer, n: int, call: dict[str, str]) -> Iterator[str]:
    width = printer.folding.width
    yield from _span(printer)
    yield "const int rounds = (int)((most(a.far_buckets) * SPANS + warps - 1) / warps);"
    yield "const u32 before = met;"
    yield "u32 far = 0;"
    yield "for (int p = 1; p < RANKS; ++p) prepare(a, p, far_of(a, p), warp / SPANS, (warp + warps) / SPANS);"
    yield "for (int n = -1; n < rounds; ++n) {"
    yield "  const i64 s = warp + n * warps;"
    yield "  Ahead of;"
    yield f"  if (n >= 0) of = ask(a, 0, slot, {OWN}, (s + 2 * warps) / SPANS);"
    yield from ahead(f"far = push{n}<{width}, UNROLL, SPANS>(a, number + 1, far, s + warps, warps);")
    yield "  const u32 next = settle(0, slot, of);"
    yield from indent(_span_here(printer))
    yield "  if (by_vectors && count == SPAN) {"
    yield "    const i64 i = threadIdx.x % 32;"
    yield from indent(spots(_spot(f"low + (i + u * 32) * {width}"), "true"), 4)
    yield f"    const Source from = {{number, (int)(threadIdx.x / 32 * SPAN + i * {width}), 32 * {width}}};"
    yield f"    {call['staged']}"
    yield "  } else {"
    yield "    await_push(a.team, number);"
    source = "const Source from = {{number, (int)(threadIdx.x / 32 * SPAN + {at}), 0}};"
    yield from indent(_rest(width, call["ready"], call["ready_one"], source), 4)
    yield "  }"
    yield "  slot = next;"
    yield "}"
    yield "met = before + (u32)rounds;"


def _spot(first: str) -> str:
    """A spot of the bucket at work."""
    return f"{{{first}, piece, slot}}"


def finished(printer: _Printer) -> Iterator[str]:
    """Where results of the first tensors of a list are kept for all buckets of a CTA."""
    found = {s.accumulator for phase in printer.kernel.phases for s in phase.body if isinstance(s, k.Result)}
    for a in sorted(found):
        if printer.kernel.accumulators[a].per_piece:
            name = register_type(printer.kernel.accumulators[a].dtype)
            yield f"DEVICE {name}* {finished_name(a)}() {{ __shared__ {name} all[FINISHED]; return all; }}"


def _finish(printer: _Printer, n: int) -> Iterator[str]:
    """Results that phase `n` reads at every bucket, finished once a CTA: a root and a division each."""
    phase = PhasePrinter(printer.kernel, printer.folding)
    found = {s.accumulator for s in printer.element_body(n) if isinstance(s, k.Result)}
    found = {a for a in found if printer.kernel.accumulators[a].per_piece}
    if not found:
        return
    yield "for (i64 piece = threadIdx.x; piece < a.pieces && piece < FINISHED; piece += THREADS) {"
    yield from (f"  {finished_name(a)}()[piece] = {phase.result(a, 'piece')};" for a in sorted(found))
    yield "}"
    yield "__syncthreads();"


def _aligned(printer: _Printer) -> str:
    """Whether a bucket begins at a multiple of a vector in every tensor that is read or written by vectors."""
    kernel, folding = printer.kernel, printer.folding
    scattered = scattered_tensors(kernel)
    in_a_row = any(runs[-1] for t, runs in enumerate(folding.present) if t not in scattered)
    firsts = ["begin"] if in_a_row else []
    firsts += [f"(begin + here[SHIFT + {n}])" for n in range(len(scattered))]
    first = f"({' | '.join(firsts)})" if len(firsts) > 1 else firsts[0]
    aligned = f"{first} % {folding.width} == 0"
    if folding.has_dropout and (not in_a_row or folding.width < DRAWN):
        aligned += f" && begin % {DRAWN} == 0"
    return aligned
