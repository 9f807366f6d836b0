"""The elementwise functions of the language in NumPy, each rounded once (design §4a, 10-11)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from coconet_lab.ir.dtypes import INT32, DType
from coconet_lab.ir.rounding import contiguous, rounded

Array = np.ndarray[Any, Any]
Function = Callable[..., Array]

_erf = np.frompyfunc(math.erf, 1, 1)


def erf(x: Array) -> Array:
    """The error function in float64."""
    return np.asarray(_erf(x.astype(np.float64)), dtype=np.float64)


def _in_compute_type(function: Any) -> Function:
    """16-bit values in float32, others in their own type; rounded once."""

    def apply(dtype: DType, *arrays: Array) -> Array:
        wide = (np.asarray(array).astype(dtype.compute) for array in arrays)
        return rounded(np.asarray(function(*wide)), dtype)

    return apply


def _in_float64(function: Any) -> Function:
    """For the functions a device computes within 8 ulp: the oracle is as near as float64 gets, rounded once."""

    def apply(dtype: DType, *arrays: Array) -> Array:
        # Contiguous, so that one code path computes an element wherever it lies.
        wide = (contiguous(np.asarray(array).astype(np.float64)) for array in arrays)
        return rounded(np.asarray(function(*wide)), dtype)

    return apply


def _comparison(function: Any) -> Function:
    """INT32 1 where it holds, else 0; NaN compares as in IEEE 754."""

    def apply(dtype: DType, *arrays: Array) -> Array:
        wide = (np.asarray(array).astype(dtype.compute) for array in arrays)
        return np.asarray(function(*wide)).astype(INT32.numpy)

    return apply


def _where(dtype: DType, condition: Array, a: Array, b: Array) -> Array:
    return np.asarray(np.where(condition != 0, a, b)).astype(dtype.numpy)


FUNCTIONS: dict[str, Function] = {
    "Add": _in_compute_type(np.add),
    "Sub": _in_compute_type(np.subtract),
    "Mul": _in_compute_type(np.multiply),
    "Div": _in_compute_type(np.divide),
    "Maximum": _in_compute_type(np.maximum),
    "Minimum": _in_compute_type(np.minimum),
    "Neg": _in_compute_type(np.negative),
    "Abs": _in_compute_type(np.abs),
    "Sqrt": _in_compute_type(np.sqrt),
    "Copy": _in_compute_type(np.positive),
    "Pow": _in_float64(np.power),
    "Exp": _in_float64(np.exp),
    "Log": _in_float64(np.log),
    "Tanh": _in_float64(np.tanh),
    "Erf": _in_float64(erf),
    "Less": _comparison(np.less),
    "LessEqual": _comparison(np.less_equal),
    "Greater": _comparison(np.greater),
    "GreaterEqual": _comparison(np.greater_equal),
    "Equal": _comparison(np.equal),
    "NotEqual": _comparison(np.not_equal),
    "Where": _where,
}
