"""Programs as JSON values and back: loading checks everything and executes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from coconet_lab.errors import CoconetError, ProgramError
from coconet_lab.ir import ops as o
from coconet_lab.ir.dtypes import DTYPES
from coconet_lab.ir.layout import Layout
from coconet_lab.ir.program import Fusion, Overlap, Program, retyped
from coconet_lab.ir.types import TensorType
from coconet_lab.ir.verify import check_ranks, verify

Json = Any
Operators = Mapping[str, o.CustomOperator]

OPS: dict[str, type[o.Op]] = {
    kind.__name__: kind
    for kind in (
        o.Input, o.Pointwise, o.Cast, o.Dropout, o.MatMul, o.Conv, o.Reduction, o.AllReduce, o.ReduceScatter,
        o.AllGather, o.Reduce, o.Broadcast, o.AllToAll, o.LocalSlice, o.Send, o.Update, o.Custom,
    )
}  # fmt: skip
_FUNCTIONS: dict[type[o.Op], frozenset[str]] = {
    o.Pointwise: frozenset(o.POINTWISE),
    o.Reduction: frozenset({"sum", "mean", "max", "min", "norm"}),
}
_ARITIES: dict[type[o.Op], int] = {o.Input: 0, o.Dropout: 2, o.MatMul: 2, o.Conv: 2, o.Update: 2}
# What may go wrong on values of the wrong kind; told as one error, with the place.
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)


def program_to_json(program: Program) -> Json:
    """A program as dictionaries, lists, strings and numbers; custom operators by their names, no places in files."""
    return {
        "name": program.name,
        "ranks": program.ranks,
        "groups": program.groups,
        "ops": [_op_to_json(op) for op in program.ops.values()],
        "outputs": list(program.outputs),
        "fusions": [{"name": f.name, "members": list(f.members), "named": f.named} for f in program.fusions],
        "overlaps": [{"name": v.name, "stages": list(v.stages), "named": v.named} for v in program.overlaps],
    }


def program_from_json(data: Json, operators: Operators | None = None) -> Program:
    """The program such a value describes.

    Parameters
    ----------
    data : dict
        As `program_to_json` makes it.
    operators : mapping of name to CustomOperator
        What its custom operators mean.

    Raises
    ------
    ProgramError
        Anything malformed, an unknown operator, or operations that are no program.
    """
    try:
        ops = {op.name: op for op in (_op_from_json(item, operators or {}) for item in _of(list, data["ops"]))}
        if len(ops) != len(data["ops"]):
            raise malformed("two operations have one name")
        name, ranks, groups = _of(str, data["name"]), _of(int, data["ranks"]), _of(int, data["groups"])
        check_ranks(name, ranks, groups)
        fusions = tuple(Fusion(*_annotation(item, "members")) for item in data["fusions"])
        overlaps = tuple(Overlap(*_annotation(item, "stages")) for item in data["overlaps"])
        types = retyped(ops, {}, set(ops), ranks // groups)
        program = Program(name, ops, types, _names(data["outputs"]), ranks, groups, fusions, overlaps)
        verify(program)
    except CoconetError as error:
        raise type(error)(error.found, rule=error.rule, where=error.where or "from_json", hint=error.hint) from None
    except _MALFORMED as error:
        raise malformed(f"{type(error).__name__}: {error}") from None
    return program


def malformed(what: str) -> ProgramError:
    """The error for JSON that is no program or schedule."""
    return ProgramError(
        f"this JSON is no program: {what}",
        rule="a saved program or schedule is read as it was written, and nothing in it is executed",
        where="from_json",
        hint="schedule.to_json()",
    )


def _annotation(item: Json, key: str) -> tuple[str, tuple[str, ...], bool]:
    return _of(str, item["name"]), _names(item[key]), _of(bool, item["named"])


def _names(items: Json) -> tuple[str, ...]:
    return tuple(_of(str, item) for item in _of(list, items))


def _of(kind: type, value: Json) -> Any:
    """`value`, which must be exactly of that type: True is no integer here."""
    if type(value) is not kind:
        raise malformed(f"{value!r} stands where a {kind.__name__} belongs")
    return value


def _op_to_json(op: o.Op) -> Json:
    data: dict[str, Json] = {"op": type(op).__name__, "name": op.name, "label": op.label}
    data["operands"] = [_operand_to_json(x) for x in op.operands]
    for key, value in op.attributes().items():
        if isinstance(value, TensorType):
            value = _type_to_json(value)
        elif isinstance(value, o.CustomOperator):
            value = value.name
        data[key] = list(value) if isinstance(value, tuple) else value
    return data


def _op_from_json(data: Json, operators: Operators) -> o.Op:
    kind = OPS.get(_of(dict, data)["op"])
    if kind is None:
        raise malformed(f"there is no operation {data['op']!r}")
    given: dict[str, Any] = {"name": _of(str, data["name"])}
    given["label"] = None if data["label"] is None else _of(str, data["label"])
    given["operands"] = tuple(_operand_from_json(x) for x in _of(list, data["operands"]))
    for item in fields(kind):
        if item.name not in ("name", "label", "operands", "site"):
            given[item.name] = _attribute(str(item.type), data[item.name], operators)
    op = kind(**given)
    _check_op(op)
    return op


def _check_op(op: o.Op) -> None:
    functions = _FUNCTIONS.get(type(op))
    if functions is not None and getattr(op, "fn", None) not in functions:
        raise malformed(f"there is no {type(op).__name__} {getattr(op, 'fn', None)!r}")
    if isinstance(op, o.Pointwise):
        arity = o.POINTWISE[op.fn]
    else:
        arity = _ARITIES.get(type(op), -1 if isinstance(op, o.Custom) else 1)
    if arity >= 0 and len(op.operands) != arity:
        raise malformed(f"{op.name!r} ({op.kind}) has {len(op.operands)} operands, not {arity}")
    if not isinstance(op, o.Pointwise | o.Custom) and not all(isinstance(x, str) for x in op.operands):
        raise malformed(f"{op.name!r} ({op.kind}) reads a number")


def _attribute(annotation: str, value: Json, operators: Operators) -> Any:
    """An attribute by the type its operation declares."""
    if annotation == "TensorType":
        return _type_from_json(value)
    if annotation == "CustomOperator":
        if value not in operators:
            raise ProgramError(
                f"this JSON uses the operator {value!r}, which it does not contain",
                rule="custom operators are code: the file has their names only, and they are passed when it is loaded",
                where="from_json",
                hint=f"from_json(text, operators=[{value}])",
            )
        return operators[value]
    if value is None and annotation.endswith("None"):
        return None
    if annotation.startswith("tuple[int, ...]"):
        return tuple(_of(int, n) for n in _of(list, value))
    if annotation.startswith("float"):
        return value if type(value) in (int, float) else _of(float, value)
    return _of({"str": str, "int": int, "bool": bool}[annotation], value)


def _operand_to_json(operand: o.Operand) -> Json:
    if isinstance(operand, str):
        return operand
    if isinstance(operand, o.Literal):
        return {"literal": operand.value}
    return {"group_size": [operand.scale, operand.power]}


def _operand_from_json(data: Json) -> o.Operand:
    if isinstance(data, str):
        return data
    if "literal" in data:
        return o.Literal(_attribute("float", data["literal"], {}))
    scale, power = data["group_size"]
    if power not in (1, -1):
        raise malformed(f"the group's size to the power {power!r}")
    return o.GroupSize(_attribute("float", scale, {}), power)


def _type_to_json(kind: TensorType) -> Json:
    return {
        "dtype": kind.dtype.name,
        "shape": list(kind.shape),
        "layout": [kind.layout.kind, kind.layout.dim],
        "group": kind.group,
        "pieces": [list(piece) for piece in kind.pieces],
        "per_piece": kind.per_piece,
        "bucket": kind.bucket,
    }


def _type_from_json(data: Json) -> TensorType:
    layout, dim = data["layout"]
    shape = tuple(_extent(n) for n in _of(list, data["shape"]))
    is_sliced = layout == "Sliced"
    if layout not in ("Local", "Replicated", "Sliced") or is_sliced != (dim is not None):
        raise malformed(f"there is no layout {layout!r}")
    if is_sliced and not 0 <= _of(int, dim) < len(shape):
        raise malformed(f"dim {dim} of a value with {len(shape)} dims")
    pieces = tuple(tuple(_extent(n) for n in piece) for piece in _of(list, data["pieces"]))
    group = None if data["group"] is None else _extent(data["group"])
    bucket = _extent(data["bucket"])
    kind = TensorType(
        DTYPES[data["dtype"]], shape, Layout(layout, dim), group, pieces, _of(bool, data["per_piece"]), bucket
    )
    if bucket < 1 or (kind.is_list and kind.piece_starts()[-1] != kind.elements):
        raise malformed("a list value whose tensors do not fill it")
    return kind


def _extent(value: Json) -> int:
    number: int = _of(int, value)
    if number < 0:
        raise malformed(f"{number} stands where a whole number belongs")
    return number
