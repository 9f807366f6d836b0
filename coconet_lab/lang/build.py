"""From values to a program: names made up where there are none, exactly the ancestors of the outputs, checked."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from coconet_lab.arguments import is_whole, refusal
from coconet_lab.errors import ProgramError
from coconet_lab.ir import ops as o
from coconet_lab.ir.dtypes import INT64, DType
from coconet_lab.ir.layout import Layout, Replicated
from coconet_lab.ir.program import Program, retyped
from coconet_lab.ir.types import TensorType
from coconet_lab.ir.verify import check_ranks, verify
from coconet_lab.lang.checks import check_bounds, check_dtype, check_layout, check_name, several
from coconet_lab.lang.compute import scalar, tensor
from coconet_lab.lang.value import Value
from coconet_lab.site import caller_site

SEED = "seed"


def program(
    name: str | Callable[..., Any] | None = None,
    *,
    inputs: Sequence[Value] | None = None,
    outputs: Sequence[Value] | Value | None = None,
    ranks: int = 1,
    groups: int = 1,
    names: Mapping[str, Any] | None = None,
) -> Any:
    """Freeze values into a Program: exactly the ancestors of `outputs`, on `ranks` ranks.

    Parameters
    ----------
    name : str
        The program's name; or, as ``@cl.program(ranks=4)``, nothing: see Notes.
    inputs : sequence of Value or None
        All leaves, in the order users see them; None takes the leaves as they are met.
    outputs : Value or sequence of Value
    ranks, groups : int
        R processes in Q groups of R/Q consecutive ranks.
    names : mapping or None
        ``locals()``: values without a name take the variable's.

    Raises
    ------
    ProgramError
        A leaf missing from `inputs`, an input nothing reaches, two values of one name, a group that does not exist,
        an update that is read or written wrongly.
    LayoutError
        A sliced dim that does not divide among the ranks.

    Notes
    -----
    On a function, parameters become inputs (annotated with `spec`), local variables names, the result the outputs,
    and keyword-only arguments sizes: ``prog(B=16)`` writes the program again.

    Examples
    --------
    >>> import coconet_lab as cl
    >>> g = cl.tensor("g", cl.FP32, (8,), cl.Local)
    >>> cl.program("sum", inputs=[g], outputs=[cl.all_reduce(g, name="total")], ranks=4)
    sum: 2 ops, 4 ranks
      g = Tensor            FP32[8] Local
      total = AllReduce(g)  FP32[8] Replicated
      outputs total
    """
    if callable(name) and hasattr(name, "__name__"):
        return _from_function(name, ranks, groups, {})
    if outputs is None and (name is None or isinstance(name, str)):
        return lambda function: _from_function(function, ranks, groups, {}, name)
    check_name(name, 'cl.program("adam", …)')
    wanted = [outputs] if isinstance(outputs, Value) else _values("outputs", outputs)
    listed = None if inputs is None else _values("inputs", inputs)
    if names is not None and not isinstance(names, Mapping):
        raise refusal("names", names, "names are a mapping of variables to values", "names=locals()")
    return _build(str(name), wanted, listed, ranks, groups, names or {})


def _values(what: str, given: Any) -> list[Value]:
    """Inputs or outputs as a list of Values."""
    found = list(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes | Value) else [given]
    wrong = [item for item in found if not isinstance(item, Value)]
    if wrong or (what == "outputs" and not found):
        raise refusal(what, wrong[0] if wrong else found, f"{what} are Values", f"{what}=[x, y]")
    return found


def _build(
    name: str, outputs: list[Value], inputs: list[Value] | None, ranks: int, groups: int, names: Mapping[str, Any]
) -> Program:
    ranks, groups = check_ranks(name, ranks, groups)
    order = list(_dependency_order(outputs))
    leaves = [v for v in order if isinstance(v.op, o.Input)]
    listed = leaves if inputs is None else inputs
    _check_inputs(name, leaves, listed)
    inner = set(leaves)
    called, made_up = _name_all(name, [*listed, *(v for v in order if v not in inner)], names)
    ops = _ops(order, listed, called, made_up)
    types = retyped(ops, {}, set(ops), ranks // groups)
    handles = {value.token: called[value] for value in called}
    result = Program(name, ops, types, tuple(called[v] for v in outputs), ranks, groups, handles=handles)
    verify(result)
    return result


def _dependency_order(outputs: Sequence[Value]) -> Iterator[Value]:
    """Ancestors of `outputs`, operands before readers, left to right; iterative, so depth does not matter."""
    seen: set[Value] = set()
    stack: list[tuple[Value, bool]] = [(v, False) for v in reversed(outputs)]
    while stack:
        value, ready = stack.pop()
        if ready:
            yield value
        elif value not in seen:
            seen.add(value)
            stack.append((value, True))
            stack += [(v, False) for v in reversed(value.operands) if isinstance(v, Value) and v not in seen]


def _check_inputs(name: str, leaves: Sequence[Value], listed: Sequence[Value]) -> None:
    known, reached = set(listed), set(leaves)
    missing = [v for v in leaves if v not in known]
    if missing:
        raise ProgramError(
            f"program {name!r} reads {missing[0].name!r}, which is not among its inputs",
            rule="every tensor and scalar the outputs depend on is listed",
            where=str(missing[0].op.site or ""),
            hint=f"inputs=[…, {missing[0].name}]",
        )
    unread = [v for v in listed if v not in reached]
    if unread:
        raise ProgramError(
            f"program {name!r} lists input {unread[0].name!r}, which no output depends on",
            rule="an update or send counts only if an output depends on it: add it to outputs",
            where=str(caller_site() or ""),
            hint=f"leave {unread[0].name!r} out, or add what reads it to outputs",
        )


def _name_all(program_name: str, order: Sequence[Value], names: Mapping[str, Any]) -> tuple[dict[Value, str], set[str]]:
    """What every value is called, and which of these names the lab made up."""
    variables = {value: variable for variable, value in names.items() if isinstance(value, Value)}
    called: dict[Value, str] = {}
    owner: dict[str, Value] = {}
    for value in dict.fromkeys(order):
        wanted = value.name or variables.get(value, "")
        if not wanted:
            continue
        if wanted in owner:
            other = owner[wanted]
            raise ProgramError(
                f"two values of program {program_name!r} are called {wanted!r}",
                rule="a name means one value",
                where=f"{other.op.site} and {value.op.site}",
                hint=f'name="{wanted}_2"',
            )
        called[value], owner[wanted] = wanted, value
    counts: dict[str, int] = {}
    made_up: set[str] = set()
    for value in dict.fromkeys(order):
        if value not in called:
            called[value] = _made_up(value, counts, owner)
            owner[called[value]] = value
            made_up.add(called[value])
    return called, made_up


def _made_up(value: Value, counts: dict[str, int], owner: Mapping[str, Value]) -> str:
    """``add_1``, ``mul_1``, …: per op kind, in dependency order; scopes prefix them."""
    stem = f"{value.scope}." if value.scope else ""
    stem += value.op.kind.lower()
    while True:
        counts[stem] = counts.get(stem, 0) + 1
        name = f"{stem}_{counts[stem]}"
        if name not in owner:
            return name


def _ops(
    order: Sequence[Value], listed: Sequence[Value], called: Mapping[Value, str], made_up: set[str]
) -> dict[str, o.Op]:
    ops: dict[str, o.Op] = {called[v]: replace(v.op, name=called[v]) for v in listed}
    needs_seed = any(isinstance(v.op, o.Dropout) for v in order)
    if needs_seed and SEED not in ops:
        kind = TensorType(INT64, (), Replicated, None)
        ops[SEED] = o.Input(name=SEED, type=kind, default=0, implicit=True)
    elif needs_seed and not _is_seed(ops[SEED]):
        raise ProgramError(
            f"input {SEED!r} is not the dropout seed",
            rule=f"the name {SEED!r} means the INT64 scalar dropout draws from",
            where=str(ops[SEED].site or ""),
            hint="another name, or cl.scalar('seed', cl.INT64)",
        )
    for value in order:
        name = called[value]
        if name in ops:
            if name == SEED and needs_seed and not isinstance(value.op, o.Input):
                raise ProgramError(
                    f"a value is called {SEED!r}",
                    rule="that name is the dropout seed's",
                    where=str(value.op.site or ""),
                    hint=f'name="{SEED}_2"',
                )
            continue
        operands = tuple(called[v] if isinstance(v, Value) else v for v in value.operands)
        op = replace(value.op, name=name, operands=operands, label=None if name in made_up else name)
        if isinstance(op, o.Dropout):
            op = replace(op, operands=(*operands, SEED), stream=o.dropout_stream(name))
        ops[name] = op
    return ops


def _is_seed(op: o.Op) -> bool:
    return isinstance(op, o.Input) and op.type.shape == () and op.type.dtype == INT64


@dataclass(frozen=True, slots=True)
class Spec:
    """The type of a parameter of a ``@cl.program`` function; dims may be the names of its keyword-only sizes."""

    dtype: DType
    shape: tuple[int | str, ...]
    layout: Layout
    bounds: tuple[float | None, float | None, float | int | None]


def spec(
    dtype: DType,
    shape: Sequence[int | str] = (),
    layout: Layout = Replicated,
    *,
    low: float | None = None,
    high: float | None = None,
    default: float | int | None = None,
) -> Spec:
    """Annotate a parameter of a ``@cl.program`` function: ``x: cl.spec(cl.FP16, ("B", 1024), cl.Local)``."""
    check_dtype(dtype)
    check_layout(layout)
    dims = tuple(several(shape))
    if not all(isinstance(n, str) or (is_whole(n) and n >= 0) for n in dims):
        raise refusal(
            "a spec's shape", shape, "it is whole numbers, or names of sizes", 'cl.spec(cl.FP16, ("B", 1024))'
        )
    check_bounds("of this spec", dtype, low, high, default)
    return Spec(dtype, dims, layout, (low, high, default))


def _from_function(
    function: Callable[..., Any], ranks: int, groups: int, sizes: Mapping[str, int], name: str | None = None
) -> Program:
    signature = inspect.signature(function, eval_str=True)
    known = {p.name: sizes.get(p.name, p.default) for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY}
    unknown = set(sizes) - set(known)
    if unknown:
        raise ProgramError(
            f"{function.__name__!r} has no size {min(unknown)!r}",
            rule="sizes are its keyword-only arguments",
            where=str(caller_site() or ""),
            hint=", ".join(f"{k}={v}" for k, v in known.items()) or f"{function.__name__}()",
        )
    inputs = [
        _parameter(function.__name__, p, known) for p in signature.parameters.values() if p.kind is not p.KEYWORD_ONLY
    ]
    result, local = _call_keeping_locals(function, inputs, known)
    outputs = _values("outputs", result)
    built = _build(name or function.__name__, outputs, inputs, ranks, groups, local)
    return replace(built, rebuild=lambda **new: _from_function(function, ranks, groups, {**known, **new}, name))


def _parameter(function: str, parameter: inspect.Parameter, sizes: Mapping[str, Any]) -> Value:
    kind = parameter.annotation
    if not isinstance(kind, Spec):
        raise ProgramError(
            f"parameter {parameter.name!r} of {function!r} has no spec",
            rule="a parameter says its dtype, shape and layout",
            where=str(caller_site() or ""),
            hint=f"{parameter.name}: cl.spec(cl.FP32, (8,), cl.Replicated)",
        )
    missing = [n for n in kind.shape if isinstance(n, str) and not isinstance(sizes.get(n), int)]
    if missing:
        raise ProgramError(
            f"parameter {parameter.name!r} of {function!r} has dim {missing[0]!r}, which is no size",
            rule="a named dim is a keyword-only argument with a whole number",
            where=str(caller_site() or ""),
            hint=f"def {function}(…, *, {missing[0]}=8)",
        )
    low, high, default = kind.bounds
    if not kind.shape:
        return scalar(parameter.name, kind.dtype, low=low, high=high, default=default)
    shape = [sizes[n] if isinstance(n, str) else n for n in kind.shape]
    return tensor(parameter.name, kind.dtype, shape, kind.layout, low=low, high=high)


def _call_keeping_locals(
    function: Callable[..., Any], inputs: Sequence[Value], sizes: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Call `function` and keep its local variables: their names name the values."""
    kept: dict[str, Any] = {}
    code = inspect.unwrap(function).__code__

    def on_return(frame: FrameType, event: str, argument: Any) -> None:
        if event == "return" and frame.f_code is code:
            kept.update(frame.f_locals)

    outer = sys.getprofile()
    sys.setprofile(on_return)
    try:
        result = function(*inputs, **sizes)
    finally:
        sys.setprofile(outer)
    return result, kept
