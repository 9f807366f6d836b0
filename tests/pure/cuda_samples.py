"""Kernels by hand: the forms that a CUDA kernel takes, small enough to read in a golden file."""

from __future__ import annotations

from coconet_lab.ir.dtypes import BF16, FP16, FP32, FP64, INT32, INT64
from coconet_lab.kernels.kernel import (
    Accumulate,
    Accumulator,
    Apply,
    Argument,
    Call,
    Combine,
    Convert,
    Drop,
    Kernel,
    Load,
    Number,
    Phase,
    Result,
    ScalarParam,
    Space,
    Store,
    StoreAll,
    TensorParam,
)

LIST = ((5,), (64, 32), (3,), (30, 100))
LIST_ELEMENTS = 5 + 64 * 32 + 3 + 30 * 100


def sgd(elements: int = 1024, ranks: int = 2) -> Kernel:
    """ReduceScatter + SGD + AllGather, FP16 on the wire, FP32 weights: one fused collective."""
    tensors = (
        TensorParam("g", FP16, (elements,), "whole", peers=True),
        TensorParam("w", FP32, (elements,), "block", written=True),
        TensorParam("p", FP16, (elements,), "whole", peers=True, written=True),
    )
    body = (
        Combine(1, 0, "+"), Convert(2, 1), Apply(4, "Div", (2, 3)), Load(5, 1), Apply(6, "Mul", (0, 4)),
        Apply(7, "Sub", (5, 6)), Convert(8, 7), Store(1, 7), StoreAll(2, 8),
    )  # fmt: skip
    dtypes = (FP32, FP16, FP32, FP32, FP32, FP32, FP32, FP32, FP16)
    origin = ("lr", "total_rs", "wide", "", "G", "w", "step", "w1_part", "p1_part")
    uniform = (Argument(0, 0), Number(3, ranks))
    return Kernel(
        "fused", Space((elements,), 0, ranks), tensors, (ScalarParam("lr", FP32),), dtypes,
        (Phase(body, uniform),), opens=True, closes=True, origin=origin,
    )  # fmt: skip


def epilogue(shape: tuple[int, int, int] = (4, 6, 16), dim: int = 0, ranks: int = 2, kind=FP16) -> Kernel:
    """ReduceScatter + bias + dropout + residual + AllGather, with a name that would end a comment."""
    tensors = (
        TensorParam("layer", kind, shape, "whole", peers=True),
        TensorParam("b", kind, shape[2:], "whole"),
        TensorParam("r", kind, shape, "whole"),
        TensorParam("out", kind, shape, "whole", peers=True, written=True),
    )
    body = (
        Combine(0, 0, "+"), Load(1, 1), Apply(2, "Add", (0, 1)), Drop(3, 2, 0, 0x1234567890ABCDEF, 0.25),
        Load(4, 2), Apply(5, "Add", (3, 4)), StoreAll(3, 5),
    )  # fmt: skip
    origin = ("total_rs", "b\n#error", "add */ \\", "drop", "r", "out_part")
    return Kernel(
        "fused */ \n \\", Space(shape, dim, ranks), tensors, (ScalarParam("seed", INT64),), (kind,) * 6,
        (Phase(body),), opens=True, closes=True, origin=origin,
    )  # fmt: skip


def norms(elements: int = 1000, ranks: int = 2) -> Kernel:
    """Two reductions across the ranks, then a phase that uses them; the norm is stored too."""
    tensors = (
        TensorParam("g", FP32, (elements,), "whole", peers=True),
        TensorParam("w", FP32, (elements,), "block", written=True),
        TensorParam("q", FP32, (), "whole", written=True),
    )
    first = Phase((Combine(0, 0, "+"), Accumulate(0, 0), Load(1, 1), Accumulate(1, 1)))
    second = Phase(
        (Load(4, 1), Combine(5, 0, "+"), Apply(6, "Div", (5, 3)), Apply(7, "Sub", (4, 6)), Store(1, 7)),
        (Result(2, 0), Result(8, 1), Apply(3, "Add", (2, 8)), Store(2, 2)),
    )
    reductions = (Accumulator("norm", FP32, None, True), Accumulator("max", FP32, None, True))
    return Kernel(
        "lamb", Space((elements,), 0, ranks), tensors, (), (FP32,) * 9, (first, second), reductions, True, True
    )


