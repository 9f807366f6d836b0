"""coconet_lab: programs that mix computation and communication, transformed, proven, run and priced in a notebook."""

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

__version__ = "0.1.0"
