"""A value of a finished program, as ``program["total"]`` shows it."""

from __future__ import annotations

from dataclasses import dataclass

from coconet_lab.ir.dtypes import DType
from coconet_lab.ir.layout import Layout
from coconet_lab.ir.ops import Input, Literal, Op
from coconet_lab.ir.types import TensorType


@dataclass(frozen=True, slots=True)
class ProgramValue:
    """One value of a program: its operation, its type, and what a rank holds of it."""

    name: str
    op: Op
    type: TensorType
    ranks: int

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
        """Where its elements live."""
        return self.type.layout

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of the largest block a rank holds (rank 0's)."""
        return self.type.local_shape(0, self.ranks)

    def __repr__(self) -> str:
        return f"{op_text(self.op)}: {self.type}, {self.ranks} ranks"


def op_text(op: Op) -> str:
    """``total_rs = ReduceScatter(layer, dim=0)``."""
    if isinstance(op, Input):
        return f"{op.name} = {'Scalar' if op.type.shape == () and not op.type.pieces else 'Tensor'}"
    operands = [x if isinstance(x, str) else _number(x) for x in op.operands]
    hidden = {"fn", "stream", "operator"}
    shown = {k: v for k, v in op.attributes().items() if k not in hidden and v not in ("+", None)}
    return f"{op.name} = {op.kind}({', '.join([*operands, *(f'{k}={v}' for k, v in shown.items())])})"


def _number(operand: object) -> str:
    if isinstance(operand, Literal):
        return repr(operand.value)
    scale, power = getattr(operand, "scale", 1), getattr(operand, "power", 1)
    if power == 1:
        return "GROUP.size" if scale == 1 else f"{scale}*GROUP.size"
    return f"{scale}/GROUP.size"
