"""Operators the language does not have: a name, a type rule, a meaning in NumPy, and how it runs (paper §2.5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from coconet_lab.arguments import refusal, text
from coconet_lab.errors import ProgramError
from coconet_lab.ir import ops as o
from coconet_lab.ir.expression import HINT, parse
from coconet_lab.ir.types import TensorType
from coconet_lab.lang.value import Value, make, operand
from coconet_lab.site import caller_site


def operator(
    name: str,
    *,
    meaning: Callable[..., np.ndarray[Any, Any]],
    infer: Callable[..., TensorType] | None = None,
    expression: str | None = None,
    call: Callable[..., np.ndarray[Any, Any]] | None = None,
) -> Callable[..., Value]:
    """Make an operator: a function of Values that programs may use like any other.

    Parameters
    ----------
    name : str
        An identifier: it appears in drawings and made-up names.
    meaning : callable
        ``meaning(*arrays, ranges)``: this rank's operands cut to the result's block, and the block's global ranges.
    infer : callable or None
        ``infer(*types, ranks) -> TensorType``; None keeps the first operand's type.
    expression : str or None
        A kernel expression over ``{0}``, ``{1}``, … with + - * / and the functions abs, sqrt, exp, log, tanh, erf,
        min, max: the operator is pointwise and may be fused.
    call : callable or None
        A library call, as `meaning`, run by the engine where there is no expression; None runs `meaning`.

    Examples
    --------
    >>> import coconet_lab as cl
    >>> clamp = cl.operator("clamp", meaning=lambda x, ranges: x.clip(0, 1), expression="min(max({0}, 0), 1)")
    >>> clamp(cl.tensor("x", cl.FP32, (8,), cl.Local), name="y")
    y = clamp(x): FP32[8] Local
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise refusal("an operator's name", name, "it is an identifier", 'cl.operator("clamp", …)', ProgramError)
    for what, function in (("meaning", meaning), ("infer", infer), ("call", call)):
        if not callable(function) and (function is not None or what == "meaning"):
            raise refusal(f"{what} of operator {name!r}", function, "it is a function", f"{what}=function")
    if expression is not None:
        text(expression, f"the expression of operator {name!r}", hint=HINT)
        parse(expression, str(caller_site() or f"operator {name!r}"))
    made = o.CustomOperator(name, infer or _same_type, meaning, expression, call)

    def apply(*values: Any, name: str | None = None) -> Value:
        return make(o.Custom(name="", operator=made), tuple(operand(v) for v in values), name)

    apply.__name__ = name
    apply.__doc__ = meaning.__doc__
    apply.__dict__["operator"] = made  # what a saved program that names it is loaded with
    return apply


def _same_type(*types: TensorType, ranks: int | None) -> TensorType:
    from coconet_lab.ir.join import join

    return join("apply", [("", kind) for kind in types])
