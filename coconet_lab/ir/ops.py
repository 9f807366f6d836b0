"""The operations of a program: frozen values that name their operands, so that equality and hashing stay linear."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

from coconet_lab.ir.types import TensorType
from coconet_lab.site import Site

if TYPE_CHECKING:
    import numpy as np

REDUCTIONS = ("+", "max", "min")


@dataclass(frozen=True, slots=True)
class Literal:
    """A Python number written in a program; it takes the dtype of the other operand."""

    value: float | int

    def resolve(self, ranks: int) -> float | int:
        """The number itself."""
        return self.value


@dataclass(frozen=True, slots=True)
class GroupSize:
    """``scale * size**power`` of the group an operation runs in; a constant once a program has its ranks."""

    scale: float = 1
    power: int = 1

    def resolve(self, ranks: int) -> float | int:
        """The number for a group of `ranks`."""
        return self.scale * ranks if self.power == 1 else self.scale / ranks


Operand = str | Literal | GroupSize


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One operation. `name` is its value's name; `operands` names what it reads.

    `label` is the global value in the user's words: a value that a step narrowed to a block (``out_part``) keeps the
    label of the value it is a part of (``out``); values the user did not name have none. `site` is the user's line.
    """

    name: str
    operands: tuple[Operand, ...] = ()
    label: str | None = field(default=None, compare=False)
    site: Site | None = field(default=None, compare=False, repr=False)

    is_pointwise: ClassVar[bool] = False
    is_collective: ClassVar[bool] = False

    @property
    def kind(self) -> str:
        """The operation's name in the field's words: ``MatMul``."""
        return type(self).__name__

    @property
    def sources(self) -> Iterator[str]:
        """Names of the operands that are values."""
        return (o for o in self.operands if type(o) is str)

    def attributes(self) -> dict[str, Any]:
        """Everything but name, operands, label and site."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _COMMON}


_COMMON = frozenset({"name", "operands", "label", "site"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Input(Op):
    """A tensor or scalar given from outside. `implicit` inputs (the dropout seed) are added by the lab."""

    type: TensorType
    low: float | None = None
    high: float | None = None
    default: float | int | None = None
    implicit: bool = False


POINTWISE: dict[str, int] = {
    "Add": 2, "Sub": 2, "Mul": 2, "Div": 2, "Pow": 2, "Maximum": 2, "Minimum": 2,
    "Less": 2, "LessEqual": 2, "Greater": 2, "GreaterEqual": 2, "Equal": 2, "NotEqual": 2,
    "Neg": 1, "Abs": 1, "Sqrt": 1, "Exp": 1, "Log": 1, "Tanh": 1, "Erf": 1, "Copy": 1, "Where": 3,
}  # fmt: skip
COMPARISONS = frozenset({"Less", "LessEqual", "Greater", "GreaterEqual", "Equal", "NotEqual"})
INEXACT = frozenset({"Exp", "Log", "Pow", "Tanh", "Erf"})
FLOAT_ONLY = frozenset({"Div", "Pow", "Sqrt", "Exp", "Log", "Tanh", "Erf"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointwise(Op):
    """An elementwise operation of the table `POINTWISE`, rounded once to its dtype."""

    fn: str
    is_pointwise: ClassVar[bool] = True

    @property
    def kind(self) -> str:
        """``Add``, ``Sqrt``, …"""
        return self.fn


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast(Op):
    """The operand's elements rounded to another dtype (`dtype` by name)."""

    dtype: str
    is_pointwise: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropout(Op):
    """Zero with probability `p`, else scaled by 1/(1-p). Operands: the value and the seed scalar.

    The mask is a function of (seed, `stream`, global element index): the same in every layout.
    """

    p: float
    stream: int = 0
    is_pointwise: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class MatMul(Op):
    """``A[…, K] @ B[K, N]``, summed at least in float32 and rounded once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conv(Op):
    """Cross-correlation of ``x[N, C, …]`` with ``w[O, C, …]``."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction(Op):
    """``sum``, ``mean``, ``max``, ``min`` or ``norm`` (L2) over `dims`, which keep extent 1; all dims give a scalar."""

    fn: str
    dims: tuple[int, ...] | None = None

    @property
    def kind(self) -> str:
        """``Sum``, ``Norm``, …"""
        return self.fn.capitalize()


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduce(Op):
    """Sum over the ranks, on every rank.  Local -> Replicated."""

    reduction: str = "+"
    is_collective: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceScatter(Op):
    """Sum over the ranks; rank k keeps block k of `dim`.  Local -> Sliced(dim)."""

    dim: int
    reduction: str = "+"
    is_collective: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class AllGather(Op):
    """Every rank receives all blocks.  Sliced(dim) -> Replicated."""

    is_collective: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce(Op):
    """Sum over the ranks, on rank `root` of the group; poison elsewhere.  Local -> Local."""

    root: int = 0
    reduction: str = "+"
    is_collective: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Broadcast(Op):
    """Rank `root`'s value on every rank.  Local -> Replicated."""

    root: int = 0
    is_collective: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class AllToAll(Op):
    """Each rank splits its block along `split`, joins what comes along `concat`.  Sliced(concat) -> Sliced(split)."""

    split: int
    concat: int
    is_collective: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSlice(Op):
    """This rank's block of a value all ranks hold; nothing moves.  Replicated -> Sliced(dim)."""

    dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Send(Op):
    """Rank k's value, on rank k of the group `offset` further; dtype, shape and layout stay."""

    offset: int
    is_collective: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Update(Op):
    """Write a value into a tensor's storage. Operands: the tensor (or its newest version) and the value."""


@dataclass(frozen=True, slots=True)
class CustomOperator:
    """A registered operator: what it is called, its type rule, its meaning in NumPy, and how it runs.

    Parameters
    ----------
    name : str
    infer : callable
        ``infer(*types, ranks) -> TensorType``.
    meaning : callable
        ``meaning(*arrays, ranges=…) -> array``: this rank's operands cut to the result's block, and the block's ranges.
    expression : str or None
        A kernel expression over ``{0}``, ``{1}``, …: a pointwise operator that can be fused.
    call : callable or None
        A library call with the signature of `meaning`, used to run it where there is no expression.
    """

    name: str
    infer: Callable[..., TensorType]
    meaning: Callable[..., np.ndarray[Any, Any]]
    expression: str | None = None
    call: Callable[..., np.ndarray[Any, Any]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Custom(Op):
    """An application of a registered operator."""

    operator: CustomOperator

    @property
    def kind(self) -> str:
        """The operator's registered name."""
        return self.operator.name

    @property
    def is_elementwise(self) -> bool:
        """Whether it has a kernel expression and so can be fused."""
        return self.operator.expression is not None


def is_pointwise(op: Op) -> bool:
    """Whether `op` computes each element from the same element of its operands (casts and dropout included)."""
    return op.is_pointwise or (isinstance(op, Custom) and op.is_elementwise)


def dropout_stream(name: str) -> int:
    """The 64-bit stream number of a dropout first called `name`."""
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
