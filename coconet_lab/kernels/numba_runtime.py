"""What generated CPU kernels call: typed memory, roundings, min and max that keep NaN, tile sums.

Kernels see memory as plain addresses, so one text serves any buffer. The 16-bit types live in registers as float32 that
hold a 16-bit value exactly. Whatever a kernel stores goes through tiles on its own stack first: the compiler knows that
nobody else writes there, and vectorises the loop without asking whether ten pointers overlap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from coconet_lab.kernels.numba_text import TILE

_TAIL = 8  # a tile of random words may begin and end in the middle of a call's four

I16, I32, I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
_Built = tuple[Any, Callable[..., Any]]


def _place(builder: Any, address: Any, index: Any, kind: Any) -> Any:
    return builder.gep(builder.inttoptr(address, kind.as_pointer()), [index])


def _getter(name: str, stored: Any, result: Any, widen: Callable[..., Any], doc: str) -> Any:
    def get(typing_context: Any, address: Any, index: Any) -> _Built:
        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return widen(builder, builder.load(_place(builder, args[0], args[1], stored), align=_bytes(stored)))

        return result(types.int64, types.int64), build

    get.__name__ = get.__qualname__ = name
    get.__doc__ = doc
    return intrinsic(get)


def _putter(name: str, stored: Any, given: Any, narrow: Callable[..., Any], doc: str) -> Any:
    def put(typing_context: Any, address: Any, index: Any, value: Any) -> _Built:
        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            place = _place(builder, args[0], args[1], stored)
            builder.store(narrow(builder, args[2]), place, align=_bytes(stored))
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, given), build

    put.__name__ = put.__qualname__ = name
    put.__doc__ = doc
    return intrinsic(put)


def _bytes(kind: Any) -> int:
    if isinstance(kind, ir.IntType):
        return int(kind.width) // 8
    return 4 if isinstance(kind, ir.FloatType) else 8


def _same(builder: Any, value: Any) -> Any:
    return value


def _widen_fp16(builder: Any, bits: Any) -> Any:
    return builder.fpext(builder.bitcast(bits, F16), F32)


def _narrow_fp16(builder: Any, value: Any) -> Any:
    return builder.bitcast(builder.fptrunc(value, F16), I16)


def _widen_bf16(builder: Any, bits: Any) -> Any:
    return builder.bitcast(builder.shl(builder.zext(bits, I32), I32(16)), F32)


def _narrow_bf16(builder: Any, value: Any) -> Any:
    # The value was rounded by `to_bf16`: its lower half is zero.
    return builder.trunc(builder.lshr(builder.bitcast(value, I32), I32(16)), I16)


get_fp16 = _getter("get_fp16", I16, types.float32, _widen_fp16, "FP16 element `index` at `address`, as float32.")
get_bf16 = _getter("get_bf16", I16, types.float32, _widen_bf16, "BF16 element `index` at `address`, as float32.")
get_fp32 = _getter("get_fp32", F32, types.float32, _same, "FP32 element `index` at `address`.")
get_fp64 = _getter("get_fp64", F64, types.float64, _same, "FP64 element `index` at `address`.")
get_int32 = _getter("get_int32", I32, types.int32, _same, "INT32 element `index` at `address`.")
get_int64 = _getter("get_int64", I64, types.int64, _same, "INT64 element `index` at `address`.")

put_fp16 = _putter("put_fp16", I16, types.float32, _narrow_fp16, "Store a float32 that holds an FP16 value.")
put_bf16 = _putter("put_bf16", I16, types.float32, _narrow_bf16, "Store a float32 that holds a BF16 value.")
put_fp32 = _putter("put_fp32", F32, types.float32, _same, "Store an FP32 element.")
put_fp64 = _putter("put_fp64", F64, types.float64, _same, "Store an FP64 element.")
put_int32 = _putter("put_int32", I32, types.int32, _same, "Store an INT32 element.")
put_int64 = _putter("put_int64", I64, types.int64, _same, "Store an INT64 element.")


def _tile(name: str, kind: Any, numba_type: Any) -> Any:
    pointer: Any = types.CPointer(numba_type)  # type: ignore[no-untyped-call]

    def tile(typing_context: Any) -> _Built:
        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            with builder.goto_entry_block():
                place = builder.alloca(ir.ArrayType(kind, TILE + _TAIL))
                place.align = 64
                return builder.bitcast(place, kind.as_pointer())

        return pointer(), build

    tile.__name__ = tile.__qualname__ = name
    tile.__doc__ = f"A tile of `TILE` elements of {numba_type} on the kernel's stack."
    return intrinsic(tile)


tile_f32 = _tile("tile_f32", F32, types.float32)
tile_f64 = _tile("tile_f64", F64, types.float64)
tile_i32 = _tile("tile_i32", I32, types.int32)
tile_i64 = _tile("tile_i64", I64, types.int64)
tile_u32 = _tile("tile_u32", I32, types.uint32)


def _to_fp16(typing_context: Any, value: Any) -> _Built:
    """A float32 rounded to FP16, to nearest even."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fpext(builder.fptrunc(args[0], F16), F32)

    return types.float32(types.float32), build


