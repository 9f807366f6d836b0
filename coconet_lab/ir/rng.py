"""Random numbers that depend on seed, stream and global element index alone: Philox4x32-10 (Salmon et al., SC'11)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from coconet_lab.ir.types import Range

Array = np.ndarray[Any, Any]

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
CHUNK_ELEMENTS = 2**20  # what is worked on at once: the words of a large tensor would need ten times its memory
_MASK = 0xFFFFFFFF


def philox(counter: Sequence[Any], key: tuple[int, int]) -> Array:
    """The four words of every counter, as uint32 with the words last.

    Parameters
    ----------
    counter : four integers or integer arrays
        The 32-bit counter words, broadcast together.
    key : two integers
        The 32-bit key words.

    Examples
    --------
    >>> [hex(word) for word in philox((0, 0, 0, 0), (0, 0))]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    words = np.broadcast_arrays(*(np.asarray(word, dtype=np.uint64) for word in counter))
    low, high = np.uint64(_MASK), np.uint64(32)
    c0, c1, c2, c3 = words
    k0, k1 = key
    for _ in range(ROUNDS):
        first, second = np.uint64(MULTIPLIERS[0]) * c0, np.uint64(MULTIPLIERS[1]) * c2
        c0, c2 = (second >> high) ^ c1 ^ np.uint64(k0), (first >> high) ^ c3 ^ np.uint64(k1)
        c1, c3 = second & low, first & low
        k0, k1 = (k0 + WEYL[0]) & _MASK, (k1 + WEYL[1]) & _MASK
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def random_words(seed: int, stream: int, indices: Array) -> Array:
    """One 32-bit word per element index: key = seed, counter = (index // 4, stream), word index % 4.

    Neighbouring elements share a call: four of them cost one.
    """
    flat = np.asarray(indices, dtype=np.int64).ravel()
    found = np.empty(flat.shape, np.uint32)
    for start in range(0, flat.size, CHUNK_ELEMENTS):
        part = slice(start, start + CHUNK_ELEMENTS)
        found[part] = _words(seed, stream, flat[part])
    return found.reshape(np.shape(indices))


def _words(seed: int, stream: int, flat: Array) -> Array:
    if flat.size and (np.diff(flat) == 1).all():  # one run: no index has to be looked up
        first = int(flat[0])
        calls = np.arange(first // 4, int(flat[-1]) // 4 + 1, dtype=np.int64)
        return _called(seed, stream, calls).ravel()[first % 4 :][: flat.size]
    # Indices of a block come in runs, so neighbours that share a call stand together.
    blocks = flat // 4
    starts = np.flatnonzero(np.concatenate(([True], blocks[1:] != blocks[:-1])))
    words = _called(seed, stream, blocks[starts])
    call = np.repeat(np.arange(len(starts)), np.diff(np.concatenate((starts, [len(flat)]))))
    return np.asarray(words[call, flat % 4])


def _called(seed: int, stream: int, calls: Array) -> Array:
    """The four words of every call of a stream, the words last."""
    numbers = calls.view(np.uint64)
    counter = (numbers & np.uint64(_MASK), numbers >> np.uint64(32), stream & _MASK, (stream >> 32) & _MASK)
    return philox(counter, (seed & _MASK, (seed >> 32) & _MASK))


def keep_threshold(p: float) -> int:
    """Words below it drop their element: ⌊p·2³²⌋."""
    return math.floor(p * 2**32)


def dropout_keep(seed: int, stream: int, indices: Array, p: float) -> Array:
    """Which elements a dropout keeps, as booleans.

    Parameters
    ----------
    seed : int
        The 64-bit key; negative seeds count as their two's complement.
    stream : int
        64 bits that tell the dropouts of a program apart.
    indices : integer array
        Global flat indices of the elements.
    p : float
        Probability to drop, 0 <= p < 1.

    Examples
    --------
    >>> keep = dropout_keep(0, 7, np.arange(1000), 0.25)
    >>> bool(700 < keep.sum() < 800), bool((keep[500:] == dropout_keep(0, 7, np.arange(500, 1000), 0.25)).all())
    (True, True)
    """
    return np.asarray(random_words(seed, stream, indices) >= keep_threshold(p))


def flat_indices(shape: Sequence[int], ranges: Sequence[Range]) -> Array:
    """Global flat index of every element of a block, in the block's shape."""
    total = np.zeros((), np.int64)
    stride = 1
    for dim in reversed(range(len(shape))):
        start, stop = ranges[dim]
        along = np.arange(start, stop, dtype=np.int64) * stride
        total = total + along.reshape((-1,) + (1,) * (len(shape) - 1 - dim))
        stride *= shape[dim]
    return np.asarray(total)
