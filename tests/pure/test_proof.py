"""check(): what it draws, how it compares, and that planted mistakes are caught (design §4a)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from programs import adam, lamb, mlp, pipeline, self_attention, sgd

import coconet_lab as cl
from coconet_lab.ir import ops as o
from coconet_lab.ir.compare import first_difference
from coconet_lab.ir.exact import below, inexact_sums, integer_inputs, within_tolerance
from coconet_lab.ir.inputs import random_inputs
from coconet_lab.ir.oracle import run
from coconet_lab.ir.rounding import allowance, mismatch
from coconet_lab.schedule.proof import prove
from coconet_lab.schedule.shrink import shrunk, small_extents
from coconet_lab.transforms.base import Transform
from coconet_lab.transforms.split import Split

# -- what proofs say -----------------------------------------------------------------------------------------------


def test_a_proof_says_what_was_compared_and_how():
    s = cl.Schedule(mlp()).split("total").reorder("total", past="out")
    assert repr(s.check()) == "equal: 1 output × 4 ranks, exact, at small size"
    assert repr(s.check(full=True)) == "equal: 1 output × 4 ranks, exact, at full size"
    assert "equal: 1 output × 4 ranks" in repr(s)
    assert s.check().exact


@pytest.mark.parametrize("make", [sgd, adam, lamb, self_attention, mlp, pipeline])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_papers_programs_hold_after_split_and_reorder(make, ranks):
    program = make(ranks=ranks) if make is not pipeline else make(ranks=2 * ranks)
    s = cl.Schedule(program).split("total").reorder("total", past=program.outputs[0])
    for seed in (0, 1):
        assert s.check(seed=seed).states == {"sgd": 1, "adam": 4, "lamb": 3}.get(program.name, 0)


def test_only_reordered_inexact_sums_weaken_a_proof_and_it_says_so():
    program = lamb()
    assert cl.Schedule(program).check().exact
    proof = cl.Schedule(program).split("total").reorder("total", past="w1").check()
    assert proof.inexact == ("u_norm",)
    assert "within 16 eps below u_norm" in repr(proof)


def test_an_output_full_of_nan_proves_little_and_the_proof_says_so():
    x = cl.tensor("x", cl.FP32, (8,), cl.Local, low=-2, high=-1)
    program = cl.program("p", outputs=[cl.sqrt(cl.all_reduce(x, name="t"), name="y")], ranks=2)
    assert "most of 'y' is NaN" in repr(cl.Schedule(program).check())


# -- planted mistakes ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Planted(Transform):
    """A step that does whatever a test says, right or wrong."""

    edit: Callable
    kind: ClassVar[str] = "planted"

    def plan(self, program):
        return self.edit

    def carry_out(self, program, plan):
        return plan(program)

    @classmethod
    def candidates(cls, program):
        return iter(())

    def script(self):
        return "planted()"


def changing(name, **fields):
    """A step that changes attributes of one operation."""

    def edit(program):
        op = replace(program.ops[name], **fields)
        return program.edit({**program.ops, name: op}, touched=[name])

    return Planted(edit)


MISTAKES = {
    "another operation": (self_attention, changing("out", fn="Sub"), "'out' differs"),
    "another operand": (self_attention, changing("out", operands=("drop", "drop")), "'out' differs"),
    "a constant forgotten": (adam, changing("G", operands=("total_wide", o.Literal(1))), "differs"),
    "a reduction of another kind": (sgd, changing("total", reduction="max"), "'w1' differs"),
    "another mask": (self_attention, changing("drop", stream=1), "'out' differs"),
    "another probability": (self_attention, changing("drop", p=0.2), "'out' differs"),
    "an output dropped": (self_attention, Planted(lambda p: p.edit(outputs=("drop",))), "the outputs are"),
    "an output's rows swapped": (self_attention, Planted(lambda p: swapped(p)), "'out' differs"),
}


def swapped(program):
    """Every rank computes with its neighbour's half of r."""
    flip = o.CustomOperator("flip", lambda kind, ranks: kind, lambda x, ranges: x[::-1].copy())
    ops = {}
    for name, op in program.ops.items():
        if name == "out":
            ops["r_flipped"] = o.Custom(name="r_flipped", operands=("r",), operator=flip)
            op = replace(op, operands=("drop", "r_flipped"))
        ops[name] = op
    return program.edit(ops, touched=["r_flipped", "out"])


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_caught_and_named(mistake):
    make, step, words = MISTAKES[mistake]
    program = make()
    if mistake == "a constant forgotten":
        step = changing("G", operands=(next(program.ops["G"].sources), o.Literal(1)))
    with pytest.raises(cl.ProofError, match=words) as caught:
        cl.Schedule(program).then(step).check()
    assert "first after step 1: planted()" in caught.value.where
    assert caught.value.hint


