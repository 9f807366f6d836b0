"""Tensors, scalars and the operations a rank does by itself (paper §§2.1-2.2)."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

from coconet_lab.arguments import number, refusal, whole
from coconet_lab.errors import LayoutError, ProgramError
from coconet_lab.ir import ops as o
from coconet_lab.ir.dtypes import DType
from coconet_lab.ir.layout import Layout, Replicated
from coconet_lab.ir.types import BUCKET_ELEMENTS, TensorType
from coconet_lab.lang.checks import (
    bad_input,
    check_bounds,
    check_dtype,
    check_layout,
    counted_dim,
    each,
    extents_of,
    plain,
    several,
)
from coconet_lab.lang.value import Value, make, operand, pointwise
from coconet_lab.site import caller_site


def tensor(
    name: str,
    dtype: DType,
    shape: Sequence[int] | Sequence[Sequence[int]],
    layout: Layout,
    *,
    group: int = 0,
    low: float | None = None,
    high: float | None = None,
    bucket: int = BUCKET_ELEMENTS,
) -> Value:
    """An input of a program.

    Parameters
    ----------
    name : str
    dtype : DType
    shape : sequence of int, or sequence of shapes
        Global shape. A list of shapes makes a list value: its tensors counted end to end, Sliced(0) at most, cut among
        ranks at borders of `bucket` elements (paper §5.4). In memory they lie apart, and are used where they lie.
    layout : Local, Replicated or Sliced(dim)
    group : int
        The process group it lives in.
    low, high : float or None
        Values a run accepts, and where ``check()`` draws from.

    Raises
    ------
    ProgramError
        No name, a shape that is none, or a sliced dim the shape does not have.

    Examples
    --------
    >>> import coconet_lab as cl
    >>> cl.tensor("x", cl.FP16, (8, 1024, 3072), cl.Sliced(2))
    x = Tensor: FP16[8, 1024, 3072] Sliced(2)
    """
    check_dtype(dtype)
    check_layout(layout)
    whole(group, "a process group", hint="group=0")
    whole(bucket, "the elements of a bucket", least=1, hint="bucket=1024")
    dims: list[Any] = list(shape) if isinstance(shape, Sequence) else [shape]
    pieces: tuple[tuple[int, ...], ...] = ()
    if dims and isinstance(dims[0], Sequence) and not isinstance(dims[0], str):
        pieces = tuple(extents_of(name, piece) for piece in dims)
        dims = [builtins.sum(math.prod(piece) for piece in pieces)]
    extents = extents_of(name, dims)
    if layout.is_sliced and not 0 <= (layout.dim or 0) < len(extents):
        raise bad_input(name, f"{layout} of a value with {len(extents)} dims", "a sliced dim is one of its dims")
    check_bounds(name, dtype, low, high)
    kind = TensorType(dtype, extents, layout, int(group), pieces, False, int(bucket))
    return _input(name, kind, low, high)


def scalar(
    name: str,
    dtype: DType,
    *,
    low: float | None = None,
    high: float | None = None,
    default: float | int | None = None,
) -> Value:
    """A zero-dimensional input that all ranks of all groups have; a new value needs no new kernel.

    Parameters
    ----------
    name : str
    dtype : DType
    low, high : float or None
        Values a run accepts, and where ``check()`` draws from.
    default : number or None
        The value where a run gives none.

    Examples
    --------
    >>> import coconet_lab as cl
    >>> cl.scalar("lr", cl.FP32, low=0.0, high=1.0)
    lr = Scalar: FP32[] Replicated
    """
    check_dtype(dtype)
    check_bounds(name, dtype, low, high, default)
    return _input(name, TensorType(dtype, (), Replicated, None), low, high, default)


def _input(name: str, kind: TensorType, low: float | None, high: float | None, default: float | None = None) -> Value:
    """An input; none may be called None, which means an unnamed value elsewhere."""
    if name is None:
        raise refusal("an input's name", name, "any non-empty string is a name", 'cl.tensor("x", …)')
    low, high, default = plain(low), plain(high), plain(default)
    return make(o.Input(name="", type=kind, low=low, high=high, default=default), (), name)


def matmul(a: Value, b: Value, *, name: str | None = None) -> Value:
    """``A[…, K] @ B[K, N]``: Sliced(last) @ Sliced(0) gives Local partial sums [paper §2.2]."""
    return make(o.MatMul(name=""), (operand(a), operand(b)), name)


def conv(
    x: Value, w: Value, *, stride: int | Sequence[int] = 1, padding: int | Sequence[int] = 0, name: str | None = None
) -> Value:
    """Cross-correlation of ``x[N, C, …]`` with ``w[O, C, …]``; channel- and batch-sliced forms as for `matmul`."""
    spatial = builtins.max(len(_value(x, "conv").shape) - 2, 0)
    strides, paddings = each("stride", stride, spatial), each("padding", padding, spatial)
    return make(o.Conv(name="", stride=strides, padding=paddings), (operand(x), operand(w)), name)


def add(a: Any, b: Any, *, name: str | None = None) -> Value:
    """a + b."""
    return pointwise("Add", a, b, name=name)


def sub(a: Any, b: Any, *, name: str | None = None) -> Value:
    """a - b."""
    return pointwise("Sub", a, b, name=name)


def mul(a: Any, b: Any, *, name: str | None = None) -> Value:
    """a * b."""
    return pointwise("Mul", a, b, name=name)


def div(a: Any, b: Any, *, name: str | None = None) -> Value:
    """a / b, correctly rounded; floating point only."""
    return pointwise("Div", a, b, name=name)


def pow(a: Any, b: Any, *, name: str | None = None) -> Value:
    """a to the power b, within 8 ulp."""
    return pointwise("Pow", a, b, name=name)


def neg(x: Any, *, name: str | None = None) -> Value:
    """-x."""
    return pointwise("Neg", x, name=name)


def abs(x: Any, *, name: str | None = None) -> Value:
    """|x|."""
    return pointwise("Abs", x, name=name)


def sqrt(x: Any, *, name: str | None = None) -> Value:
    """Square root, correctly rounded."""
    return pointwise("Sqrt", x, name=name)


def exp(x: Any, *, name: str | None = None) -> Value:
    """e to the power x, within 8 ulp."""
    return pointwise("Exp", x, name=name)


def log(x: Any, *, name: str | None = None) -> Value:
    """Natural logarithm, within 8 ulp."""
    return pointwise("Log", x, name=name)


def tanh(x: Any, *, name: str | None = None) -> Value:
    """Hyperbolic tangent, within 8 ulp."""
    return pointwise("Tanh", x, name=name)


def erf(x: Any, *, name: str | None = None) -> Value:
    """Error function, within 8 ulp."""
    return pointwise("Erf", x, name=name)


def maximum(a: Any, b: Any, *, name: str | None = None) -> Value:
    """The larger of two; NaN where either is."""
    return pointwise("Maximum", a, b, name=name)


def minimum(a: Any, b: Any, *, name: str | None = None) -> Value:
    """The smaller of two; NaN where either is."""
    return pointwise("Minimum", a, b, name=name)


def equal(a: Any, b: Any, *, name: str | None = None) -> Value:
    """INT32 1 where a equals b, else 0."""
    return pointwise("Equal", a, b, name=name)


def not_equal(a: Any, b: Any, *, name: str | None = None) -> Value:
    """INT32 1 where a differs from b, else 0."""
    return pointwise("NotEqual", a, b, name=name)


def where(condition: Any, a: Any, b: Any, *, name: str | None = None) -> Value:
    """a where the INT32 condition is not 0, else b."""
    return pointwise("Where", condition, a, b, name=name)


def copy(x: Value, *, name: str | None = None) -> Value:
    """The same value in storage of its own, as before an update."""
    return pointwise("Copy", x, name=name)


def relu(x: Value, *, name: str | None = None) -> Value:
    """max(x, 0)."""
    return pointwise("Maximum", x, 0, name=name)


def gelu(x: Value, *, name: str | None = None) -> Value:
    """x · Φ(x) by the error function."""
    return mul(0.5 * _value(x, "gelu"), 1 + erf(x * math.sqrt(0.5)), name=name)


def cast(x: Value, dtype: DType, *, name: str | None = None) -> Value:
    """x rounded to `dtype`; floats to integers toward zero."""
    check_dtype(dtype)
    return make(o.Cast(name="", dtype=dtype.name), (operand(x),), name)


def dropout(x: Value, p: float, *, name: str | None = None) -> Value:
    """Zero with probability `p`, else x/(1-p); the mask depends on seed, name and global index, never on the layout.

    The seed is the implicit INT64 scalar input ``seed`` (default 0).
    """
    chance = float(number(p, "a dropout's probability", hint="cl.dropout(x, 0.1)", error=LayoutError))
    return make(o.Dropout(name="", p=chance), (operand(x),), name)


def reduction(fn: str, x: Value, dim: int | Sequence[int] | None, name: str | None) -> Value:
    """Shared by sum, mean, max, min and norm."""
    extents = _value(x, fn).shape
    dims = None if dim is None else tuple(sorted(counted_dim(d, len(extents), fn) for d in several(dim)))
    if dims is not None and len(set(dims)) < len(dims):
        raise refusal(f"the dims of {fn}", dim, "each dim is reduced once", f"cl.{fn}(x, dim={dims[0]})", LayoutError)
    return make(o.Reduction(name="", fn=fn, dims=dims), (operand(x),), name)


def sum(x: Value, dim: int | Sequence[int] | None = None, *, name: str | None = None) -> Value:
    """Sum over `dim` (kept with extent 1) or everything (a scalar); across ranks where the dim is sliced."""
    return reduction("sum", x, dim, name)


def mean(x: Value, dim: int | Sequence[int] | None = None, *, name: str | None = None) -> Value:
    """Arithmetic mean, as `sum`."""
    return reduction("mean", x, dim, name)


def max(x: Value, dim: int | Sequence[int] | None = None, *, name: str | None = None) -> Value:
    """Largest element, NaN where there is one; as `sum`."""
    return reduction("max", x, dim, name)


def min(x: Value, dim: int | Sequence[int] | None = None, *, name: str | None = None) -> Value:
    """Smallest element, NaN where there is one; as `sum`."""
    return reduction("min", x, dim, name)


def norm(x: Value, dim: int | Sequence[int] | None = None, *, name: str | None = None) -> Value:
    """Euclidean norm, the square root of the sum of squares; as `sum`."""
    return reduction("norm", x, dim, name)


def update(target: Value, value: Value, *, name: str | None = None) -> Value:
    """Write `value` into the storage of `target`, an input or its newest version; the result is the new value.

    A Replicated tensor may be updated by its sliced form, whose result is then all_gathered in place (paper §3.2).
    """
    return make(o.Update(name=""), (operand(target), operand(value)), name)


def _value(x: Any, verb: str) -> Value:
    """`x`, if it is a Value: arrays and numbers have nothing to be reduced or convolved in a program."""
    if isinstance(x, Value):
        return x
    raise ProgramError(
        f"cannot take {verb} of a {type(x).__name__}",
        rule="it works on a Value; arrays are given to run()",
        where=str(caller_site() or ""),
        hint=f'cl.{verb}(cl.tensor("x", cl.FP32, shape, cl.Replicated))',
    )
