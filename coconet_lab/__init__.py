"""coconet_lab: programs that mix computation and communication, transformed, proven, run and priced in a notebook."""

import sys as _sys
from typing import Any

from coconet_lab.errors import (
    ClusterError,
    CoconetError,
    CodegenError,
    IllegalTransform,
    InputError,
    LayoutError,
    ProgramError,
    ProofError,
    RankError,
    Refusal,
    ToolError,
)
from coconet_lab.ir.dtypes import BF16, FP16, FP32, FP64, INT32, INT64, DType
from coconet_lab.ir.inputs import random_inputs
from coconet_lab.ir.layout import Layout, Local, Replicated, Sliced
from coconet_lab.ir.oracle import run as simulate
from coconet_lab.ir.program import Program
from coconet_lab.ir.types import TensorType
from coconet_lab.lang.build import program, spec
from coconet_lab.lang.communicate import (
    GROUP,
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    local_slice,
    reduce,
    reduce_scatter,
    send,
)
from coconet_lab.lang.compute import (
    abs,
    add,
    cast,
    conv,
    copy,
    div,
    dropout,
    equal,
    erf,
    exp,
    gelu,
    log,
    matmul,
    max,
    maximum,
    mean,
    min,
    minimum,
    mul,
    neg,
    norm,
    not_equal,
    pow,
    relu,
    scalar,
    sqrt,
    sub,
    sum,
    tanh,
    tensor,
    update,
    where,
)
from coconet_lab.lang.custom import operator
from coconet_lab.lang.value import Value, scope
from coconet_lab.run.cluster import Cluster
from coconet_lab.schedule.schedule import Schedule
from coconet_lab.viz.draw import draw

__version__ = "0.1.0"

# Found when they are first asked for, so that importing the package loads no widgets.
_LAZY = {
    "Explorer": "coconet_lab.viz.explorer.explorer",
    "explore": "coconet_lab.viz.explorer.explore",
    "layout_picture": "coconet_lab.viz.pictures",
    "scaling_lines": "coconet_lab.viz.charts",
    "speedup_bars": "coconet_lab.viz.charts",
    "timeline": "coconet_lab.viz.timeline",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    if name == "workloads":
        return import_module("coconet_lab.workloads")
    raise AttributeError(f"module 'coconet_lab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])


__all__ = [
    "BF16",
    "FP16",
    "FP32",
    "FP64",
    "GROUP",
    "INT32",
    "INT64",
    "Cluster",
    "ClusterError",
    "CoconetError",
    "CodegenError",
    "DType",
    "IllegalTransform",
    "InputError",
    "Layout",
    "LayoutError",
    "Local",
    "Program",
    "ProgramError",
    "ProofError",
    "RankError",
    "Refusal",
    "Replicated",
    "Schedule",
    "Sliced",
    "TensorType",
    "ToolError",
    "Value",
    "abs",
    "add",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "cast",
    "conv",
    "copy",
    "div",
    "draw",
    "dropout",
    "equal",
    "erf",
    "exp",
    "gelu",
    "local_slice",
    "log",
    "matmul",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mul",
    "neg",
    "norm",
    "not_equal",
    "operator",
    "pow",
    "program",
    "random_inputs",
    "reduce",
    "reduce_scatter",
    "relu",
    "scalar",
    "scope",
    "send",
    "simulate",
    "spec",
    "sqrt",
    "sub",
    "sum",
    "tanh",
    "tensor",
    "update",
    "where",
]

if "IPython" in _sys.modules:  # only where there may be a notebook to show things in
    from coconet_lab.viz.notebook import register_formatters as _register_formatters

    _register_formatters()