def scaled(name, factor):
    """A step that multiplies one value by nearly 1."""
    return Planted(
        lambda p: p.edit({**p.ops, name: replace(p.ops[name], operands=(p.ops[name].operands[0], o.Literal(factor)))})
    )


def planted(schedule, step):
    return prove(schedule.base, [*schedule.steps, step])


def test_one_bit_is_a_mistake_where_no_inexact_sum_was_reordered_and_so_in_every_output():
    x = cl.tensor("x", cl.FP32, (8,), cl.Local, low=0.1, high=0.9)
    total = cl.all_reduce(x, name="total")
    outputs = [total, cl.mul(cl.tensor("r", cl.FP32, (8,), cl.Replicated), 1.0, name="out")]
    program = cl.program("p", outputs=outputs, ranks=4)
    one_bit = scaled("out", 1 + cl.FP32.eps)
    for schedule in (cl.Schedule(program), cl.Schedule(program).split("total")):
        assert planted(schedule, scaled("out", 1.0)).outputs == 2
        with pytest.raises(cl.ProofError, match="'out' differs"):
            planted(schedule, one_bit)


def test_below_an_inexact_reordered_sum_16_eps_of_the_largest_magnitude_are_allowed_and_no_more():
    x = cl.tensor("x", cl.FP32, (8,), cl.Local, low=0.1, high=0.9)
    program = cl.program("p", outputs=[cl.mul(cl.all_reduce(x, name="total"), 1.0, name="out")], ranks=4)
    schedule = cl.Schedule(program).split("total")
    assert planted(schedule, scaled("out", 1 + 10 * cl.FP32.eps)).inexact == ("total",)
    with pytest.raises(cl.ProofError, match="'out' differs"):
        planted(schedule, scaled("out", 1 + 22 * cl.FP32.eps))
    with pytest.raises(cl.ProofError, match="'out' differs"):  # nothing was reordered
        planted(cl.Schedule(program), scaled("out", 1 + 10 * cl.FP32.eps))


def test_a_difference_names_output_rank_global_index_and_both_values():
    kind = cl.Schedule(self_attention()).split("total")["total_rs"].type
    expected = np.zeros(kind.shape, kind.dtype.numpy)
    held = [(rank, expected[2 * rank : 2 * rank + 2].copy()) for rank in range(4)]
    held[2][1][1, 3, 0] = 7
    found = first_difference("total_rs", kind, held, expected, group_ranks=4)
    assert str(found) == "'total_rs' differs on rank 2 at [5, 3, 0]: 7.0 instead of 0.0"


def test_a_wrong_split_is_the_first_step_that_broke_it(monkeypatch):
    right = Split.carry_out

    def wrong(self, program, plan):
        result = right(self, program, plan)
        part = replace(result.ops["total_rs"], reduction="min")
        return result.edit({**result.ops, "total_rs": part}, touched=["total_rs"])

    monkeypatch.setattr(Split, "carry_out", wrong)
    s = cl.Schedule(self_attention()).split("total").reorder("total", past="out")
    with pytest.raises(cl.ProofError) as caught:
        s.check()
    error = caught.value
    assert error.found.startswith("'out' differs on rank 0 at [")
    assert " instead of " in error.found
    assert 'first after step 1: split("total")' in error.where
    assert "before(1)" in error.hint
    assert "not equal" in repr(s)


def test_a_broadcast_from_the_wrong_root_meets_poison(monkeypatch):
    right = Split.carry_out

    def wrong(self, program, plan):
        result = right(self, program, plan)
        return result.edit({**result.ops, "total": replace(result.ops["total"], root=1)}, touched=["total"])

    monkeypatch.setattr(Split, "carry_out", wrong)
    with pytest.raises(cl.ProofError, match="nan instead of"):
        cl.Schedule(self_attention()).split("total", into="reduce_broadcast").check()


