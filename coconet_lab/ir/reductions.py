"""Sum, mean, max, min and norm in NumPy: in float64, rounded once (design §4a, 12 and check())."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from coconet_lab.ir.contract import accumulator, finished
from coconet_lab.ir.dtypes import DType
from coconet_lab.ir.ops import Reduction
from coconet_lab.ir.types import TensorType

Array = np.ndarray[Any, Any]


def reduce_whole(op: Reduction, whole: Array, dtype: DType) -> Array:
    """Over some dims, which keep extent 1, or over all, which gives a scalar."""
    dims = tuple(range(whole.ndim)) if op.dims is None else op.dims
    return finished(_reduce(op.fn, whole, dims, op.dims is not None, dtype), dtype)


def reduce_list(fn: str, flat: Array, kind: TensorType) -> Array:
    """One scalar per tensor of a list value."""
    starts = kind.piece_starts()
    scalars = [_reduce(fn, flat[a:b], (0,), False, kind.dtype) for a, b in pairwise(starts)]
    return finished(np.asarray(scalars, dtype=accumulator(kind.dtype)), kind.dtype)


def _reduce(fn: str, values: Array, dims: tuple[int, ...], keep: bool, dtype: DType) -> Array:
    wide = values.astype(accumulator(dtype))
    if fn in ("max", "min"):
        # Of nothing: the value that any other replaces.
        initial = _least(wide.dtype, dtype) if fn == "max" else _greatest(wide.dtype, dtype)
        reduce = np.max if fn == "max" else np.min
        return np.asarray(reduce(wide, axis=dims, keepdims=keep, initial=initial))
    if fn == "norm":
        wide = wide * wide
    total = np.asarray(np.sum(wide, axis=dims, keepdims=keep))
    if fn == "mean":
        count = np.prod([values.shape[d] for d in dims], dtype=np.int64)
        return np.asarray(total / np.float64(count))
    return np.sqrt(total) if fn == "norm" else total


def _least(wide: np.dtype[Any], dtype: DType) -> Any:
    return wide.type(-np.inf) if dtype.is_float else wide.type(np.iinfo(dtype.numpy).min)


def _greatest(wide: np.dtype[Any], dtype: DType) -> Any:
    return wide.type(np.inf) if dtype.is_float else wide.type(np.iinfo(dtype.numpy).max)