to_fp16: Any = intrinsic(_to_fp16)


def _to_bf16(typing_context: Any, value: Any) -> _Built:
    """A float32 rounded to BF16, to nearest even; NaN stays NaN."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        bits = builder.bitcast(args[0], I32)
        last = builder.and_(builder.lshr(bits, I32(16)), I32(1))
        near = builder.add(bits, builder.add(last, I32(0x7FFF)))
        quiet = builder.or_(bits, I32(0x400000))
        chosen = builder.select(builder.fcmp_unordered("uno", args[0], args[0]), quiet, near)
        return builder.bitcast(builder.and_(chosen, I32(0xFFFF0000)), F32)

    return types.float32(types.float32), build


to_bf16: Any = intrinsic(_to_bf16)


def _to_odd(typing_context: Any, value: Any) -> _Built:
    """A float64 as a float32 whose last bit is set where anything was cut off: a second rounding then errs nowhere."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        near = builder.fptrunc(args[0], F32)
        back = builder.fpext(near, F64)
        absolute = builder.module.declare_intrinsic("llvm.fabs", [F64])
        away = builder.fcmp_ordered(">", builder.call(absolute, [back]), builder.call(absolute, [args[0]]))
        bits = builder.bitcast(near, I32)
        cut = builder.select(away, builder.sub(bits, I32(1)), bits)
        exact = builder.or_(
            builder.fcmp_unordered("ueq", back, args[0]),  # NaN counts as exact
            builder.fcmp_ordered("==", builder.call(absolute, [args[0]]), F64(float("inf"))),
        )
        return builder.bitcast(builder.select(exact, cut, builder.or_(cut, I32(1))), F32)

    return types.float32(types.float64), build


to_odd: Any = intrinsic(_to_odd)


def _saturating(name: str, kind: Any, numba_type: Any) -> Any:
    def convert(typing_context: Any, value: Any) -> _Built:
        given = F32 if value == types.float32 else F64

        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            symbol = f"llvm.fptosi.sat.i{kind.width}.f{32 if given is F32 else 64}"
            known = builder.module.globals.get(symbol)
            function = known or ir.Function(builder.module, ir.FunctionType(kind, [given]), name=symbol)
            return builder.call(function, [args[0]])

        return numba_type(types.float32 if given is F32 else types.float64), build

    convert.__name__ = convert.__qualname__ = name
    convert.__doc__ = "A float as an integer, toward zero; what does not fit becomes the nearest that does, NaN 0."
    return intrinsic(convert)


to_int32 = _saturating("to_int32", I32, types.int32)
to_int64 = _saturating("to_int64", I64, types.int64)


def _extreme(name: str, order: str, doc: str) -> Any:
    def choose_one(typing_context: Any, a: Any, b: Any) -> _Built:
        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            if a in (types.int32, types.int64):
                return builder.select(builder.icmp_signed(order, *args), *args)
            beyond = builder.fcmp_ordered(order, *args)
            return builder.select(builder.or_(beyond, builder.fcmp_unordered("uno", args[0], args[0])), *args)

        return a(a, a), build

    choose_one.__name__ = choose_one.__qualname__ = name
    choose_one.__doc__ = doc
    return intrinsic(choose_one)


maximum = _extreme("maximum", ">", "The larger of two; NaN if either is.")
minimum = _extreme("minimum", "<", "The smaller of two; NaN if either is.")


