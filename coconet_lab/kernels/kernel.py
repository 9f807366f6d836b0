"""The kernel IR: what one launch computes at each element of its index space, printed for CPU and CUDA alike.

A kernel walks the block of an index space that its rank owns (or the whole space, where nothing is sliced) in one or
more phases. In each phase it loads, combines over peers, computes with one rounding per operation, and stores, to its
own memory, to every rank of its group, or to its partner in another group. A reduction ends a phase: partial results
are exchanged over the ranks where the reduced dim is sliced, and added in rank order.

Extents are arguments at run time, so one text serves every size; the number of dims, of ranks and the pattern of
broadcasts are fixed in the text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from coconet_lab.ir.dtypes import DType

Placement = Literal["whole", "block"]
Register = int


@dataclass(frozen=True, slots=True)
class Space:
    """The index space of a kernel.

    Parameters
    ----------
    shape : tuple of int
        Global extents. Printed code must not contain them: they come as arguments.
    dim : int or None
        The sliced dim: a rank walks its block of it (`ir.types.block_range`). None: every rank walks everything.
    ranks : int
        Ranks that reach each other's memory: those of the group, or of the group on one host.
    chunk_dim : int or None
        The dim that the arguments `lo` and `hi` cut: global indices, but relative to the block's start where it is
        the sliced dim. None: no chunks.
    pieces : tuple of shapes
        For list values: the tensors laid end to end along dim 0; `bucket` elements are never split among ranks.
    bucket : int
    blocks : int
        Ranks of a group that spans hosts, a multiple of `ranks`: as many blocks has the sliced dim. 0: the group lies
        on one host, whose `ranks` own the blocks.
    """

    shape: tuple[int, ...]
    dim: int | None
    ranks: int
    chunk_dim: int | None = None
    pieces: tuple[tuple[int, ...], ...] = ()
    bucket: int = 1024
    blocks: int = 0

    @property
    def parts(self) -> int:
        """How many blocks the sliced dim has: the ranks of the group, on whichever host."""
        return self.blocks or self.ranks


@dataclass(frozen=True, slots=True)
class TensorParam:
    """One buffer a kernel reads or writes; its address (or the table of its peers' addresses) is an argument.

    Parameters
    ----------
    value : str
        The user's name, for comments only (escaped there); code calls it ``t0``, ``t1``, ….
    dtype : DType
    shape : tuple of int
        Global shape of the value; aligned right with the space, extents of 1 broadcast. ``()`` for a scalar in memory.
    placement : "whole" or "block"
        "whole": the buffer has the global shape and is indexed by global indices. "block": it holds this rank's block
        of the space's sliced dim only (stored shape: the largest block) and is indexed relative to its start.
    peers : bool
        Whether other ranks' copies are read or written: the buffer is symmetric memory.
    written : bool
    per_piece : bool
        One element per tensor of the list that the kernel walks, even where the list has as many elements as tensors.
    scattered : bool
        The tensors of a list lie apart: a table, an argument too, says how far each is from the flat index.
    """

    value: str
    dtype: DType
    shape: tuple[int, ...]
    placement: Placement
    peers: bool = False
    written: bool = False
    per_piece: bool = False
    scattered: bool = False


@dataclass(frozen=True, slots=True)
class ScalarParam:
    """A zero-dimensional argument computed on the host: FP* ones travel as float64, INT* ones as int64."""

    value: str
    dtype: DType


# -- statements: `out` and `args` are register numbers; register r has type Kernel.dtypes[r] -----------------


@dataclass(frozen=True, slots=True)
class Load:
    """out = tensor at this element (of this rank's own copy)."""

    out: Register
    tensor: int


@dataclass(frozen=True, slots=True)
class Combine:
    """out = the group's copies of tensor at this element, combined in rank order.

    16-bit and FP32 sums accumulate in float32, FP64 in float64, integers in their type; rounded once to the dtype.
    """

    out: Register
    tensor: int
    reduction: str


@dataclass(frozen=True, slots=True)
class Number:
    """out = a constant, rounded to its dtype."""

    out: Register
    value: float | int


@dataclass(frozen=True, slots=True)
class Argument:
    """out = scalar argument number `scalar`."""

    out: Register
    scalar: int


@dataclass(frozen=True, slots=True)
class Apply:
    """out = fn(args), `fn` from ir.ops.POINTWISE, computed in the compute type of the operands and rounded once."""

    out: Register
    fn: str
    args: tuple[Register, ...]


@dataclass(frozen=True, slots=True)
class Convert:
    """out = arg rounded to the dtype of out; floats to integers toward zero."""

    out: Register
    arg: Register


@dataclass(frozen=True, slots=True)
class Drop:
    """out = dropout(arg): zero, or arg·scale; mask by Philox of (seed, stream, global flat index in the space)."""

    out: Register
    arg: Register
    seed: int
    stream: int
    p: float


@dataclass(frozen=True, slots=True)
class Call:
    """out = a custom operator's expression over args: ``{0}``, ``{1}``, ….

    `value` is kept for comments. Computed in the compute type and rounded once.
    """

    out: Register
    expression: str
    args: tuple[Register, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """out = finished reduction `accumulator` of an earlier phase (for this element's row or piece)."""

    out: Register
    accumulator: int


@dataclass(frozen=True, slots=True)
class Store:
    """tensor at this element of this rank's own copy = arg."""

    tensor: int
    arg: Register


@dataclass(frozen=True, slots=True)
class StoreAll:
    """tensor at this element of every rank's copy = arg: an AllGather, element by element."""

    tensor: int
    arg: Register


@dataclass(frozen=True, slots=True)
class StoreTo:
    """tensor at this element of the partner's copy = arg: rank k of this group to rank k of the target group."""

    tensor: int
    arg: Register


@dataclass(frozen=True, slots=True)
class Accumulate:
    """Add arg to reduction `accumulator` (`sum` of squares for a norm)."""

    accumulator: int
    arg: Register


Statement = (
    Load
    | Combine
    | Number
    | Argument
    | Apply
    | Convert
    | Drop
    | Call
    | Result
    | Store
    | StoreAll
    | StoreTo
    | Accumulate
)


@dataclass(frozen=True, slots=True)
class Accumulator:
    """A reduction inside a kernel.

    Parameters
    ----------
    fn : "sum", "mean", "max", "min" or "norm"
    dtype : DType
        Of the result. Partials are float64 for floating point, int64 for integers; rounded once at the end.
    dims : tuple of int or None
        Dims of the space that are reduced; None: all of them, one result (or one a piece of a list).
    crosses : bool
        Whether the ranks' partials are exchanged and combined in rank order.
    per_piece : bool
        One result per tensor of a list value.
    """

    fn: str
    dtype: DType
    dims: tuple[int, ...] | None
    crosses: bool
    per_piece: bool = False


@dataclass(frozen=True, slots=True)
class Phase:
    """`uniform` statements run once (scalars, results of earlier phases); `body` at every element of the block.

    `uniform` runs on every rank, however small its block, before the body, and may store zero-dimensional values. For
    a list, those of its statements that need a value per tensor (a Result of a per-piece accumulator, a Load of a
    per-piece tensor) run once a tensor of the list, on every rank; the body uses none of their registers.
    """

    body: tuple[Statement, ...]
    uniform: tuple[Statement, ...] = ()


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch.

    Parameters
    ----------
    name : str
        The group's or operation's name in the program, for comments; the printed function's name is made from a digest.
    space : Space
    tensors, scalars : tuples
        The arguments, in order.
    dtypes : tuple of DType
        The type of each register.
    phases : tuple of Phase
    accumulators : tuple of Accumulator
    opens, closes : bool
        Whether it begins and ends with a barrier of its group (a fused collective), unless the launch says otherwise.
    origin : tuple of str
        For every register, the value of the program it computes ("" for none): the explorer marks lines by it.
    """

    name: str
    space: Space
    tensors: tuple[TensorParam, ...]
    scalars: tuple[ScalarParam, ...]
    dtypes: tuple[DType, ...]
    phases: tuple[Phase, ...]
    accumulators: tuple[Accumulator, ...] = ()
    opens: bool = False
    closes: bool = False
    origin: tuple[str, ...] = ()

    def statements(self) -> Iterator[Statement]:
        """Every statement, in order."""
        for phase in self.phases:
            yield from phase.uniform
            yield from phase.body

    @property
    def has_peers(self) -> bool:
        """Whether it reads or writes other ranks' memory."""
        return any(t.peers for t in self.tensors) or self.crosses

    @property
    def crosses(self) -> bool:
        """Whether ranks exchange partial results of its reductions."""
        return any(a.crosses for a in self.accumulators)
