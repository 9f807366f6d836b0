"""How many CTAs a launch gets: enough to fill the GPU, never more than can all be there while they wait for peers."""

from __future__ import annotations

from dataclasses import dataclass

from coconet_lab.kernels.cuda_abi import MAX_CTAS
from coconet_lab.kernels.cuda_printer import CudaSource
from coconet_lab.kernels.cuda_space import walk


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
    defer : int
        1: stores to all ranks wait until the phase has read its peers; 0: they do not; -1: chosen from the size.
    """

    ctas: int = 0
    unroll: int = 0
    threads: int = 0
    defer: int = -1


def chosen_threads(source: CudaSource, tuning: Tuning, processors: int) -> int:
    """512; fewer where not every processor would get so many: few elements are done sooner by many small CTAs."""
    if tuning.threads:
        return tuning.threads
    shared = _vectors(source) // processors
    return 512 if shared >= 512 else 256 if shared >= 256 else 128


def chosen_defer(source: CudaSource, tuning: Tuning, processors: int) -> bool:
    """Where every thread has many vectors to do, and more than one peer to read and to write.

    Measured on H200s: reading and writing in turn gains 5 % on four; on two it costs Adam as much as it gains SGD.
    """
    if tuning.defer >= 0:
        return bool(tuning.defer)
    is_large = _vectors(source) >= 8 * processors * chosen_threads(source, tuning, processors)
    return is_large and source.kernel.space.ranks > 2


def chosen_unroll(source: CudaSource, tuning: Tuning, processors: int) -> int:
    """Two vectors in flight where every thread has several to do, else one."""
    if tuning.unroll:
        return tuning.unroll
    return 2 if _vectors(source) >= 8 * processors * chosen_threads(source, tuning, processors) else 1


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
