"""Signals between ranks from inside a generated CPU kernel: the host image of the GPU's signal pads.

Kernels see shared memory as plain int64 addresses.  Flags are written with release and read with acquire order through
LLVM's atomics, since a plain load in a spin loop may be hoisted out of it.  A waiting rank spins a little, then yields
its core: with more ranks than cores, spinning alone made a barrier take 4 ms where yielding takes 2 µs.  Every wait has
a deadline, so that a lost peer is an error code and not a hang.

The two C functions are declared to LLVM by name, not captured as pointers, so that kernels can be cached on disk.

A signal pad is one 64-byte line for each peer, `PAD_LINE` apart: rank *k* owns its pad, peer *j* writes into line *j*
of it.  Epochs only grow, so a pad is never cleared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import carray, njit, types  # type: ignore[attr-defined]
from numba.extending import intrinsic as _numba_intrinsic

PAD_LINE = 64
"""Bytes from one peer's line to the next: a cache line, so that two peers never write to the same one."""

SPINS = 200
"""Polls before a waiting rank first yields its core."""

_CLOCK_MONOTONIC = 1
_I64 = ir.IntType(64)
_Built = tuple[Any, Callable[..., Any]]

# Numba hands the typing context to an intrinsic by itself, so callers pass one argument less than its definition has.
intrinsic: Callable[..., Callable[..., Any]] = _numba_intrinsic


def pad_bytes(ranks: int, slots: int = 1) -> int:
    """Bytes of one rank's signal pad for `ranks` peers with `slots` lines each."""
    return PAD_LINE * ranks * slots


@intrinsic
def load_acquire(typing_context: Any, address: Any) -> _Built:
    """The int64 at `address`; what its writer wrote before releasing it is seen from here on."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], _I64.as_pointer())
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(types.int64), build


@intrinsic
def store_release(typing_context: Any, address: Any, value: Any) -> _Built:
    """Write `value` to the int64 at `address`, after everything this rank wrote before."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], _I64.as_pointer())
        builder.store_atomic(args[1], pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), build


@intrinsic
def sched_yield(typing_context: Any) -> _Built:
    """Let another thread have this core."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function = _declared(builder, ir.FunctionType(ir.IntType(32), []), "sched_yield")
        builder.call(function, [])
        return context.get_dummy_value()

    return types.void(), build


@intrinsic
def clock_ns(typing_context: Any) -> _Built:
    """Nanoseconds of the monotonic clock."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        time = ir.ArrayType(_I64, 2)  # struct timespec on the 64-bit systems we run on
        kind = ir.FunctionType(ir.IntType(32), [ir.IntType(32), time.as_pointer()])
        function = _declared(builder, kind, "clock_gettime")
        with builder.goto_entry_block():
            place = builder.alloca(time)
        builder.call(function, [ir.IntType(32)(_CLOCK_MONOTONIC), place])
        seconds = builder.extract_value(builder.load(place), 0)
        nanoseconds = builder.extract_value(builder.load(place), 1)
        return builder.add(builder.mul(seconds, _I64(1_000_000_000)), nanoseconds)

    return types.int64(), build


def _declared(builder: Any, kind: Any, name: str) -> Any:
    """The external function `name`, declared once in the module being built."""
    known = builder.module.globals.get(name)
    return known if known is not None else ir.Function(builder.module, kind, name=name)


@intrinsic
def _pointer(typing_context: Any, address: Any) -> _Built:
    """An address as the untyped pointer that `carray` takes."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), build


@njit(nogil=True, cache=True, inline="always")
def array_at(address: int, count: int, dtype: Any) -> Any:
    """The `count` elements of `dtype` at `address` as an array: ``array_at(base + offset, n, np.float32)``."""
    return carray(_pointer(address), (count,), dtype)


@njit(nogil=True, cache=True)
def signal(pad_addresses: Any, rank: int, slot: int, value: int) -> None:
    """Write `value` into line `slot` of every rank's pad, so that each peer's `wait` on that line returns.

    `pad_addresses` holds the pads' base addresses in rank order.  Give each sender a slot of its own
    (``slot = rank`` for a pad of `pad_bytes(ranks)`).
    """
    for shift in range(pad_addresses.size):
        # Each rank starts with another peer, so that they don't all write to the same pad at once.
        peer = (rank + shift) % pad_addresses.size
        store_release(pad_addresses[peer] + slot * PAD_LINE, value)


@njit(nogil=True, cache=True)
def wait(address: int, value: int, deadline_spins: int) -> int:
    """Wait until the int64 at `address` is at least `value`: 0, or 1 after `deadline_spins` polls in vain."""
    polls = 0
    while load_acquire(address) < value:
        polls += 1
        if polls > deadline_spins:
            return 1
        if polls > SPINS:
            sched_yield()
    return 0


@njit(nogil=True, cache=True)
def wait_until(address: int, value: int, deadline_ns: int) -> int:
    """Wait until the int64 at `address` is at least `value`: 0, or 1 once `clock_ns()` passes `deadline_ns`."""
    polls = 0
    while load_acquire(address) < value:
        polls += 1
        if polls > SPINS:
            if clock_ns() > deadline_ns:
                return 1
            sched_yield()
    return 0


@njit(nogil=True, cache=True)
def barrier(pads: Any, rank: int, ranks: int, epoch: int, deadline_ns: int) -> int:
    """Wait until every rank has entered barrier number `epoch`.

    Parameters
    ----------
    pads : int64[:]
        Base address of every rank's signal pad, of `pad_bytes(ranks)` bytes, zero before epoch 1.
    rank, ranks : int
        This rank and their number.
    epoch : int
        1 at the first barrier on these pads, then one more each time, the same on every rank.
    deadline_ns : int
        Nanoseconds from now after which a peer counts as lost.

    Returns
    -------
    int
        0, or k + 1 when rank k did not arrive in time.
    """
    for shift in range(1, ranks):
        store_release(pads[(rank + shift) % ranks] + rank * PAD_LINE, epoch)
    limit = clock_ns() + deadline_ns
    for shift in range(1, ranks):
        peer = (rank + shift) % ranks
        if wait_until(pads[rank] + peer * PAD_LINE, epoch, limit) != 0:
            return peer + 1
    return 0
