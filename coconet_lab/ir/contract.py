"""MatMul and Conv in NumPy: products summed in float64 in one order, rounded once.

The order of an element's sum must not depend on which block it lies in, or a slice of a product would differ in its
last bit from the product of slices. So sums run term by term over whole arrays; BLAS serves only where float64 is far
wider than the result and the arrays are large.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from coconet_lab.ir.dtypes import DType
from coconet_lab.ir.rounding import rounded

Array = np.ndarray[Any, Any]

LARGE_PRODUCTS = 2**24


def accumulator(dtype: DType) -> np.dtype[Any]:
    """What sums of a dtype are added in: float64, and int64 for integers, which then wrap."""
    return np.dtype(np.float64 if dtype.is_float else np.int64)


def matmul(a: Array, b: Array, dtype: DType) -> Array:
    """``A[…, K] @ B[K, N]``."""
    wide = accumulator(dtype)
    a, b = a.astype(wide), b.astype(wide)
    if dtype.itemsize < 8 and a.size * b.shape[1] > LARGE_PRODUCTS:
        return finished(np.matmul(a, b), dtype)
    total = np.zeros((*a.shape[:-1], b.shape[1]), wide)
    for k in range(b.shape[0]):
        total += a[..., k, None] * b[k]
    return finished(total, dtype)


def conv(x: Array, w: Array, stride: tuple[int, ...], padding: tuple[int, ...], dtype: DType) -> Array:
    """Cross-correlation of ``x[N, C, …]`` with ``w[O, C, …]``."""
    wide = accumulator(dtype)
    padded = np.pad(x.astype(wide), [(0, 0), (0, 0), *((p, p) for p in padding)])
    w = w.astype(wide)
    kernel = w.shape[2:]
    extents = [(n - k) // s + 1 for n, k, s in zip(padded.shape[2:], kernel, stride)]
    total = np.zeros((x.shape[0], w.shape[0], *extents), wide)
    spread = (slice(None), slice(None)) + (None,) * len(extents)
    for channel, *offset in itertools.product(range(w.shape[1]), *(range(k) for k in kernel)):
        window = tuple(slice(at, at + (n - 1) * s + 1, s) for at, n, s in zip(offset, extents, stride))
        weights = w[(None, slice(None), channel, *offset)][spread]
        total += padded[(slice(None), slice(channel, channel + 1), *window)] * weights
    return finished(total, dtype)


def finished(total: Array, dtype: DType) -> Array:
    """A wide sum rounded once; integers wrap."""
    return rounded(total, dtype) if dtype.is_float else np.asarray(total.astype(dtype.numpy))
