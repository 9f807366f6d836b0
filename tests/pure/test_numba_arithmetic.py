"""Elements of CPU kernels against NumPy: every function, every dtype, every cast, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from kernels_by_hand import Hand, launch, same
from numba import njit

from coconet_lab.errors import CodegenError
from coconet_lab.ir.dtypes import BF16, DTYPES, FP16, FP32, FP64, INT32, INT64
from coconet_lab.ir.elementwise import FUNCTIONS
from coconet_lab.ir.ops import COMPARISONS, FLOAT_ONLY, INEXACT, POINTWISE
from coconet_lab.ir.rng import dropout_keep
from coconet_lab.ir.rounding import cast, rounded
from coconet_lab.kernels import kernel as k
from coconet_lab.kernels import numba_forms
from coconet_lab.kernels.numba_runtime import to_bf16, to_fp16, to_odd

EXACT = [fn for fn in POINTWISE if fn not in INEXACT]
SIGN_OF_ZERO_IS_FREE = ("Maximum", "Minimum")


def special(dtype):
    """Numbers that go wrong first, then random ones of all magnitudes."""
    rng = np.random.default_rng(7)
    if not dtype.is_float:
        info = np.iinfo(dtype.numpy)
        return np.concatenate((
            np.array([0, 1, -1, 7, -8, info.max, info.min, info.max - 1], dtype.numpy),
            rng.integers(-1000, 1000, 40).astype(dtype.numpy),
        ))  # fmt: skip
    tiny = {FP16: 2.0**-24, BF16: 2.0**-133, FP32: 2.0**-149, FP64: 2.0**-1074}[dtype]
    values = [0.0, -0.0, 1.0, -1.0, 0.5, 3.0, np.inf, -np.inf, np.nan, tiny, -tiny, 1000 * tiny, 65504.0, 1 + dtype.eps]
    scaled = rng.standard_normal(60) * 10.0 ** rng.integers(-4, 4, 60)
    return rounded(np.concatenate((values, scaled)), dtype)


def pairs(dtype):
    values = special(dtype)
    a, b = np.meshgrid(values, values)
    return np.ascontiguousarray(a).reshape(-1), np.ascontiguousarray(b).reshape(-1)


@pytest.mark.parametrize("dtypes", [(FP16, BF16), (FP32, FP64), (INT32, INT64)], ids=str)
def test_every_exact_function_has_numpys_bits_in_every_dtype(dtypes):
    hand, arrays, expected, names = Hand((0,)), [], [], []
    for dtype in dtypes:
        a, b = pairs(dtype)
        chosen = (np.arange(a.size) % 3 - 1).astype(np.int32)
        hand.space = k.Space(a.shape, None, 1)
        tensors = [hand.tensor("a", dtype), hand.tensor("b", dtype), hand.tensor("c", INT32)]
        registers = [hand.load(t) for t in tensors]
        arrays += [a, b, chosen]
        for fn in EXACT:
            if fn in FLOAT_ONLY and not dtype.is_float:
                continue
            x = [registers[2], *registers[:2]] if fn == "Where" else registers[: POINTWISE[fn]]
            given = [chosen, a, b] if fn == "Where" else [a, b][: POINTWISE[fn]]
            hand.output(hand.apply(fn, *x, dtype=INT32 if fn in COMPARISONS else dtype))
            with np.errstate(all="ignore"):
                expected.append(FUNCTIONS[fn](dtype, *given))
            names.append((len(hand.tensors) - 1, fn, dtype))
            arrays.append(np.zeros_like(expected[-1]))
    launch(hand.kernel(), [arrays])
    for (at, fn, dtype), want in zip(names, expected):
        plus_zero = 0 if fn in SIGN_OF_ZERO_IS_FREE else None
        found = arrays[at] if plus_zero is None else arrays[at] + arrays[at].dtype.type(0)
        want = want if plus_zero is None else want + want.dtype.type(0)
        assert same(found, want), (fn, dtype)


def test_exp_log_pow_tanh_and_erf_are_within_8_ulp():
    rng = np.random.default_rng(1)
    a = np.concatenate((special(FP32), rng.uniform(-20, 20, 4000).astype(np.float32)))
    b = np.resize(special(FP32)[::-1], a.shape)
    hand = Hand(a.shape)
    x, y = (hand.load(hand.tensor(name, FP32)) for name in "ab")
    chosen = sorted(INEXACT)
    for fn in chosen:
        hand.output(hand.apply(fn, *(x, y)[: POINTWISE[fn]]))
    found = [np.zeros_like(a) for _ in chosen]
    launch(hand.kernel(), [[a, b, *found]])
    for fn, values in zip(chosen, found):
        with np.errstate(all="ignore"):
            want = FUNCTIONS[fn](FP32, *(a, b)[: POINTWISE[fn]])
            limit = 8 * np.spacing(np.abs(want))
            near = np.abs(values.astype(np.float64) - want) <= limit
        assert (near | (values == want) | (np.isnan(values) & np.isnan(want))).all(), fn


def test_casts_between_all_dtypes_round_as_the_language_says():
    hand, arrays, expected = Hand((0,)), [], []
    for source in DTYPES.values():
        values = special(source)
        hand.space = k.Space((48,), None, 1)
        register = hand.load(hand.tensor("x", source))
        arrays.append(values[:48].copy())
        for target in DTYPES.values():
            hand.output(hand.convert(register, target))
            expected.append((len(arrays), source, target, cast(values[:48], source, target)))
            arrays.append(np.zeros(48, target.numpy))
    launch(hand.kernel(), [arrays])
    for at, source, target, want in expected:
        assert same(arrays[at], want), (source, target)


@njit
def _narrow(source, halves, brains):
    for i in range(source.size):
        halves[i] = to_fp16(to_odd(source[i]))
        brains[i] = to_bf16(to_odd(source[i]))


def test_float64_becomes_16_bit_with_one_rounding():
    rng = np.random.default_rng(3)
    halves = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float64)
    halves = halves[np.isfinite(halves)]
    middles = (halves[:-1] + halves[1:]) / 2
    near = np.concatenate((middles * (1 + 2.0**-40), middles * (1 - 2.0**-40), middles))
    values = np.concatenate((near, rng.standard_normal(1000) * 1e-6, [np.nan, np.inf, -np.inf, 1e300, -1e-300, 0.0]))
    found = np.zeros(values.size, np.float32), np.zeros(values.size, np.float32)
    _narrow(values, *found)
    for dtype, array in zip((FP16, BF16), found):
        want = rounded(values, dtype).astype(np.float32)
        assert ((array == want) | (np.isnan(array) & np.isnan(want))).all(), dtype


@pytest.mark.parametrize(("dim", "ranks"), [(None, 1), (0, 2)])
def test_dropout_draws_the_mask_of_the_global_index(dim, ranks):
    shape, p, stream, seed = (6, 1031), 0.3, 0xF00D_0000_0000_0001, -5
    hand = Hand(shape, dim, ranks)
    x = hand.load(hand.tensor("x", FP32))
    number = hand.scalar("seed", INT64)
    for dtype in (FP32, FP16):
        hand.output(hand.add(k.Drop, dtype, hand.convert(x, dtype), number, stream, p, name="drop"))
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    buffers = [[values, np.zeros(shape, np.float32), np.zeros(shape, np.float16)] for _ in range(ranks)]
    launch(hand.kernel(), buffers, scalars=[seed])
    keep = dropout_keep(seed, stream, np.arange(values.size).reshape(shape), p)
    scale = np.float32(1 / (1 - p))
    halves = (values.astype(np.float16).astype(np.float32) * scale).astype(np.float16)
    rows = shape[0] // ranks
    for rank in range(ranks):
        block = slice(rank * rows, (rank + 1) * rows)
        assert same(buffers[rank][1][block], np.where(keep, values * scale, np.float32(0))[block])
        assert same(buffers[rank][2][block], np.where(keep, halves, np.float16(0))[block])


def test_a_custom_expression_is_computed_in_the_compute_type_and_rounded_once():
    a, b = pairs(FP16)
    hand = Hand(a.shape)
    x, y = (hand.load(hand.tensor(name, FP16)) for name in "ab")
    hand.output(hand.add(k.Call, FP16, "min(max({0} * 0.1 + {1}, -1), 2) / 3", (x, y), name="clamp"))
    found = np.zeros_like(a)
    launch(hand.kernel(), [[a, b, found]])
    with np.errstate(all="ignore"):
        wide = a.astype(np.float32) * np.float32(0.1) + b.astype(np.float32)
        want = (np.minimum(np.maximum(wide, np.float32(-1)), np.float32(2)) / np.float32(3)).astype(np.float16)
    assert same(found + np.float16(0), want + np.float16(0))


@pytest.mark.parametrize("expression", ["open('x')", "{0}.real", "{7}", "{0} +", "[{0}]", "{0} if {0} else {0}"])
def test_an_expression_of_anything_else_is_refused(expression):
    with pytest.raises(CodegenError, match="an expression has"):
        numba_forms.call(expression, ["r0"], FP32)


def test_a_function_with_no_form_for_a_dtype_is_refused():
    with pytest.raises(CodegenError, match="no CPU form for Sqrt of INT32"):
        numba_forms.apply("Sqrt", ["r0"], INT32)
