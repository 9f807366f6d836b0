"""Whole arrays to float32 and back for library calls, as fast as memory; NumPy converts 16-bit types one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from coconet_lab.ir.dtypes import BF16, FP16, DType
from coconet_lab.ir.rounding import rounded
from coconet_lab.kernels.numba_runtime import (
    get_bf16,
    get_fp16,
    get_fp32,
    put_bf16,
    put_fp16,
    put_fp32,
    to_bf16,
    to_fp16,
)

Array = np.ndarray[Any, Any]


@njit(nogil=True, cache=True)
def _widen_fp16(source: int, target: int, count: int) -> None:
    for i in range(count):
        put_fp32(target, i, get_fp16(source, i))


@njit(nogil=True, cache=True)
def _widen_bf16(source: int, target: int, count: int) -> None:
    for i in range(count):
        put_fp32(target, i, get_bf16(source, i))


@njit(nogil=True, cache=True)
def _narrow_fp16(source: int, target: int, count: int) -> None:
    for i in range(count):
        put_fp16(target, i, to_fp16(get_fp32(source, i)))


@njit(nogil=True, cache=True)
def _narrow_bf16(source: int, target: int, count: int) -> None:
    for i in range(count):
        put_bf16(target, i, to_bf16(get_fp32(source, i)))


def widen(source: Array, target: Array, dtype: DType) -> None:
    """A 16-bit array as float32, into `target` of the same shape, which is contiguous."""
    if not source.flags.c_contiguous:
        target[...] = source
    elif dtype == FP16:
        _widen_fp16(source.ctypes.data, target.ctypes.data, source.size)
    elif dtype == BF16:
        _widen_bf16(source.ctypes.data, target.ctypes.data, source.size)
    else:
        target[...] = source


def narrow(source: Array, target: Array, dtype: DType) -> None:
    """A float32 array rounded to a 16-bit dtype, into `target` of the same shape."""
    is_direct = source.dtype == np.float32 and source.flags.c_contiguous and target.flags.c_contiguous
    if is_direct and dtype == FP16:
        _narrow_fp16(source.ctypes.data, target.ctypes.data, source.size)
    elif is_direct and dtype == BF16:
        _narrow_bf16(source.ctypes.data, target.ctypes.data, source.size)
    elif dtype.is_float:
        target[...] = rounded(source, dtype)
    else:
        target[...] = source.astype(dtype.numpy)
