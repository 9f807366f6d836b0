"""How many CTAs a launch gets: enough to fill the GPU, never more than can all be there while they wait for peers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from coconet_lab.kernels.cuda_abi import MAX_CTAS, has_buckets, pushed
from coconet_lab.kernels.cuda_buckets import ring_bytes
from coconet_lab.kernels.cuda_compile import Form
from coconet_lab.kernels.cuda_launch import staging_bytes
from coconet_lab.kernels.cuda_printer import CudaSource
from coconet_lab.kernels.cuda_space import walk

RING_BYTES = 32 << 10
"""What rings may take of the 48 KiB of shared memory that a kernel has without asking for more."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """What a launch may be tuned by; zeros are chosen from its size.

    Parameters
    ----------
    ctas : int
        CTAs of every kernel that reaches peers.
    unroll : int
        Vectors a thread has in flight.
    threads : int
        Threads of a CTA.
    form : "", "read", "turns" or "push"
        How peers' parts of a sum come (see `Variant`); "" is chosen from the size.
    """

    ctas: int = 0
    unroll: int = 0
    threads: int = 0
    form: Form | Literal[""] = ""


def chosen_threads(source: CudaSource, tuning: Tuning, processors: int) -> int:
    """512; fewer where not every processor would get so many: few elements are done sooner by many small CTAs.

    Over a list that is pushed 384: with 512 there are too few registers for where its tensors lie. A list of very many
    buffers has room in shared memory for few threads.
    """
    if not has_buckets(source.kernel):
        return tuning.threads or _threads_for(source, processors)
    pushes = chosen_form(source, tuning, processors) == "push"
    threads = tuning.threads or (384 if pushes else _threads_for(source, processors))
    return min(threads, max(1, RING_BYTES // ring_bytes(source.kernel, 32)) * 32)


def _threads_for(source: CudaSource, processors: int) -> int:
    shared = _vectors(source) // processors
    return 512 if shared >= 512 else 256 if shared >= 256 else 128


def chosen_form(source: CudaSource, tuning: Tuning, processors: int) -> Form:
    """Something else than reading where every thread has many vectors to do.

    Measured on H200s: links carry more as writes than as reads, which two ranks gain by; with more, reading from all
    and then writing to all gains 5 %.
    """
    may_push = bool(pushed(source.kernel, source.folding))
    if has_buckets(source.kernel):
        may_push = may_push and (
            ring_bytes(source.kernel, tuning.threads or 512, source.kernel.space.ranks) <= RING_BYTES
        )
    if tuning.form:
        return tuning.form if tuning.form != "push" or may_push else "read"
    if not _is_long(source, processors):
        return "read"
    if source.kernel.space.ranks > 2:
        return "turns"
    return "push" if may_push else "read"


def reserved_staging_bytes(source: CudaSource, processors: int) -> int:
    """Staging for a launch with as many threads as rounds use, 1,024 a processor, where each has a vector at least."""
    if not pushed(source.kernel, source.folding) or _vectors(source) < 1024 * processors:
        return 0
    return staging_bytes(source, 2 * processors, 512, 1)


def _is_long(source: CudaSource, processors: int) -> bool:
    """Whether every thread has many vectors to do."""
    return _vectors(source) >= 8 * 512 * processors


def chosen_unroll(source: CudaSource, tuning: Tuning, processors: int) -> int:
    """Two vectors in flight where every thread has several to do, else one; in rounds one, with twice the threads."""
    if tuning.unroll:
        return tuning.unroll
    in_rounds = chosen_form(source, tuning, processors) == "push"
    return 2 if _is_long(source, processors) and not in_rounds else 1


def wanted_ctas(source: CudaSource, tuning: Tuning, unroll: int, processors: int) -> int:
    """CTAs before it is known how many fit: one pass over the elements, at most two CTAs a processor with peers."""
    reaches_peers = source.kernel.has_peers or bool(source.kernel.accumulators)
    if tuning.ctas and reaches_peers:
        return min(tuning.ctas, MAX_CTAS)
    passes = -(-_vectors(source) // (chosen_threads(source, tuning, processors) * unroll))
    return max(1, min(passes, *((processors * 2, MAX_CTAS) if reaches_peers else (processors * 16,))))


def _vectors(source: CudaSource) -> int:
    """Vectors of the largest rank's part."""
    return -(-walk(source.kernel, 0).total // source.folding.width)