def _choose(typing_context: Any, condition: Any, a: Any, b: Any) -> _Built:
    """`a` where `condition` is not zero, else `b`; both are computed, no branch is taken."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(builder.icmp_signed("!=", args[0], args[0].type(0)), args[1], args[2])

    return a(condition, a, a), build


choose: Any = intrinsic(_choose)


_LOW, _HIGH = np.uint64(0xFFFFFFFF), np.uint64(32)
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)


@njit(nogil=True, error_model="numpy")
def random_words(words: Any, first: int, calls: int, seed: int, stream: int) -> None:
    """Words of `calls` Philox4x32-10 calls from counter ``(first, stream)`` on, four a call, one an element.

    `seed` and `stream` are 64-bit numbers as int64.
    """
    key, tag = np.uint64(seed), np.uint64(stream)
    for call in range(calls):
        counter = np.uint64(first + call)
        c0, c1 = counter & _LOW, counter >> _HIGH
        c2, c3 = tag & _LOW, tag >> _HIGH
        k0, k1 = key & _LOW, key >> _HIGH
        for _ in range(10):
            a, b = _M0 * c0, _M1 * c2
            c0, c2 = (b >> _HIGH) ^ c1 ^ k0, (a >> _HIGH) ^ c3 ^ k1
            c1, c3 = b & _LOW, a & _LOW
            k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
        words[4 * call] = np.uint32(c0)
        words[4 * call + 1] = np.uint32(c1)
        words[4 * call + 2] = np.uint32(c2)
        words[4 * call + 3] = np.uint32(c3)


@njit(nogil=True, error_model="numpy")
def sum_tile(tile: Any, count: int) -> float:
    """The sum of the first `count` elements in float64, in eight lanes: one alone would wait for itself."""
    a = b = c = d = e = f = g = h = 0.0
    whole = count // 8
    for i in range(whole):
        j = 8 * i
        a += np.float64(tile[j])
        b += np.float64(tile[j + 1])
        c += np.float64(tile[j + 2])
        d += np.float64(tile[j + 3])
        e += np.float64(tile[j + 4])
        f += np.float64(tile[j + 5])
        g += np.float64(tile[j + 6])
        h += np.float64(tile[j + 7])
    for j in range(8 * whole, count):
        a += np.float64(tile[j])
    return ((a + b) + (c + d)) + ((e + f) + (g + h))


@njit(nogil=True, error_model="numpy")
def sum_squares_tile(tile: Any, count: int) -> float:
    """The sum of squares of the first `count` elements in float64, in eight lanes."""
    a = b = c = d = e = f = g = h = 0.0
    whole = count // 8
    for i in range(whole):
        j = 8 * i
        a += np.float64(tile[j]) * np.float64(tile[j])
        b += np.float64(tile[j + 1]) * np.float64(tile[j + 1])
        c += np.float64(tile[j + 2]) * np.float64(tile[j + 2])
        d += np.float64(tile[j + 3]) * np.float64(tile[j + 3])
        e += np.float64(tile[j + 4]) * np.float64(tile[j + 4])
        f += np.float64(tile[j + 5]) * np.float64(tile[j + 5])
        g += np.float64(tile[j + 6]) * np.float64(tile[j + 6])
        h += np.float64(tile[j + 7]) * np.float64(tile[j + 7])
    for j in range(8 * whole, count):
        a += np.float64(tile[j]) * np.float64(tile[j])
    return ((a + b) + (c + d)) + ((e + f) + (g + h))


@njit(nogil=True)
def sum_integers_tile(tile: Any, count: int) -> Any:
    """The sum of the first `count` integers in int64; it wraps."""
    total = np.int64(0)
    for j in range(count):
        total += np.int64(tile[j])
    return total


def _folder(name: str, choose_one: Any, wide: Any, doc: str) -> Any:
    def fold(tile: Any, count: int, start: Any) -> Any:
        a = b = c = d = wide(start)
        whole = count // 4
        for i in range(whole):
            j = 4 * i
            a = choose_one(a, wide(tile[j]))
            b = choose_one(b, wide(tile[j + 1]))
            c = choose_one(c, wide(tile[j + 2]))
            d = choose_one(d, wide(tile[j + 3]))
        for j in range(4 * whole, count):
            a = choose_one(a, wide(tile[j]))
        return choose_one(choose_one(a, b), choose_one(c, d))

    fold.__name__ = fold.__qualname__ = name
    fold.__doc__ = doc
    return njit(nogil=True)(fold)


max_tile = _folder("max_tile", maximum, np.float64, "The largest of `start` and `count` elements; NaN if any is.")
min_tile = _folder("min_tile", minimum, np.float64, "The smallest of `start` and `count` elements; NaN if any is.")
max_integers_tile = _folder("max_integers_tile", maximum, np.int64, "The largest of `start` and `count` integers.")
min_integers_tile = _folder("min_integers_tile", minimum, np.int64, "The smallest of `start` and `count` integers.")
