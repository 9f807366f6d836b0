"""exp, log, tanh and erf that LLVM vectorises: float32 results from float64 polynomials, within an ulp; no calls.

The C library's functions are as exact but one call an element, and a loop with a call in it stays scalar. float64 ones
and powers are the C library's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from coconet_lab.kernels.numba_runtime import choose, maximum, minimum

exp_f64, log_f64, tanh_f64, erf_f64 = math.exp, math.log, math.tanh, math.erf
power_f32 = power_f64 = math.pow
sqrt_f32 = sqrt_f64 = math.sqrt

_I64, _F64 = ir.IntType(64), ir.DoubleType()
_Built = tuple[Any, Callable[..., Any]]
_SHIFT = 1.5 * 2.0**52  # added to a float64 it leaves the nearest integer in the last bits
_LOG2E, _LN2 = 1.4426950408889634, 0.6931471805599453
_HALF_ROOT_BITS = 0x3FE6A09E667F3BCD  # of the square root of 1/2


def _build_bits(typing_context: Any, value: Any) -> _Built:
    """The bits of a float64."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _I64)

    return types.int64(types.float64), build


_bits: Any = intrinsic(_build_bits)


def _build_double(typing_context: Any, bits: Any) -> _Built:
    """The float64 of these bits."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _F64)

    return types.float64(types.int64), build


_double: Any = intrinsic(_build_double)


def _polynomial(coefficients: Sequence[float]) -> Any:
    """A function of one float64: the polynomial by Horner's rule, lowest power first, without a loop."""

    def polynomial(typing_context: Any, value: Any) -> _Built:
        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            total = _F64(coefficients[-1])
            for coefficient in reversed(coefficients[:-1]):
                total = builder.fadd(builder.fmul(total, args[0]), _F64(coefficient))
            return total

        return types.float64(types.float64), build

    return intrinsic(polynomial)


_exp_series = _polynomial([1 / math.factorial(n) for n in range(13)])
_log_series = _polynomial([1 / (2 * n + 1) for n in range(9)])
_erf_series = _polynomial([(-1) ** n * 2 / math.sqrt(math.pi) / (math.factorial(n) * (2 * n + 1)) for n in range(19)])
# Chebyshev fit of log(erfc(x)·(1 + x/2)) + x² in t = 1/(1 + x/2) (Press et al., Numerical Recipes, 2nd ed., §6.2).
_erfc_series = _polynomial(
    [-1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398, 1.48851587, -0.82215223,
     0.17087277]
)  # fmt: skip


@njit(nogil=True, error_model="numpy", forceinline=True)
def _exp(x: float) -> Any:
    """exp for |x| < 700, to some 1e-13: 2**n times a polynomial in the rest."""
    shifted = x * _LOG2E + _SHIFT
    r = x - (shifted - _SHIFT) * _LN2
    p = _exp_series(r)
    return _double(_bits(p) + (_bits(shifted) << np.int64(52)))


@njit(nogil=True, error_model="numpy", forceinline=True)
def exp_f32(value: Any) -> Any:
    """e to the power of a float32."""
    return np.float32(_exp(maximum(minimum(np.float64(value), 100.0), -120.0)))


@njit(nogil=True, error_model="numpy", forceinline=True)
def log_f32(value: Any) -> Any:
    """The natural logarithm of a float32."""
    x = np.float64(value)
    bits = _bits(x)
    exponent = (bits - np.int64(_HALF_ROOT_BITS)) >> np.int64(52)
    m = _double(bits - (exponent << np.int64(52)))  # between the roots of 1/2 and 2
    s = (m - 1.0) / (m + 1.0)
    q = s * s
    found = np.float64(exponent) * _LN2 + 2.0 * s * _log_series(q)
    found = choose(np.int32(x < np.inf), found, x)
    found = choose(np.int32(x == 0.0), -np.inf, found)
    return np.float32(choose(np.int32(x < 0.0), np.nan, found))


@njit(nogil=True, error_model="numpy", forceinline=True)
def tanh_f32(value: Any) -> Any:
    """The hyperbolic tangent of a float32."""
    x = np.float64(value)
    wide = maximum(minimum(x, 20.0), -20.0)
    found = 1.0 - 2.0 / (_exp(2.0 * wide) + 1.0)
    small = x - x * x * x * (1 / 3)
    return np.float32(choose(np.int32(abs(x) < 1e-3), small, found))


@njit(nogil=True, error_model="numpy", forceinline=True)
def erf_f32(value: Any) -> Any:
    """The error function of a float32: a series near zero, beyond 1.5 one less a small rest."""
    x = np.float64(value)
    size = abs(x)
    near = minimum(size, 1.5)
    q = near * near
    series = near * _erf_series(q)
    far = minimum(size, 10.0)
    t = 1.0 / (1.0 + 0.5 * far)
    rest = t * _exp(_erfc_series(t) - far * far)
    found = choose(np.int32(size < 1.5), series, 1.0 - rest)
    return np.float32(choose(np.int32(x < 0.0), -found, found))