def rows(shape: tuple[int, ...], dim: int, dims: tuple[int, ...], fn: str = "mean", ranks: int = 2) -> Kernel:
    """y = x - fn(x over dims), and the results themselves."""
    kept = tuple(1 if d in dims else n for d, n in enumerate(shape))
    crosses = dim in dims
    tensors = (
        TensorParam("x", FP32, shape, "block"),
        TensorParam("y", FP32, shape, "block", written=True),
        TensorParam("s", FP32, kept, "whole" if crosses else "block", written=True),
    )
    first = Phase((Load(0, 0), Accumulate(0, 0)))
    second = Phase((Load(1, 0), Result(2, 0), Apply(3, "Sub", (1, 2)), Store(1, 3), Store(2, 2)))
    return Kernel(
        "center", Space(shape, dim, ranks), tensors, (), (FP32,) * 4, (first, second),
        (Accumulator(fn, FP32, dims, crosses),), True, True,
    )  # fmt: skip


def two_ways(shape: tuple[int, int] = (8, 24), ranks: int = 2) -> Kernel:
    """Sums over rows and over columns of one tensor in one phase."""
    tensors = (
        TensorParam("x", FP32, shape, "block"),
        TensorParam("a", FP32, (shape[0], 1), "block", written=True),
        TensorParam("b", FP32, (1, shape[1]), "whole", written=True),
    )
    first = Phase((Load(0, 0), Accumulate(0, 0), Accumulate(1, 0)))
    second = Phase((Result(1, 0), Store(1, 1), Result(2, 1), Store(2, 2)))
    reductions = (Accumulator("sum", FP32, (1,), False), Accumulator("sum", FP32, (0,), True))
    return Kernel("both", Space(shape, 0, ranks), tensors, (), (FP32,) * 3, (first, second), reductions, True, True)


def list_norms(ranks: int = 2) -> Kernel:
    """Each tensor of a list divided by its norm; the norms, one a tensor, are stored too."""
    tensors = (
        TensorParam("x", FP16, (LIST_ELEMENTS,), "block"),
        TensorParam("y", FP16, (LIST_ELEMENTS,), "whole", peers=True, written=True),
        TensorParam("s", FP32, (len(LIST),), "whole", written=True),
    )
    first = Phase((Load(0, 0), Convert(1, 0), Accumulate(0, 1)))
    body = (Load(2, 0), Convert(3, 2), Result(4, 0), Apply(5, "Div", (3, 4)), Convert(6, 5), StoreAll(1, 6))
    second = Phase(body, (Result(7, 0), Store(2, 7)))
    return Kernel(
        "list", Space((LIST_ELEMENTS,), 0, ranks, None, LIST, 1024), tensors, (),
        (FP16, FP32, FP16, FP32, FP32, FP32, FP16, FP32), (first, second),
        (Accumulator("norm", FP32, None, True, True),), True, True,
    )  # fmt: skip


def arithmetic(kind, elements: int) -> Kernel:
    """One rank: every exact operation and cast of a dtype, each stored."""
    unary, binary = ("Neg", "Abs", "Copy"), ("Add", "Sub", "Mul", "Maximum", "Minimum", "Less", "Equal", "GreaterEqual")
    if kind.is_float:
        unary, binary = (*unary, "Sqrt"), (*binary, "Div")
    tensors = [TensorParam("a", kind, (elements,), "whole"), TensorParam("b", kind, (elements,), "whole")]
    dtypes, body = [kind, kind], [Load(0, 0), Load(1, 1)]

    def stored(out_type, statement) -> None:
        dtypes.append(out_type)
        body.append(statement)
        tensors.append(TensorParam("y", out_type, (elements,), "whole", written=True))
        body.append(Store(len(tensors) - 1, statement.out))

    for fn in (*unary, *binary):
        args = (0,) if fn in unary else (0, 1)
        stored(INT32 if fn in ("Less", "Equal", "GreaterEqual") else kind, Apply(len(dtypes), fn, args))
    for target in (FP16, BF16, FP32, FP64, INT32, INT64):
        stored(target, Convert(len(dtypes), 0))
    if kind.is_float:
        stored(kind, Call(len(dtypes), "max({0} * 0.5, -{1}) + 2 / abs({1})", (0, 1)))
    return Kernel("all", Space((elements,), None, 1), tuple(tensors), (), tuple(dtypes), (Phase(tuple(body)),))
