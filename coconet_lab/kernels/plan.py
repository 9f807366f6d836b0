"""The Plan: what will run, in issue order, known to the byte before it runs; run, drawn and priced from one object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from coconet_lab.ir.ops import Op
from coconet_lab.ir.types import TensorType
from coconet_lab.kernels.hosts import Hosts
from coconet_lab.kernels.kernel import Kernel, Placement

Link = Literal["group", "between groups", "between hosts"]


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory of one rank.

    Parameters
    ----------
    name : str
        ``b0``, ``b1``, …: never a user's name.
    value : str
        The value it was made for, for display.
    type : TensorType
        What it holds; with `placement` "whole" it has the global shape even where the type is Sliced.
    placement : "whole" or "block"
    role : "input", "state", "output" or "temporary"
        "state" is an input that updates write into; an output that is a state's last version keeps role "state".
    symmetric : bool
        Peers read or write it: allocated as symmetric memory on all ranks alike.
    group : int
        The process group whose ranks hold it; -1: every group's.
    bytes : int
        Reserved on each of these ranks, but for gaps between the tensors of a scattered list.
    first, last : int
        Indices of the first and last entry that touch it; inputs live from 0, outputs and state to the end.
    scattered : bool
        A list whose tensors lie apart (`kernels.scatter`), not one after the other.
    """

    name: str
    value: str
    type: TensorType
    placement: Placement
    role: Literal["input", "state", "output", "temporary"]
    symmetric: bool
    group: int
    bytes: int
    first: int
    last: int
    scattered: bool = False


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a value is found: a buffer, and whether the value is this rank's block of it.

    A Sliced value may live in a "whole" buffer (its block of it: a local slice, a sliced update of a Replicated tensor)
    or in a "block" buffer of its own.
    """

    buffer: str
    type: TensorType


@dataclass(frozen=True, slots=True)
class Sync:
    """Meeting of ranks around an entry.

    Parameters
    ----------
    kind : "barrier", "signal" or "wait"
        "signal" posts to the scope's ranks and goes on; "wait" goes on once all of the scope's ranks have posted.
    scope : "group", "host" or "pair"
        All ranks of the entry's group; those of them on one host; or rank k of the sending and of the receiving group.
    channel : int
        Number of the signal; -1 for a barrier.
    partner : int
        For "pair": the other process group.
    """

    kind: Literal["barrier", "signal", "wait"]
    scope: Literal["group", "host", "pair"] = "group"
    channel: int = -1
    partner: int = -1


@dataclass(frozen=True, slots=True)
class Chunk:
    """The part of an overlapped stage that one entry does: [start, stop) of `dim` of its index space.

    Where `dim` is the sliced dim, the range is relative to the block and `stop` is cut to each rank's block.
    """

    index: int
    count: int
    dim: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One thing a rank does. Bytes and FLOPs are per rank (the largest rank's).

    Parameters
    ----------
    name : str
        The operation or fused group, for display.
    ops : tuple of str
        Values it computes.
    groups : tuple of int
        Process groups whose ranks run it.
    stream : int
        0 computes; overlapped communication has streams of its own.
    after : tuple of int
        Indices of the entries it needs, on the same rank: those of them that this rank runs.
    reads, writes : tuple of str
        Buffers.
    bytes_read, bytes_written : int
        Through this rank's memory.
    link_bytes : mapping
        Bytes this rank sends over each kind of link.
    flops : int
    opens, closes : tuple of Sync
        Meetings before and after.
    chunk : Chunk or None
    """

    name: str
    ops: tuple[str, ...]
    groups: tuple[int, ...]
    stream: int = 0
    after: tuple[int, ...] = ()
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    bytes_read: int = 0
    bytes_written: int = 0
    link_bytes: Mapping[Link, int] = field(default_factory=dict)
    flops: int = 0
    opens: tuple[Sync, ...] = ()
    closes: tuple[Sync, ...] = ()
    chunk: Chunk | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch(Entry):
    """A generated kernel. `tensors` and `scalars` follow its parameters; scalars are names of scalar values.

    `inside` are those of `ops` that are zero-dimensional values with neither storage nor a launch of their own: every
    kernel that reads one computes it.

    With `shift` it works on the block of another rank: of the one with this rank's number, so many hosts further on.
    """

    kernel: Kernel
    tensors: tuple[Slot, ...]
    scalars: tuple[str, ...]
    shift: int = 0
    inside: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective(Entry):
    """A library collective. `kind` is the op's; `dim` the sliced dim; contiguous blocks only (others are launches).

    For lists it is a group of calls, one a tensor, each where that tensor lies.
    """

    kind: Literal["AllReduce", "ReduceScatter", "AllGather", "Reduce", "Broadcast", "AllToAll"]
    source: Slot
    target: Slot
    reduction: str = "+"
    root: int = 0
    op: Op


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer(Entry):
    """A library send and receive: rank k of `groups[0]` to rank k of `groups[1]`."""

    source: Slot
    target: Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrive(Entry):
    """On the receiving ranks: wait (by `opens`) until a launch of the sending group has stored into `target`."""

    target: Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Library(Entry):
    """A library call: matmul, conv, or a custom operator without a kernel expression."""

    op: Op
    operands: tuple[Slot, ...]
    target: Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class HostScalars(Entry):
    """Zero-dimensional arithmetic on scalar inputs, done on the host before anything is launched."""

    scalar_ops: tuple[Op, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange(Entry):
    """The part between hosts of a fused collective or of a reduction: through the library, never by peer pointers.

    Along the *rail*, the ranks with this rank's number on every host of the group, in the order of the hosts:

    - ``"ReduceScatter"``: ``sources[s]`` is what this rank has of the block of the rank s hosts further on, combined
      over its host; ``targets[0]`` becomes this rank's block, combined over the hosts and rounded once.
    - ``"AllGather"``: ``sources[0]`` is this rank's block; ``targets[s - 1]`` becomes that of the rank s hosts on.

    Among all ranks of the group, in rank order:

    - ``"Reduction"``: ``sources[0]`` are this rank's partial results, of a norm its sums of squares, in float64 or an
      integer type; ``targets[0]`` becomes the result of `reduction` ("sum", "mean", "max", "min" or "norm"; of as many
      elements as `counts` says).
    """

    kind: Literal["ReduceScatter", "AllGather", "Reduction"]
    sources: tuple[Slot, ...]
    targets: tuple[Slot, ...]
    reduction: str = "+"
    counts: tuple[int, ...] = ()


AnyEntry = Launch | Collective | Transfer | Arrive | Library | HostScalars | Exchange


@dataclass(frozen=True, slots=True)
class Ledger:
    """What one run of a Plan costs a rank, counted, not measured."""

    wire_bytes: int
    between_groups_bytes: int
    between_hosts_bytes: int
    memory_bytes: int
    held_bytes: int
    launches: int
    collectives: int
    flops: int


@dataclass(frozen=True)
class Plan:
    """Everything a run does.

    Parameters
    ----------
    program : Program-like
        Name, ranks and groups are kept here; the engine needs no program.
    entries : tuple
        In issue order: a total order of the order graph.
    buffers : mapping of name to Buffer
    slots : mapping of value name to Slot
        Where each value that is stored is found after the run.
    inputs, outputs : mapping of value name to Slot
    state : mapping of input name to Slot
        The updated inputs.
    scalar_inputs : mapping of name to default
        Scalar inputs, and the value where a run gives none (None: it must).
    channels : int
        Number of signal channels used.
    hosts : int
        Hosts it is for, with as many consecutive ranks on each: kernels reach the memory of one host's ranks only.
    """

    name: str
    ranks: int
    groups: int
    entries: tuple[AnyEntry, ...]
    buffers: Mapping[str, Buffer]
    slots: Mapping[str, Slot]
    inputs: Mapping[str, Slot]
    outputs: Mapping[str, Slot]
    state: Mapping[str, Slot]
    scalar_inputs: Mapping[str, float | int | None]
    scalar_types: Mapping[str, TensorType]
    channels: int = 0
    hosts: int = 1

    @property
    def placement(self) -> Hosts:
        """Which ranks are on which host."""
        return Hosts(self.ranks, self.groups, self.hosts)

    @property
    def group_ranks(self) -> int:
        """Ranks of one process group."""
        return self.ranks // self.groups

    def kernels(self) -> tuple[Kernel, ...]:
        """The distinct kernels, in the order they are first launched."""
        return tuple(dict.fromkeys(e.kernel for e in self.entries if isinstance(e, Launch)))

    def ledger(self) -> Ledger:
        """Bytes, launches and FLOPs of one run, per rank."""
        from coconet_lab.kernels.ledger import ledger

        return ledger(self)

    def code(self, target: str, sites: Mapping[str, str] | None = None) -> str:
        """The text of every kernel for ``"cpu"`` (Numba) or ``"cuda"`` (CUDA C++): exactly what runs.

        With `sites`, where the user wrote each value, the lines that a kernel came from stand above it.

        Raises
        ------
        CodegenError
            An unknown target, or an operation with no form there.
        """
        from coconet_lab.kernels.source import plan_source

        return plan_source(self, target, sites)
