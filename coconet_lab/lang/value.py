"""A value of a program being written: one operation linked to the values it reads, typed at once at the user's line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from numbers import Integral
from typing import Any, NoReturn

from coconet_lab.arguments import is_number, number, text
from coconet_lab.errors import CoconetError, LayoutError, ProgramError
from coconet_lab.ir import ops as o
from coconet_lab.ir.dtypes import DType
from coconet_lab.ir.layout import Layout
from coconet_lab.ir.rules import infer
from coconet_lab.ir.types import TensorType
from coconet_lab.ir.value import op_text
from coconet_lab.lang.checks import check_name
from coconet_lab.site import caller_site

_SCOPE: ContextVar[str] = ContextVar("coconet_scope", default="")


@contextmanager
def scope(name: str) -> Iterator[None]:
    """Prefix the names of the values made inside: ``with cl.scope("block9"):`` makes ``block9.total``.

    Examples
    --------
    >>> import coconet_lab as cl
    >>> with cl.scope("block9"):
    ...     total = cl.all_reduce(cl.tensor("g", cl.FP32, (8,), cl.Local), name="total")
    >>> total.name
    'block9.total'
    """
    text(name, "a scope's name", hint='cl.scope("block9")')
    outer = _SCOPE.get()
    token = _SCOPE.set(f"{outer}.{name}" if outer else name)
    try:
        yield
    finally:
        _SCOPE.reset(token)


def scoped(name: str) -> str:
    """`name` with the prefix of the scopes around."""
    outer = _SCOPE.get()
    return f"{outer}.{name}" if outer else name


class Value:
    """One operation and the values it reads. Its type is known at once, so a mistake is told at the line that made it.

    Attributes
    ----------
    name : str
        As the user gave it, or ``""`` until ``cl.program`` makes one up.
    type : TensorType
        dtype, global shape, layout, group; also as `dtype`, `shape`, `layout`.
    op : Op
        The operation, with the operands' names as far as they are known.
    """

    __slots__ = ("name", "op", "operands", "scope", "token", "type")

    __array_ufunc__ = None  # so that ``array + value`` comes to __radd__, which says what to do

    def __init__(self, op: o.Op, operands: tuple[Value | o.Literal | o.GroupSize, ...], kind: TensorType) -> None:
        self.op, self.operands, self.type = op, operands, kind
        self.name, self.scope, self.token = op.name, _SCOPE.get(), object()

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.type.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Global shape."""
        return self.type.shape

    @property
    def layout(self) -> Layout:
        """Where the elements live."""
        return self.type.layout

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape a rank holds; known here only where nothing is sliced."""
        if not self.type.layout.is_sliced:
            return self.type.shape
        raise ProgramError(
            f"the local shape of {self.name or 'this value'} ({self.type}) is not known yet",
            rule="how large a block is depends on the ranks, which a program has",
            hint=f'cl.program(…, ranks=4)["{self.name or "name"}"].local_shape',
        )

    def __repr__(self) -> str:
        names = tuple(v.name or "…" if isinstance(v, Value) else v for v in self.operands)
        return f"{op_text(replace(self.op, name=self.name or 'unnamed', operands=names))}: {self.type}"

    # -- arithmetic ----------------------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Value:
        return pointwise("Add", self, other)

    def __radd__(self, other: Any) -> Value:
        return pointwise("Add", other, self)

    def __sub__(self, other: Any) -> Value:
        return pointwise("Sub", self, other)

    def __rsub__(self, other: Any) -> Value:
        return pointwise("Sub", other, self)

    def __mul__(self, other: Any) -> Value:
        return pointwise("Mul", self, other)

    def __rmul__(self, other: Any) -> Value:
        return pointwise("Mul", other, self)

    def __truediv__(self, other: Any) -> Value:
        return pointwise("Div", self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return pointwise("Div", other, self)

    def __pow__(self, other: Any) -> Value:
        # A square is one exact multiplication; other powers go through pow.
        return pointwise("Mul", self, self) if is_number(other) and other == 2 else pointwise("Pow", self, other)

    def __rpow__(self, other: Any) -> Value:
        return pointwise("Pow", other, self)

    def __neg__(self) -> Value:
        return pointwise("Neg", self)

    def __abs__(self) -> Value:
        return pointwise("Abs", self)

    def __lt__(self, other: Any) -> Value:
        return pointwise("Less", self, other)

    def __le__(self, other: Any) -> Value:
        return pointwise("LessEqual", self, other)

    def __gt__(self, other: Any) -> Value:
        return pointwise("Greater", self, other)

    def __ge__(self, other: Any) -> Value:
        return pointwise("GreaterEqual", self, other)

    def __matmul__(self, other: Any) -> Value:
        return make(o.MatMul(name=""), (self, operand(other)))

    def __rmatmul__(self, other: Any) -> Value:
        return make(o.MatMul(name=""), (operand(other), self))

    # -- what a value is not -------------------------------------------------------------------------------------

    def _refuse(self, asked: str, hint: str) -> NoReturn:
        site = caller_site()
        raise ProgramError(
            f"{self.name or 'an unnamed value'} ({self.type}) {asked}",
            rule="a Value says what will be computed; it has no elements until a program runs",
            where=str(site) if site else "",
            hint=hint,
        )

    def __bool__(self) -> bool:
        self._refuse("has no truth value", "cl.where(condition, a, b)")

    def __len__(self) -> int:
        self._refuse("has no length", "value.shape")

    def __iter__(self) -> Iterator[Any]:
        self._refuse("cannot be iterated", "value.shape, or cl.local_slice(value, dim)")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        self._refuse("is no array", "cluster.run(program, inputs).outputs")


def operand(item: Any) -> Value | o.Literal | o.GroupSize:
    """A Value, Python number or ``cl.GROUP.size`` as an operand; anything else is refused with a sentence."""
    if isinstance(item, Value | o.Literal | o.GroupSize):
        return item
    if isinstance(item, GroupSizeExpression):
        return item.operand
    if is_number(item):
        return o.Literal(int(item) if isinstance(item, Integral) else float(item))
    site = caller_site()
    if isinstance(item, bool):
        raise ProgramError(
            f"{item} is no operand",
            rule="== and != compare Values as Python does, by which they are; an operation compares their elements",
            where=str(site) if site else "",
            hint="cl.equal(a, b) or cl.not_equal(a, b), or 1 and 0 as numbers",
        )
    raise ProgramError(
        f"{type(item).__name__} is no operand",
        rule="operands are Values, Python numbers and cl.GROUP.size; arrays are given to run()",
        where=str(site) if site else "",
        hint='cl.tensor("x", cl.FP32, shape, cl.Replicated), and the array as inputs={"x": array}',
    )


def make(op: o.Op, operands: tuple[Value | o.Literal | o.GroupSize, ...], name: str | None = None) -> Value:
    """A Value of `op` over `operands`, typed at once; errors carry the user's line."""
    site = caller_site()
    if name is not None:
        check_name(name, 'name="total"')
    full = scoped(name) if name else ""
    op = replace(op, name=full, label=full or None, site=site)
    types = [v.type if isinstance(v, Value) else None for v in operands]
    try:
        read = replace(op, operands=tuple(v.name if isinstance(v, Value) else v for v in operands))
        kind = infer(read, types, None, [v.name if isinstance(v, Value) else "" for v in operands])
    except CoconetError as error:
        error.where = f"{full or op.kind} at {site}" if site else op.kind
        error.args = (error.found, error.rule, error.where, error.hint)
        raise
    return Value(op, operands, kind)