def test_state_is_compared_where_no_output_shows_it():
    w, u = (cl.tensor(name, cl.FP32, (8,), cl.Replicated) for name in "wu")
    w1 = cl.update(w, w + 1, name="w1")
    u1 = cl.update(u, u * 2, name="u1")
    program = cl.program("p", outputs=[cl.add(w1, u1 * 0, name="out")], ranks=2)
    with pytest.raises(cl.ProofError, match="'u' differs on rank 0"):
        cl.Schedule(program).then(changing("u1", operands=("u", "w1"))).check()


def test_a_replicated_value_must_be_equal_on_all_ranks():
    calls = []

    def drifting(x, ranges):
        calls.append(0)
        return x + np.float32(len(calls) % 2)

    drift = cl.operator("drift", meaning=drifting)
    program = cl.program("p", outputs=[drift(cl.tensor("x", cl.FP32, (8,), cl.Replicated), name="y")], ranks=4)
    with pytest.raises(cl.ProofError, match="'y' differs on rank 1"):
        cl.Schedule(program).check()


def test_a_step_whose_program_cannot_run_is_told_as_such():
    broken = o.CustomOperator("broken", lambda kind, ranks: kind, lambda x, ranges: x[:1])

    def edit(program):
        op = o.Custom(name="out", operands=("drop",), operator=broken)
        return program.edit({**program.ops, "out": op}, touched=["out"])

    with pytest.raises(cl.ProofError, match="cannot be computed: ProgramError"):
        cl.Schedule(self_attention()).then(Planted(edit)).check()


# -- small extents ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_small_extents_keep_what_is_equal_distinct_and_divisible(ranks):
    extents = [0, 1, 2, 3, 7, 8, 9, 12, 64, 1000, 1001, 1024, 3072, 2**20, 2**20 + 1]
    small = small_extents(extents, ranks)
    assert len(set(small.values())) == len(extents)
    assert all((n % ranks == 0) == (small[n] % ranks == 0) for n in extents)
    assert all(small[n] <= n for n in extents)
    assert (small[0], small[1]) == (0, 1)
    assert max(small.values()) < 200


def test_an_uneven_vector_stays_uneven_and_keeps_more_than_one_block():
    g = cl.tensor("g", cl.FP32, (1_000_003,), cl.Local)
    small = shrunk(cl.program("p", outputs=[cl.all_reduce(g, name="t")], ranks=4))
    assert small["t"].shape == (5,)


def test_lists_shrink_tensor_by_tensor_and_keep_several_buckets():
    w = cl.tensor("w", cl.FP32, [(1024, 512), (512,)], cl.Sliced(0))
    small = shrunk(cl.program("p", outputs=[cl.norm(w, name="n")], ranks=2))
    kind = small.types["w"]
    assert kind.pieces == ((5, 4), (4,)) or kind.pieces == ((6, 4), (4,))
    assert len(kind.bucket_starts()) > 4


def test_the_real_extents_serve_where_small_ones_do_not_type_check():
    x, w = cl.tensor("x", cl.FP32, (2, 2, 33), cl.Sliced(1)), cl.tensor("w", cl.FP32, (2, 2, 30), cl.Sliced(1))
    b = cl.tensor("b", cl.FP32, (4,), cl.Replicated)
    out = cl.all_reduce(cl.conv(x, w, name="c"), name="t") + b
    proof = cl.Schedule(cl.program("p", outputs=[out], ranks=2)).split("t").check()
    assert proof.size == "full"
    assert "smaller extents" in repr(proof)


# -- what is drawn and what is exact -----------------------------------------------------------------------------------


def test_integers_are_drawn_where_sums_products_and_matmuls_lead_to_a_sum_across_ranks():
    assert integer_inputs(self_attention()) == {"x", "w"}
    assert integer_inputs(sgd()) == {"g"}
    x = cl.tensor("x", cl.FP32, (8,), cl.Local)
    summed = cl.program("p", outputs=[cl.all_reduce(cl.sum(x * x), name="t")], ranks=2)
    assert integer_inputs(summed) == {"x"}
    stopped = cl.program("p", outputs=[cl.all_reduce(cl.exp(x), name="t")], ranks=2)
    assert integer_inputs(stopped) == frozenset()


