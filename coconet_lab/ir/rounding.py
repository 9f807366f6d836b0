"""How values meet a dtype: one rounding per operation, casts, literals, poison, and when two arrays are the same."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from coconet_lab.ir.dtypes import BF16, DType

Array = np.ndarray[Any, Any]

# Neither small nor round, so that a poisoned integer shows in every sum it gets into.
_INTEGER_POISON = 0x5AD5_C0DE_5AD5_C0DE


def poison(dtype: DType) -> Any:
    """What storage holds before it is written: NaN, or a telling integer."""
    if dtype.is_float:
        return dtype.numpy.type(np.nan)
    return dtype.numpy.type(_INTEGER_POISON & (2 ** (8 * dtype.itemsize) - 1))


def poisoned(shape: tuple[int, ...], dtype: DType) -> Array:
    """An array nothing has been written to."""
    return np.full(shape, poison(dtype), dtype.numpy)


def contiguous(values: Array) -> Array:
    """The same values in row-major memory; a scalar stays one, unlike with NumPy's own function of that purpose."""
    return np.asarray(values, order="C")


def rounded(values: Array, dtype: DType) -> Array:
    """Values of a wider type rounded once to `dtype`, to nearest even."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        if dtype == BF16 and values.dtype == np.float64:
            values = _to_odd(values)
        return contiguous(values).astype(dtype.numpy)


def _to_odd(values: Array) -> Array:
    """float64 to float32 with the last bit set where anything was cut off: a second rounding then errs nowhere."""
    near = values.astype(np.float32)
    back = near.astype(np.float64)
    away = np.abs(back) > np.abs(values)
    cut = np.where(away, np.nextafter(near, np.float32(0)), near)
    inexact = (cut.astype(np.float64) != values) & np.isfinite(values)
    bits = contiguous(cut).view(np.uint32) | inexact.astype(np.uint32)
    return np.asarray(bits.view(np.float32).reshape(values.shape))


def cast(values: Array, source: DType, dtype: DType) -> Array:
    """A cast of the language.

    To a 16-bit type through float32, the type such operations compute in. Floats become integers toward zero; what
    does not fit becomes the nearest integer that does, and NaN becomes 0.
    """
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        if source.is_float and not dtype.is_float:
            return _to_integer(values.astype(np.float64), dtype)
        if dtype.itemsize == 2:
            values = values.astype(np.float32)
        return np.asarray(values.astype(dtype.numpy))


def _to_integer(values: Array, dtype: DType) -> Array:
    limits = np.iinfo(dtype.numpy)
    whole = np.trunc(np.nan_to_num(values, nan=0.0, posinf=np.inf, neginf=-np.inf))
    top, bottom = whole >= float(limits.max), whole <= float(limits.min)
    result = np.where(top | bottom, 0.0, whole).astype(dtype.numpy)
    result = np.where(top, dtype.numpy.type(limits.max), result)
    return np.asarray(np.where(bottom, dtype.numpy.type(limits.min), result))


def literal(value: float, dtype: DType) -> Array:
    """A Python number as the other operand's dtype holds it."""
    if not dtype.is_float:
        return np.asarray(int(value)).astype(dtype.numpy)
    return rounded(np.asarray(value, np.float64), dtype)


def fits(value: Any, dtype: DType, *, whole: bool = True) -> bool:
    """Whether `dtype` holds a Python number: rounded where it has fractions, exactly where it has none.

    Parameters
    ----------
    value : number
    dtype : DType
    whole : bool
        False lets an integer dtype have a fraction beside it, as a bound is.
    """
    if -32768 <= value <= 32767 and (dtype.is_float or not whole or int(value) == value):
        return True
    try:
        if dtype.is_float:
            return not math.isinf(float(literal(value, dtype))) or math.isinf(value)
        limits = np.iinfo(dtype.numpy)
        return int(limits.min) <= int(value) <= int(limits.max) and (not whole or int(value) == value)
    except (OverflowError, ValueError):
        return False


def mismatch(found: Array, expected: Array, allowed: float = 0.0) -> tuple[int, ...] | None:
    """First index at which two arrays of one shape differ, or None.

    Where nothing is allowed the values must be equal: NaN equals NaN, and 0.0 equals -0.0 (the sign of a zero may
    depend on where a sum starts, which is free). Else they may be `allowed` apart; NaN and infinities must still be in
    the same places.
    """
    wrong = found != expected
    if wrong.any() and found.dtype.kind not in "iu":
        a, b = found.astype(np.float64), expected.astype(np.float64)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        if allowed:
            with np.errstate(invalid="ignore", over="ignore"):
                near = np.abs(a - b) <= allowed
            same |= near & np.isfinite(a) & np.isfinite(b)
        wrong = ~same
    if not wrong.any():
        return None
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape))


def allowance(expected: Array, dtype: DType) -> float:
    """How far values below an inexact reordered sum may be apart: 16 eps of the largest magnitude."""
    if not dtype.is_float:
        return 0.0
    magnitudes = np.abs(expected.astype(np.float64))
    finite = magnitudes[np.isfinite(magnitudes)]
    return 16 * dtype.eps * float(finite.max()) if finite.size else 0.0
