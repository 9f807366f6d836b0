"""One element's arithmetic as CUDA expressions: every operation rounds once to its dtype (design §4a, 11).

A 16-bit register is a float that holds a 16-bit value; INT ones wrap around.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from coconet_lab.errors import CodegenError
from coconet_lab.ir.dtypes import FP32, FP64, INT32, DType
from coconet_lab.ir.rounding import literal
from coconet_lab.kernels.cuda_abi import C_TYPES

# What the exact operations are in C; float ones get their rounding afterwards.
_FLOAT_INFIX = {"Add": "+", "Sub": "-", "Mul": "*", "Div": "/"}
_INTEGER_CALLS = {"Add": "plus", "Sub": "minus", "Mul": "times"}
_COMPARE = {"Less": "<", "LessEqual": "<=", "Greater": ">", "GreaterEqual": ">=", "Equal": "==", "NotEqual": "!="}
_CALLS = {"Sqrt": "sqrt", "Exp": "exp", "Log": "log", "Tanh": "tanh", "Erf": "erf"}
_CUSTOM_NAMES = frozenset({"abs", "sqrt", "exp", "log", "tanh", "erf", "min", "max"})
_OPERATORS: dict[type[ast.operator], str] = {ast.Add: "Add", ast.Sub: "Sub", ast.Mult: "Mul", ast.Div: "Div"}


def register_type(dtype: DType) -> str:
    """The C type of a register: 16-bit types are computed in float."""
    return "float" if dtype.itemsize == 2 else C_TYPES[dtype]


def rounded_to(dtype: DType, expression: str) -> str:
    """`expression` of the register type, rounded to the dtype."""
    return f"rounded<{C_TYPES[dtype]}>({expression})" if dtype.itemsize == 2 else expression


def number(value: float | int, dtype: DType) -> str:
    """A constant as its dtype holds it, written exactly."""
    held: Any = literal(value, dtype)
    if not dtype.is_float:
        whole = int(held)
        if whole == np.iinfo(dtype.numpy).min:
            return f"({whole + 1}{'' if dtype == INT32 else 'll'} - 1)"
        return f"{whole}" if dtype == INT32 else f"{whole}ll"
    exact = float(held)
    if math.isnan(exact):
        return "__longlong_as_double(0x7FF8000000000000ll)" if dtype == FP64 else "__int_as_float(0x7FC00000)"
    if math.isinf(exact):
        sign = "-" if exact < 0 else ""
        return sign + ("__longlong_as_double(0x7FF0000000000000ll)" if dtype == FP64 else "__int_as_float(0x7F800000)")
    # repr() of the wide value is the shortest text that gives it back; float32 ones are exact in it.
    text = repr(exact)
    text = text if any(c in text for c in ".en") else f"{text}.0"
    return text if dtype == FP64 else f"{text}f"


def apply(fn: str, args: tuple[str, ...], kinds: tuple[DType, ...], out: DType) -> str:
    """An operation of the table `ir.ops.POINTWISE` over registers.

    Parameters
    ----------
    args : tuple of str
        Names of the registers.
    kinds : tuple of DType
        Their dtypes.
    out : DType
        The result's dtype.
    """
    kind = kinds[0]
    if fn in _COMPARE:
        return f"{args[0]} {_COMPARE[fn]} {args[1]} ? 1 : 0"
    if fn == "Where":
        return f"{args[0]} != 0 ? {args[1]} : {args[2]}"
    if fn in ("Maximum", "Minimum"):
        return f"{'larger' if fn == 'Maximum' else 'smaller'}({args[0]}, {args[1]})"
    if fn == "Copy":
        return args[0]
    if fn == "Neg":
        return f"-{args[0]}" if kind.is_float else f"minus({register_type(kind)}(0), {args[0]})"
    if fn == "Abs":
        absolute = f"fabs({args[0]})" if kind == FP64 else f"fabsf({args[0]})"
        wrapped = f"({args[0]} < 0 ? minus({register_type(kind)}(0), {args[0]}) : {args[0]})"
        return absolute if kind.is_float else wrapped
    if not kind.is_float and fn in _INTEGER_CALLS:
        return f"{_INTEGER_CALLS[fn]}({args[0]}, {args[1]})"
    if kind.is_float and fn in _FLOAT_INFIX:
        return rounded_to(out, f"{args[0]} {_FLOAT_INFIX[fn]} {args[1]}")
    suffix = "" if kind == FP64 else "f"
    if kind.is_float and fn in _CALLS:
        return rounded_to(out, f"{_CALLS[fn]}{suffix}({args[0]})")
    if kind.is_float and fn == "Pow":
        return rounded_to(out, f"pow{suffix}({args[0]}, {args[1]})")
    raise CodegenError(
        f"no CUDA form for {fn} on {kind}",
        rule="the kernel IR's operations are those of ir.ops.POINTWISE",
        where="the CUDA printer",
        hint='s.code("cpu"), or a cast first',
    )


def convert(arg: str, source: DType, target: DType) -> str:
    """A cast of the language: to 16 bits through float, floats to integers toward zero."""
    if source == target:
        return arg
    if source.is_float and not target.is_float:
        return f"{'to_int' if target == INT32 else 'to_i64'}({arg})"
    kind = register_type(target)
    return rounded_to(target, arg if register_type(source) == kind else f"({kind}){arg}")


def custom(expression: str, args: tuple[str, ...], out: DType) -> str:
    """A custom operator's expression over registers, computed in the compute type, rounded once.

    Raises
    ------
    CodegenError
        Anything but numbers, operands, ``+ - * /`` and the functions that custom operators may use.
    """
    try:
        tree = ast.parse(re.sub(r"\{(\d+)\}", r"_\1", expression).strip(), mode="eval").body
    except SyntaxError:
        raise _refused(expression, "is no expression") from None
    return rounded_to(out, _custom(tree, args, out, expression))


def _custom(node: ast.AST, args: tuple[str, ...], out: DType, whole: str) -> str:
    """Every part parenthesised, every number of the compute type: C's own promotions never apply."""
    suffix = "" if out == FP64 else "f"
    match node:
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS and (
            out.is_float or not isinstance(op, ast.Div)
        ):
            a, b, fn = _custom(left, args, out, whole), _custom(right, args, out, whole), _OPERATORS[type(op)]
            return f"({a} {_FLOAT_INFIX[fn]} {b})" if out.is_float else f"{_INTEGER_CALLS[fn]}({a}, {b})"
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return f"({apply('Neg', (_custom(operand, args, out, whole),), (out,), out)})"
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _custom(operand, args, out, whole)
        case ast.Constant(value=int() | float() as value):
            return number(value, FP32 if out.itemsize == 2 else out)
        case ast.Name(id=name) if re.fullmatch(r"_\d+", name) and int(name[1:]) < len(args):
            return args[int(name[1:])]
        case ast.Call(func=ast.Name(id=name), args=given, keywords=[]) if name in _CUSTOM_NAMES:
            inner = tuple(_custom(child, args, out, whole) for child in given)
            if name in ("min", "max") and len(inner) == 2:
                return f"{'smaller' if name == 'min' else 'larger'}({inner[0]}, {inner[1]})"
            if len(inner) == 1 and name == "abs":
                return f"({apply('Abs', inner, (out,), out)})"
            if len(inner) == 1 and name not in ("min", "max") and out.is_float:
                return f"{name}{suffix}({inner[0]})"
            raise _refused(whole, f"calls {name} of {len(inner)}")
        case _:
            raise _refused(whole, f"has {type(node).__name__}")