LIMITS = [(cl.FP16, 2**11), (cl.BF16, 2**8), (cl.FP32, 2**24), (cl.FP64, 2**53)]


@pytest.mark.parametrize(("dtype", "limit"), LIMITS)
def test_a_sum_is_exact_up_to_the_integers_its_dtype_holds(dtype, limit):
    g = cl.tensor("g", dtype, (1,), cl.Local)
    program = cl.program("p", outputs=[cl.all_reduce(g, name="t")], ranks=2)
    half = limit // 2
    for other, exact in ((half, True), (-half, True), (half + 4, False), (0.5, False)):
        values = np.array([[half], [other]], dtype.numpy)
        assert (inexact_sums(run(program, {"g": values})) == frozenset()) == exact


def test_matmuls_norms_and_convs_are_sums_too():
    a, b = cl.tensor("a", cl.FP16, (2, 4), cl.Replicated), cl.tensor("b", cl.FP16, (4, 2), cl.Replicated)
    program = cl.program("p", outputs=[cl.norm(cl.matmul(a, b, name="y"), name="n")])
    ones = {"a": np.ones((2, 4), np.float16), "b": np.ones((4, 2), np.float16)}
    assert inexact_sums(run(program, ones)) == frozenset()
    assert inexact_sums(run(program, {**ones, "a": np.full((2, 4), 6, np.float16)})) == {"n"}
    assert inexact_sums(run(program, {**ones, "a": np.full((2, 4), 0.5, np.float16)})) == {"y"}
    x, w = cl.tensor("x", cl.FP32, (1, 2, 4), cl.Replicated), cl.tensor("w", cl.FP32, (1, 2, 2), cl.Replicated)
    convolved = cl.program("p", outputs=[cl.conv(x, w, name="c")])
    assert inexact_sums(run(convolved)) == {"c"}


def test_on_a_device_what_lies_below_its_own_functions_has_the_tolerance_too():
    x = cl.tensor("x", cl.FP32, (8,), cl.Replicated)
    program = cl.program("p", outputs=[cl.mul(cl.exp(x, name="e"), 2, name="y"), cl.add(x, 1, name="z")])
    ran = run(program)
    assert within_tolerance(ran) == frozenset()
    assert within_tolerance(ran, device=True) == {"e", "y"}
    assert below(program, ["x"]) == {"x", "e", "y", "z"}


def test_equal_means_nan_and_zero_signs_too_and_a_tolerance_is_of_the_largest():
    nan, a = np.nan, np.array
    assert mismatch(a([nan, 0.0]), a([nan, -0.0])) is None
    assert mismatch(a([[1.0, 2.0], [3.0, nan]]), a([[1.0, 2.0], [3.0, 4.0]])) == (1, 1)
    large = np.array([1000.0, 1.0], np.float32)
    near = large + np.array([0, 0.001], np.float32)
    assert mismatch(near, large) == (1,)
    assert mismatch(near, large, allowance(large, cl.FP32)) is None
    assert mismatch(near + np.float32(0.01), large, allowance(large, cl.FP32)) is not None
    assert mismatch(np.array([np.inf]), np.array([1.0]), 1e9) == (0,)


def test_inputs_of_a_proof_do_not_depend_on_the_schedule():
    program = adam()
    s = cl.Schedule(program).split("total").reorder("total", past="p1").as_slice("m", "v", "w")
    ours, theirs = random_inputs(s.program), random_inputs(program)
    assert all((ours[name] == theirs[name]).all() for name in theirs)


class GoneError(Exception):
    """A class of the caller's own."""


def test_a_check_tells_each_operation_before_it_is_computed():
    told: list[str] = []
    schedule = cl.Schedule(self_attention()).split("total")
    assert schedule.check(before=told.append) == schedule.check()
    assert told == [*schedule.base.ops, *schedule.program.ops]


@pytest.mark.parametrize("at", [1, 12])
def test_what_the_caller_raises_between_two_operations_ends_the_check_there(at):
    told: list[str] = []

    def before(name: str) -> None:
        told.append(name)
        if len(told) == at:
            raise GoneError

    schedule = cl.Schedule(self_attention()).split("total")
    with pytest.raises(GoneError):
        schedule.check(before=before)
    assert len(told) == at