def pointwise(fn: str, *items: Any, name: str | None = None) -> Value:
    """The elementwise operation `fn` of the table `POINTWISE`."""
    return make(o.Pointwise(name="", fn=fn), tuple(operand(item) for item in items), name)


class GroupSizeExpression:
    """``cl.GROUP.size``: the ranks of the group, a constant of the program; may be scaled by a number."""

    __slots__ = ("operand",)

    def __init__(self, value: o.GroupSize) -> None:
        self.operand = value

    def _scaled(self, scale: float, power: int) -> GroupSizeExpression:
        return GroupSizeExpression(o.GroupSize(scale, power))

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, Value):
            return pointwise("Mul", self, other)
        return self._scaled(self.operand.scale * _number(other), self.operand.power)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        if isinstance(other, Value):
            return pointwise("Div", self, other)
        return self._scaled(self.operand.scale / _number(other), self.operand.power)

    def __rtruediv__(self, other: Any) -> Any:
        return self._scaled(_number(other) / self.operand.scale, -self.operand.power)

    def __repr__(self) -> str:
        return f"cl.GROUP.size × {self.operand.scale}" if self.operand != o.GroupSize() else "cl.GROUP.size"


def _number(item: Any) -> float:
    return number(item, "what cl.GROUP.size is multiplied or divided by", hint="x / cl.GROUP.size", error=LayoutError)
