"""The Python expression of every elementwise operation, typed so that Numba widens nothing."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Sequence

import numpy as np

from coconet_lab.errors import CodegenError
from coconet_lab.ir.dtypes import BF16, FP16, FP64, INT32, INT64, DType
from coconet_lab.ir.rounding import literal

_BINARY = {"Add": "+", "Sub": "-", "Mul": "*", "Div": "/"}
_COMPARE = {"Less": "<", "LessEqual": "<=", "Greater": ">", "GreaterEqual": ">=", "Equal": "==", "NotEqual": "!="}
_CALLS = {
    "Sqrt": "sqrt", "Exp": "exp", "Log": "log", "Tanh": "tanh", "Erf": "erf", "Pow": "power",
    "Maximum": "maximum", "Minimum": "minimum",
}  # fmt: skip
_EXACT = frozenset({"Maximum", "Minimum", "Neg", "Abs", "Copy", "Where"})
_FUNCTIONS = {"abs": "abs", "sqrt": "sqrt", "exp": "exp", "log": "log", "tanh": "tanh", "erf": "erf",
              "min": "minimum", "max": "maximum"}  # fmt: skip
_OPERATORS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


def suffix(dtype: DType) -> str:
    """The end of the names of a dtype's functions: ``get_fp16``."""
    return dtype.name.lower()


def held(dtype: DType) -> str:
    """The Numba type that holds a dtype in a register."""
    return {FP64: "f64", INT32: "i32", INT64: "i64"}.get(dtype, "f32")


def rounded(text: str, dtype: DType) -> str:
    """An expression of the compute type, rounded to `dtype`."""
    if dtype in (FP16, BF16):
        return f"to_{suffix(dtype)}({text})"
    return f"i32({text})" if dtype == INT32 else text


def number(value: float, dtype: DType) -> str:
    """A constant as `dtype` holds it."""
    exact = literal(value, dtype)
    if not dtype.is_float:
        return f"{held(dtype)}({int(exact)})"
    wide = float(exact.astype(np.float64))
    if math.isnan(wide):
        return f"{held(dtype)}(np.nan)"
    if math.isinf(wide):
        return f"{held(dtype)}({'-' if wide < 0 else ''}np.inf)"
    return f"{held(dtype)}({wide!r})"


def apply(fn: str, args: Sequence[str], dtype: DType) -> str:
    """`fn` of `POINTWISE` over registers of `dtype`, rounded once."""
    if fn in _COMPARE:
        return f"i32({args[0]} {_COMPARE[fn]} {args[1]})"
    if fn in _BINARY and (dtype.is_float or fn != "Div"):
        return rounded(f"{args[0]} {_BINARY[fn]} {args[1]}", dtype)
    if fn in _CALLS and (dtype.is_float or fn in _EXACT):
        text = f"{_function(_CALLS[fn], dtype)}({', '.join(args)})"
        return text if fn in _EXACT else rounded(text, dtype)
    simple = {"Neg": "-{0}", "Abs": "abs({0})", "Copy": "{0}", "Where": "choose({0}, {1}, {2})"}
    if fn in simple:
        text = simple[fn].format(*args)
        return f"i32({text})" if dtype == INT32 and fn in ("Neg", "Abs") else text
    raise CodegenError(
        f"no CPU form for {fn} of {dtype}",
        rule="a kernel computes the operations of POINTWISE, division and roots for floating point alone",
        hint="cast to FP32 first",
    )


def convert(text: str, source: DType, target: DType) -> str:
    """A cast of the language: to 16-bit types through float32, to integers toward zero."""
    if target in (FP16, BF16):
        wide = text if held(source) == "f32" else f"f32({text})"
        return wide if source == target else f"to_{suffix(target)}({wide})"
    if source.is_float and not target.is_float:
        return f"to_{suffix(target)}({text})"
    return text if held(source) == held(target) else f"{held(target)}({text})"


def finished(text: str, dtype: DType) -> str:
    """A float64 rounded once to `dtype`, as a float64 again."""
    if dtype in (FP16, BF16):
        return f"f64(to_{suffix(dtype)}(to_odd({text})))"
    return text if dtype == FP64 else f"f64(f32({text}))"


def combined(terms: Sequence[str], reduction: str, dtype: DType) -> str:
    """The ranks' elements in rank order: sums in the compute type, rounded once."""
    if reduction == "+":
        text = terms[0]
        for term in terms[1:]:
            text = f"i32({text} + {term})" if dtype == INT32 else f"{text} + {term}"
        return rounded(text, dtype) if dtype in (FP16, BF16) else text
    text = terms[0]
    for term in terms[1:]:
        text = f"{'maximum' if reduction == 'max' else 'minimum'}({text}, {term})"
    return text


def call(expression: str, args: Sequence[str], dtype: DType) -> str:
    """A custom operator's expression over registers, computed in the compute type and rounded once."""
    names = re.sub(r"\{(\d+)\}", r"_\1", expression)
    try:
        tree = ast.parse(names.strip(), mode="eval").body
    except SyntaxError:
        raise _refused(expression, "is no expression") from None
    return rounded(_custom(tree, args, dtype, expression), dtype)


def _custom(node: ast.AST, args: Sequence[str], dtype: DType, whole: str) -> str:
    def inner(child: ast.AST) -> str:
        return _custom(child, args, dtype, whole)

    match node:
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            text = f"({inner(left)} {_OPERATORS[type(op)]} {inner(right)})"
            return f"i32{text}" if dtype == INT32 else text
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return f"{held(dtype)}(-{inner(operand)})"
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return inner(operand)
        case ast.Constant(value=int() | float() as value):
            return f"{held(dtype)}({value!r})"
        case ast.Name(id=name) if re.fullmatch(r"_\d+", name) and int(name[1:]) < len(args):
            return args[int(name[1:])]
        case ast.Call(func=ast.Name(id=name), args=given, keywords=[]) if name in _FUNCTIONS:
            return _folded(_function(_FUNCTIONS[name], dtype), [inner(a) for a in given], whole)
        case _:
            raise _refused(whole, f"has {type(node).__name__}")


def _function(name: str, dtype: DType) -> str:
    """The name of a function for the type that holds `dtype`."""
    return name if name in ("maximum", "minimum", "abs") else f"{name}_{held(dtype)}"


def _folded(name: str, args: Sequence[str], whole: str) -> str:
    """A call; min and max take two arguments or more, the others one."""
    if name not in ("maximum", "minimum"):
        if len(args) != 1:
            raise _refused(whole, f"calls {name} with {len(args)} arguments")
        return f"{name}({args[0]})"
    if len(args) < 2:
        raise _refused(whole, f"calls {name} with {len(args)} arguments")
    text = args[0]
    for arg in args[1:]:
        text = f"{name}({text}, {arg})"
    return text


def _refused(expression: str, found: str) -> CodegenError:
    return CodegenError(
        f"no CPU form for the kernel expression {expression!a}: it {found}",
        rule="an expression has {0}, {1}, …, numbers, + - * / and abs, sqrt, exp, log, tanh, erf, min, max",
        hint='expression="min(max({0}, 0), 1)"',
    )
