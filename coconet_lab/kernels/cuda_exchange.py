"""What ends a phase that reduces: the last CTA adds the CTAs' parts in order, sends to all ranks; all CTAs wait."""

from __future__ import annotations

from collections.abc import Iterator

from coconet_lab.kernels.cuda_phase import PhasePrinter
from coconet_lab.kernels.cuda_scalar import accumulator_type, fold_of
from coconet_lab.kernels.cuda_space import Folding
from coconet_lab.kernels.kernel import Kernel


def exchange(
    kernel: Kernel, folding: Folding, accumulators: tuple[int, ...], number: int, is_last: bool
) -> Iterator[str]:
    """Lines after which every CTA of every rank may read the results of `accumulators`."""
    printer = PhasePrinter(kernel, folding)
    whole = [a for a in accumulators if not kernel.accumulators[a].per_piece and not printer.kept_runs(a)]
    lists = [a for a in accumulators if kernel.accumulators[a].per_piece]
    crosses = "true" if any(kernel.accumulators[a].crosses for a in accumulators) else "false"
    for a in whole:
        wide, fold = _wide(kernel, a), fold_of(kernel.accumulators[a].fn)
        yield f"sum{a} = fold_block<{fold}>(sum{a});"
        yield f"if (threadIdx.x == 0) (({wide}*)(a.partial + a.a{a}_partial))[blockIdx.x] = sum{a};"
    yield "if (arrive(a.team.state)) {"
    for a in whole:
        wide, fold = _wide(kernel, a), fold_of(kernel.accumulators[a].fn)
        yield f"  sum{a} = {fold}::none({wide}());"
        yield "  for (int b = threadIdx.x; b < gridDim.x; b += THREADS)"
        yield f"    sum{a} = {fold}::of(sum{a}, __ldcg((const {wide}*)(a.partial + a.a{a}_partial) + b));"
        yield f"  sum{a} = fold_block<{fold}>(sum{a});"
        yield f"  if (threadIdx.x == 0) {{ {' '.join(_sent(kernel, a, '0', f'sum{a}'))} }}"
    if lists:
        yield from (f"  {line}" for line in _piece_sums(kernel, lists))
    if is_last:
        yield "  if (threadIdx.x == 0) {"
        yield f"    a.team.state->exchanges = exchanges + {number};"
        if kernel.crosses:
            yield "    a.team.state->turn = turn + 1;"
        yield "  }"
    yield f"  announce_exchange(a.team, exchanges + {number}, {crosses});"
    yield "}"
    yield f"await_exchange(a.team, exchanges + {number}, {crosses});"


def _wide(kernel: Kernel, accumulator: int) -> str:
    return accumulator_type(kernel.accumulators[accumulator].dtype)


def _sent(kernel: Kernel, a: int, row: str, value: str) -> Iterator[str]:
    """Stores of this rank's part into the exchange memory of all that add the parts."""
    item, wide = kernel.accumulators[a], _wide(kernel, a)
    if not item.crosses:
        yield f"(({wide}*)(a.exchange[RANK] + half + a.a{a}_at))[{row}] = {value};"
        return
    for peer in range(kernel.space.ranks):
        yield f"(({wide}*)(a.exchange[{peer}] + half + a.a{a}_at))[RANK * a.a{a}_rows + {row}] = {value};"


def _piece_sums(kernel: Kernel, accumulators: list[int]) -> Iterator[str]:
    """A warp for each tensor of the list and reduction: those of the largest tensor are done at once."""
    count = len(accumulators)
    yield f"for (int item = threadIdx.x / 32; item < {count} * a.a{accumulators[0]}_rows; item += THREADS / 32) {{"
    yield f"  const int piece = item / {count};"
    yield "  const i64 from = a.piece_bucket[piece], to = a.piece_bucket[piece + 1];"
    for n, a in enumerate(accumulators):
        wide, fold = _wide(kernel, a), fold_of(kernel.accumulators[a].fn)
        yield f"  if (item % {count} == {n}) {{"
        yield f"    const {wide} sum = fold_run<{fold}>((const {wide}*)(a.partial + a.a{a}_partial), from, to);"
        yield f"    if (threadIdx.x % 32 == 0) {{ {' '.join(_sent(kernel, a, 'piece', 'sum'))} }}"
        yield "  }"
    yield "}"