def _refused(expression: str, found: str) -> CodegenError:
    return CodegenError(
        f"no CUDA form for the kernel expression {expression!a}: it {found}",
        rule="an expression has {0}, {1}, …, numbers, + - * / and abs, sqrt, exp, log, tanh, erf, min, max",
        where="the CUDA printer",
        hint='expression="min(max({0}, 0), 1)"',
    )


def accumulator_type(dtype: DType) -> str:
    """Wide type of a reduction's partial results."""
    return "double" if dtype.is_float else "i64"


_FOLDS: dict[str, str] = {"sum": "Sum", "mean": "Sum", "norm": "Sum", "max": "Max", "min": "Min", "+": "Sum"}


def fold_of(fn: str) -> str:
    """The prelude's struct that adds, or picks the larger or smaller."""
    return _FOLDS[fn]


def contribution(fn: str, arg: str, dtype: DType) -> str:
    """What one element brings to a reduction, in its wide type."""
    wide = f"({accumulator_type(dtype)}){arg}"
    return f"{wide} * {wide}" if fn == "norm" else wide


def finished(fn: str, whole: str, count: str, dtype: DType) -> str:
    """The reduction's result, rounded once, from its combined partial results."""
    if fn == "norm":
        whole = f"sqrt({whole})"
    if fn == "mean":
        whole = f"{whole} / (double){count}"
    return f"Narrow<{C_TYPES[dtype]}>::of({whole})"


def combine_step(reduction: str, dtype: DType) -> Callable[[str, str], str]:
    """How two ranks' values are combined, in the compute type."""
    if reduction in ("max", "min"):
        name = "larger" if reduction == "max" else "smaller"
        return lambda a, b: f"{name}({a}, {b})"
    if dtype.is_float:
        return lambda a, b: f"{a} + {b}"
    return lambda a, b: f"plus({a}, {b})"
