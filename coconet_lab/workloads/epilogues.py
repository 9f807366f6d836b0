"""Model-parallel layer epilogues, dropout(AllReduce(x·W) + b) + r, of self-attention and the MLP (paper §4, Fig. 3)."""

from __future__ import annotations

from collections.abc import Callable

from coconet_lab.ir.layout import Replicated, Sliced
from coconet_lab.lang.build import program
from coconet_lab.lang.communicate import all_reduce
from coconet_lab.lang.compute import add, dropout, matmul, tensor
from coconet_lab.lang.value import Value
from coconet_lab.schedule.schedule import Schedule
from coconet_lab.workloads.workload import Workload, extent, wire_dtype

DROPOUT = 0.1


def epilogue(batch: int, sequence: int, hidden: int, inner: int, dtype: str) -> tuple[list[Value], Value]:
    """Inputs and output of a layer whose matmul contracts `inner` (sliced among the ranks) to `hidden`."""
    kind = wire_dtype(dtype)
    batch, sequence, hidden = extent(batch, "batch"), extent(sequence, "sequence"), extent(hidden, "hidden")
    x = tensor("x", kind, (batch, sequence, inner), Sliced(2))
    w = tensor("w", kind, (inner, hidden), Sliced(0))
    b = tensor("b", kind, (hidden,), Replicated)
    r = tensor("r", kind, (batch, sequence, hidden), Replicated)
    layer = matmul(x, w, name="layer")
    total = all_reduce(layer, name="total")
    drop = dropout(total + b, DROPOUT, name="drop")
    return [w, x, b, r], add(drop, r, name="out")


def _sliced(s: Schedule) -> Schedule:
    return s.split("total").reorder("total", past="out")


def _fused(s: Schedule) -> Schedule:
    return _sliced(s).fuse("total_rs", "out")


_RECIPES: dict[str, Callable[[Schedule], Schedule]] = {
    "naive": lambda s: s,
    "MM-AR-C": lambda s: s.fuse("add_1", "out"),
    "MM-RS-C-AG": lambda s: _sliced(s).fuse("add_1", "out_part"),
    "fuse(RS-C-AG)": _fused,
    "ol(MM,fuse(RS-C-AG))": lambda s: _fused(s).overlap("layer", "fused"),
}


def self_attention(
    batch: int = 8, sequence: int = 1024, hidden: int = 3072, ranks: int = 4, dtype: str = "fp16"
) -> Workload:
    """The epilogue of a self-attention block: ``[B, S, H/P] × [H/P, H]`` on every rank (GPT-2 8.3B: H = 3072).

    Examples
    --------
    >>> import coconet_lab as cl
    >>> cl.workloads.self_attention(batch=4, sequence=8, hidden=16, ranks=2).program.outputs
    ('out',)
    """
    inputs, out = epilogue(batch, sequence, hidden, hidden, dtype)
    return Workload(
        "self_attention", dtype, program("self_attention", inputs=inputs, outputs=[out], ranks=ranks), _RECIPES
    )


def mlp(batch: int = 8, sequence: int = 1024, hidden: int = 3072, ranks: int = 4, dtype: str = "fp16") -> Workload:
    """The epilogue of an MLP block: ``[B, S, 4H/P] × [4H/P, H]`` on every rank."""
    inputs, out = epilogue(batch, sequence, hidden, 4 * extent(hidden, "hidden"), dtype)
    return Workload("mlp", dtype, program("mlp", inputs=inputs, outputs=[out], ranks=ranks), _RECIPES)
