"""One shape-and-layout rule per operation: the type of a result from the types of its operands (paper §§2.1-2.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from coconet_lab.arguments import is_whole, shown
from coconet_lab.errors import CoconetError, LayoutError
from coconet_lab.ir import ops as o
from coconet_lab.ir.dtypes import DTYPES, INT32, DType
from coconet_lab.ir.expression import check_operands
from coconet_lab.ir.join import Named, described, join, join_dtypes, quoted
from coconet_lab.ir.layout import Layout, Local, Replicated, Sliced
from coconet_lab.ir.rounding import fits
from coconet_lab.ir.rules_collective import COLLECTIVE_RULES
from coconet_lab.ir.rules_contract import conv, matmul
from coconet_lab.ir.types import TensorType

Types = Sequence[TensorType | None]


def infer(op: o.Op, types: Types, ranks: int | None = None, names: Sequence[str] | None = None) -> TensorType:
    """Type of the value `op` computes.

    Parameters
    ----------
    op : Op
    types : sequence
        The operands' types in order; None for a Python number.
    ranks : int or None
        Ranks of the group; None while a program is being written, when divisibility is not checked yet.
    names : sequence of str or None
        What errors call the operands; by default their names in the program.

    Raises
    ------
    LayoutError
        Shapes, layouts, dtypes or groups that do not go together.
    """
    called = names if names is not None else [n if isinstance(n, str) else "" for n in op.operands]
    items = [(name, kind) for name, kind in zip(called, types) if kind is not None]
    rule = _RULES.get(type(op))
    if rule is None:
        raise LayoutError(f"no layout rule for {op.kind}", rule="every operation has one", hint="cl.custom(...)")
    if len(items) < len(types) and not isinstance(op, o.Pointwise | o.Custom):
        raise LayoutError(
            f"cannot {op.kind} a Python number",
            rule="numbers stand beside a value in elementwise operations; other operations read values",
            hint="cl.tensor(…) or cl.scalar(…) in its place",
        )
    result = rule(op, items, ranks)
    if ranks is not None and result.layout.is_sliced:
        check_divides(op, result, ranks)
    return result


def check_divides(op: o.Op, kind: TensorType, ranks: int) -> None:
    """One-dimensional values take any extent (ceil-sized blocks); elsewhere the ranks divide the sliced dim."""
    dim = kind.layout.dim
    if dim is None or len(kind.shape) == 1 or kind.shape[dim] % ranks == 0:
        return
    fits = [d for d, extent in enumerate(kind.shape) if extent % ranks == 0]
    hint = f"slice dim {fits[0]} instead, or " if fits else ""
    raise LayoutError(
        f"cannot slice {quoted(op.name)} ({op.kind}) along dim {dim}: "
        f"it has {kind.shape[dim]} elements for {ranks} ranks",
        rule="a sliced dim must divide evenly among the ranks (one-dimensional values take any size)",
        hint=f"{hint}pad dim {dim} to {-(-kind.shape[dim] // ranks) * ranks}",
    )


def _input(op: o.Op, items: Sequence[Named], ranks: int | None) -> TensorType:
    assert isinstance(op, o.Input)
    return op.type


def _pointwise(op: o.Op, items: Sequence[Named], ranks: int | None) -> TensorType:
    assert isinstance(op, o.Pointwise)
    verb = op.fn.lower()
    if not items:
        raise LayoutError(
            f"cannot {verb} two Python numbers", rule="one operand is a value", hint="compute it in Python"
        )
    chosen = items[1:] if op.fn == "Where" else items
    condition = items[0][1] if op.fn == "Where" else None
    if op.fn == "Where" and not isinstance(op.operands[0], str):
        rule = "a condition is a Value, INT32 0 or 1"
        raise LayoutError("cannot choose by a Python number", rule=rule, hint="where(cl.equal(x, 0), a, b)")
    if op.fn == "Where" and condition is not None and condition.dtype != INT32:
        raise LayoutError(
            f"cannot choose by {described(items[0])}", rule="a condition is INT32, 0 or 1", hint="where(x > 0, a, b)"
        )
    if chosen:
        join_dtypes(verb, chosen)
    dtype = (chosen or items)[0][1].dtype
    if op.fn in o.FLOAT_ONLY and not dtype.is_float:
        raise LayoutError(
            f"cannot {verb} {described(items[0])}",
            rule=f"{op.fn} is defined for floating-point values",
            hint=f"cast({items[0][0] or 'x'}, FP32)",
        )
    _check_literals(op, dtype.is_float, items)
    result = join(verb, items)
    return replace(result, dtype=INT32 if op.fn in o.COMPARISONS else dtype)


def _check_literals(op: o.Op, is_float: bool, items: Sequence[Named]) -> None:
    for operand in op.operands:
        if isinstance(operand, str):
            continue
        value = operand.resolve(1)
        if not fits(value, items[-1][1].dtype, whole=False):
            raise LayoutError(
                f"cannot {op.kind.lower()} {described(items[-1])} and {value!r}",
                rule=f"a Python number takes the dtype of the other operand, and {items[-1][1].dtype} does not hold it",
                hint=f"cast({items[-1][0] or 'x'}, …) to a wider type, or another number",
            )
        if is_float:
            continue
        shrinks = isinstance(operand, o.GroupSize) and operand.power != 1
        if shrinks or int(value) != value:
            raise LayoutError(
                f"cannot {op.kind.lower()} {described(items[0])} and {operand if shrinks else value!r}",
                rule="a Python number takes the dtype of the other operand, and this one is no integer",
                hint=f"cast({items[0][0] or 'x'}, FP32)",
            )


def _cast(op: o.Op, items: Sequence[Named], ranks: int | None) -> TensorType:
    assert isinstance(op, o.Cast)
    return replace(items[0][1], dtype=DTYPES[op.dtype])


def _dropout(op: o.Op, items: Sequence[Named], ranks: int | None) -> TensorType:
    assert isinstance(op, o.Dropout)
    kind = items[0][1]
    if not kind.dtype.is_float:
        raise LayoutError(
            f"cannot drop out {described(items[0])}", rule="dropout scales by 1/(1-p)", hint="cast it to FP32"
        )
    if not 0 <= op.p < 1:
        raise LayoutError(f"dropout probability is {op.p}", rule="0 <= p < 1", hint="dropout(x, 0.1)")
    return kind


def _reduction(op: o.Op, items: Sequence[Named], ranks: int | None) -> TensorType:
    assert isinstance(op, o.Reduction)
    kind = items[0][1]
    if op.fn in ("mean", "norm") and not kind.dtype.is_float:
        raise LayoutError(
            f"cannot take the {op.fn} of {described(items[0])}", rule="floating-point values", hint="cast it to FP32"
        )
    if kind.is_list:
        return replace(
            kind, shape=(len(kind.pieces),), layout=Local if kind.layout.is_local else Replicated, per_piece=True
        )
    dims = tuple(range(len(kind.shape))) if op.dims is None else op.dims
    bad = [d for d in dims if not 0 <= d < len(kind.shape)]
    if bad:
        raise LayoutError(
            f"cannot reduce dim {bad[0]} of {described(items[0])}",
            rule=f"it has dims 0 to {len(kind.shape) - 1}",
            hint=f"{op.fn}(x, dim={len(kind.shape) - 1})",
        )
    crosses = kind.layout.is_sliced and kind.layout.dim in dims
    shape = () if op.dims is None else tuple(1 if d in dims else n for d, n in enumerate(kind.shape))
    return TensorType(kind.dtype, shape, Replicated if crosses else kind.layout, kind.group)


def _local_slice(op: o.Op, items: Sequence[Named], ranks: int | None) -> TensorType:
    assert isinstance(op, o.LocalSlice)
    kind = items[0][1]
    if not kind.layout.is_replicated or not 0 <= op.dim < len(kind.shape):
        raise LayoutError(
            f"cannot take a local slice of dim {op.dim} of {described(items[0])}",
            rule="a local slice is this rank's block of a Replicated value's dim",
            hint="all_gather it first, or name one of its dims",
        )
    return kind.with_layout(Sliced(op.dim))


def _update(op: o.Op, items: Sequence[Named], ranks: int | None) -> TensorType:
    (tensor, kind), (value, given) = items
    join_dtypes("update", items)
    if kind.shape != given.shape or kind.pieces != given.pieces:
        raise LayoutError(
            f"cannot update {described(items[0])} with {described(items[1])}",
            rule="an update keeps the tensor's shape",
            hint=f"compute a value of shape {list(kind.shape)}",
        )
    if kind.per_piece != given.per_piece:  # as many elements as tensors: equal shapes of two meanings
        raise LayoutError(
            f"cannot update the list {quoted(tensor)} with {quoted(value)}, which has one value for each tensor",
            rule="an update of a list is a list; one value a tensor combines with it, tensor by tensor",
            hint=f"update({tensor}, 0 * {tensor} + {value})",
        )
    if kind.group != given.group:
        raise LayoutError(
            f"cannot update {quoted(tensor)} of group {kind.group} with {quoted(value)} of group {given.group}",
            rule="operands live in one process group",
            hint=f"tensor(…, group={given.group})",
        )
    if given.layout == kind.layout or (kind.layout.is_replicated and given.layout.is_sliced):
        return given
    fix = {"Local": "all_reduce", "Sliced": "all_gather"}.get(given.layout.kind, "local_slice")
    raise LayoutError(
        f"cannot update {described(items[0])} with {described(items[1])}",
        rule="a value updates a tensor of its layout, or a Replicated tensor as its sliced form",
        hint=f"update({tensor or 'w'}, {fix}({value or 'v'}))",
    )


def _custom(op: o.Op, items: Sequence[Named], ranks: int | None) -> TensorType:
    assert isinstance(op, o.Custom)
    if not items:
        rule = "an operator reads one value or more"
        raise LayoutError(f"{op.operator.name} reads no value", rule=rule, hint=f"{op.operator.name}(x)")
    operator = op.operator
    try:
        kind = operator.infer(*(kind for _, kind in items), ranks=ranks)
    except CoconetError:
        raise
    except Exception as error:  # the user's own function: whatever it raises is told with its name
        found = f"the type rule of operator {operator.name!r} raised {type(error).__name__}: {error}"
        hint = "infer=lambda *types, ranks: types[0]"
        raise LayoutError(" ".join(found.split()), rule=_INFER_RULE, hint=hint) from error
    if not isinstance(kind, TensorType) or not _is_sound(kind):
        found = f"the type rule of operator {operator.name!r} gave {shown(kind)}"
        raise LayoutError(found, rule=_INFER_RULE, hint="dataclasses.replace(types[0], shape=…)")
    if operator.expression is not None:
        check_operands(operator.name, operator.expression, len(op.operands), kind.dtype)
    return kind


_INFER_RULE = "infer(*types, ranks) gives the TensorType of the result: a dtype, whole extents and one of its layouts"


def _is_sound(kind: TensorType) -> bool:
    """Whether what a user's rule made is a type at all."""
    if not isinstance(kind.dtype, DType) or not isinstance(kind.layout, Layout) or not isinstance(kind.shape, tuple):
        return False
    dim = kind.layout.dim
    is_placed = dim is None if not kind.layout.is_sliced else is_whole(dim) and 0 <= (dim or 0) < len(kind.shape)
    return is_placed and all(is_whole(n) and n >= 0 for n in kind.shape)


Rule = Callable[[o.Op, Sequence[Named], int | None], TensorType]
_RULES: dict[type[o.Op], Rule] = {
    o.Input: _input,
    o.Pointwise: _pointwise,
    o.Cast: _cast,
    o.Dropout: _dropout,
    o.MatMul: matmul,
    o.Conv: conv,
    o.Reduction: _reduction,
    o.LocalSlice: _local_slice,
    o.Update: _update,
    o.Custom: _custom,
    **COLLECTIVE_RULES,
}
