"""The kernel expression of a custom operator: what may stand in one, and what it computes in NumPy."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from coconet_lab.errors import LayoutError, ProgramError
from coconet_lab.ir.dtypes import DType
from coconet_lab.ir.elementwise import erf
from coconet_lab.ir.rounding import rounded

Array = np.ndarray[Any, Any]

RULE = "an expression has {0}, {1}, …, numbers, + - * / and abs, sqrt, exp, log, tanh, erf, min, max"
HINT = 'expression="min(max({0}, 0), 1)"'
_OPERATORS: dict[type[ast.operator], Any] = {
    ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply, ast.Div: np.divide,
}  # fmt: skip
_OF_ONE = {"abs": np.abs, "sqrt": np.sqrt, "exp": np.exp, "log": np.log, "tanh": np.tanh, "erf": erf}
_OF_TWO = {"min": np.minimum, "max": np.maximum}
_MOST_CHARACTERS = 4000  # deeper trees than such a text can have would end in Python's recursion limit


def parse(expression: str, where: str) -> ast.expr:
    """The tree of an expression, with ``{0}`` as the name ``_0``.

    Raises
    ------
    ProgramError
        Anything but operands, numbers and the operations of the rule.
    """
    try:
        if len(expression) > _MOST_CHARACTERS or "\n" in expression or re.search(r"\b_\d", expression):
            raise SyntaxError
        tree = ast.parse(re.sub(r"\{(\d+)\}", r"_\1", expression).strip(), mode="eval").body
        _check(tree, expression, where)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _refused(expression, "is no expression", where) from None
    return tree


def _check(node: ast.AST, whole: str, where: str) -> None:
    match node:
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            inner = [left, right]
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            inner = [operand]
        case ast.Constant(value=value) if type(value) in (int, float):
            inner = []
        case ast.Name(id=name) if re.fullmatch(r"_\d+", name):
            inner = []
        case ast.Call(func=ast.Name(id=name), args=given, keywords=[]) if name in _OF_ONE or name in _OF_TWO:
            if len(given) != (1 if name in _OF_ONE else 2):
                raise _refused(whole, f"calls {name} with {len(given)} arguments", where)
            inner = list(given)
        case _:
            raise _refused(whole, f"has {type(node).__name__}", where)
    for child in inner:
        _check(child, whole, where)


def check_operands(name: str, expression: str, count: int, dtype: DType) -> None:
    """Refuse an expression that reads operands there are not, or divides what is no float."""
    tree = parse(expression, f"operator {name!r}")
    highest = max((int(n.id[1:]) for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id[0] == "_"), default=-1)
    if highest >= count:
        raise LayoutError(
            f"the expression of {name!r} reads {{{highest}}}, and it was given {count} operand" + "s" * (count != 1),
            rule="operands count from {0}",
            hint=HINT,
        )
    fractions = any(
        isinstance(n, ast.Div) or (isinstance(n, ast.Name) and n.id in _OF_ONE and n.id != "abs")
        for n in ast.walk(tree)
    )
    if fractions and not dtype.is_float:
        raise LayoutError(
            f"the expression of {name!r} divides or takes a function of {dtype}",
            rule="/ on integers is refused, and so are roots and exponentials",
            hint="cast the operand to FP32 first",
        )


def evaluate(expression: str, arrays: Sequence[Array], dtype: DType) -> Array:
    """What a kernel computes: in the compute type, rounded once.

    Examples
    --------
    >>> from coconet_lab.ir.dtypes import FP32
    >>> evaluate("min({0}, 1)", [np.float32([0.5, 2.0])], FP32)
    array([0.5, 1. ], dtype=float32)
    """
    wide = [np.asarray(array).astype(dtype.compute) for array in arrays]
    with np.errstate(all="ignore"):
        found = np.asarray(_value(parse(expression, "an operator"), wide, dtype))
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    return np.broadcast_to(rounded(found.astype(dtype.compute), dtype), shape)


def _value(node: ast.AST, arrays: Sequence[Array], dtype: DType) -> Any:
    match node:
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left, arrays, dtype), _value(right, arrays, dtype))
        case ast.UnaryOp(op=op, operand=operand):
            inner = _value(operand, arrays, dtype)
            return -inner if isinstance(op, ast.USub) else inner
        case ast.Constant(value=int() | float() as value):
            return dtype.compute.type(value)
        case ast.Name(id=name):
            return arrays[int(name[1:])]
        case ast.Call(func=ast.Name(id=name), args=given):
            function: Any = _OF_ONE.get(name) or _OF_TWO[name]
            return np.asarray(function(*(_value(a, arrays, dtype) for a in given))).astype(dtype.compute)
    raise AssertionError(node)  # `parse` lets nothing else through


def _refused(expression: str, found: str, where: str) -> ProgramError:
    shown = ascii(expression if len(expression) <= 60 else f"{expression[:59]}…")
    return ProgramError(f"the expression {shown} {found}", rule=RULE, where=where, hint=HINT)
