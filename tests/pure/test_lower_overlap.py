"""Overlapped stages: where they are cut, in which order they are issued, and that every meeting is needed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from plan_checks import ORDERS, check_plan, differences
from plan_interpreter import run_plan

import coconet_lab as cl
from coconet_lab import FP32, Local, Replicated, Sliced
from coconet_lab.ir import oracle
from coconet_lab.ir.program import Overlap
from coconet_lab.kernels.lower import lower
from coconet_lab.kernels.plan import Collective, Launch, Library
from coconet_lab.workloads import pipeline, self_attention


def overlapped(program, *stages):
    return program.edit(overlaps=(Overlap("ol", stages),))


def shown(plan):
    return [f"{e.name}{e.chunk.index}" if e.chunk else e.name for e in plan.entries]


def attention(batch=4, sequence=8, hidden=8, ranks=4):
    return self_attention(batch, sequence, hidden, ranks).schedules["ol(MM,fuse(RS-C-AG))"].program


def test_chunks_are_issued_one_stage_behind_the_other_on_streams_of_their_own():
    plan = check_plan(attention())
    assert shown(plan) == ["layer0", "layer1", "fused0", "layer2", "fused1", "layer3", "fused2", "fused3"]
    assert {e.name: e.stream for e in plan.entries} == {"layer": 0, "fused": 1}


def test_the_chunks_of_a_stage_are_its_whole_index_space_once():
    for entries in (lower(attention()).entries, lower(attention(sequence=5), chunks=3).entries):
        for name in ("layer", "fused"):
            cuts = [e.chunk for e in entries if e.name == name]
            assert cuts[0].start == 0
            assert all(a.stop == b.start for a, b in pairwise(cuts))
            assert len({c.dim for c in cuts}) == 1


def test_the_cut_dim_is_the_outermost_unsliced_one_with_enough_elements_then_the_sliced_one_then_fewer_chunks():
    for sizes, found in {(4, 8, 8): (1, 4), (8, 2, 8): (2, 4), (8, 3, 2): (1, 3), (8, 1, 2): (2, 2)}.items():
        chunk = lower(attention(*sizes, ranks=2)).entries[0].chunk
        assert (chunk.dim, chunk.count) == found
    x = cl.tensor("x", FP32, (16, 3), Local)
    out = cl.all_gather(cl.reduce_scatter(x, name="part"), name="out")
    chunk = lower(overlapped(cl.program("p", outputs=[out], ranks=2), "part", "out")).entries[0].chunk
    assert (chunk.dim, chunk.start, chunk.stop, chunk.count) == (0, 0, 2, 4)


@pytest.mark.parametrize("elements", [5, 17, 64])
def test_one_dimension_is_cut_relative_to_the_block(elements):
    x = cl.tensor("x", FP32, (elements,), Local)
    part = cl.reduce_scatter(x, name="part")
    out = cl.all_gather(cl.mul(part, 2, name="twice"), name="out")
    plan = check_plan(overlapped(cl.program("p", outputs=[out], ranks=4), "part", "twice", "out"), chunks=2)
    assert all(isinstance(e, Launch) for e in plan.entries)


def test_a_local_producer_of_one_dimension_cannot_be_cut_as_its_blocks_are_and_runs_whole():
    x = cl.tensor("x", FP32, (16,), Local)
    part = cl.reduce_scatter(cl.mul(x, 2, name="twice"), name="part")
    plan = check_plan(overlapped(cl.program("p", outputs=[part], ranks=4), "twice", "part"))
    assert [type(e) for e in plan.entries] == [Launch, Collective]
    assert [e.stream for e in plan.entries] == [0, 1]


def test_a_gather_feeds_a_matmul_by_rows_but_never_along_k():
    x = cl.tensor("x", FP32, (4, 8, 4), Sliced(0))
    w = cl.tensor("w", FP32, (4, 4), Replicated)
    out = cl.matmul(cl.all_gather(x, name="whole"), w, name="out")
    plan = check_plan(overlapped(cl.program("p", outputs=[out], ranks=4), "whole", "out"))
    assert {e.chunk.dim for e in plan.entries} == {1}
    flat = cl.tensor("flat", FP32, (4, 4), Sliced(0))
    rows = cl.program("p", outputs=[cl.matmul(cl.all_gather(flat, name="whole"), w, name="out")], ranks=4)
    assert all(e.chunk is None for e in check_plan(overlapped(rows, "whole", "out")).entries)


def test_a_matmuls_columns_feed_a_matmul_as_its_second_operand():
    a, x, w = (cl.tensor(n, FP32, (4, 8), Replicated) for n in ("a", "x", "w"))
    b = cl.matmul(cl.tensor("c", FP32, (4, 4), Replicated), w, name="b")
    out = cl.matmul(cl.matmul(a, cl.tensor("d", FP32, (8, 4), Replicated)), b, name="out")
    plan = check_plan(overlapped(cl.program("p", outputs=[out + x], ranks=2), "b", "out"))
    assert {e.chunk.dim for e in plan.entries if e.chunk} == {1}


def test_a_convolution_is_cut_by_images_or_output_channels():
    x = cl.tensor("x", FP32, (4, 4, 5, 5), Sliced(1))
    w = cl.tensor("w", FP32, (4, 4, 2, 2), Sliced(1))
    part = cl.reduce_scatter(cl.conv(x, w, name="c"), dim=1, name="part")
    plan = check_plan(overlapped(cl.program("p", outputs=[part], ranks=4), "c", "part"))
    assert {e.chunk.dim for e in plan.entries} == {0}


def test_an_all_reduce_in_an_overlap_is_the_one_shot_kernel():
    x, w = cl.tensor("x", FP32, (4, 4), Sliced(1)), cl.tensor("w", FP32, (4, 4), Sliced(0))
    total = cl.all_reduce(cl.matmul(x, w, name="layer"), name="total")
    plan = check_plan(overlapped(cl.program("p", outputs=[total], ranks=2), "layer", "total"))
    assert {type(e) for e in plan.entries} == {Library, Launch}


def test_an_update_of_what_an_earlier_stage_reads_whole_is_not_cut():
    x, w = cl.tensor("x", FP32, (4, 4), Replicated), cl.tensor("w", FP32, (4, 4), Replicated)
    product = cl.matmul(w, x, name="product")
    w1 = cl.update(w, product, name="w1")
    twice = cl.mul(product, 2, name="twice")
    plan = check_plan(overlapped(cl.program("p", outputs=[w1, twice], ranks=2), "product", "w1"))
    assert all(e.chunk is None for e in plan.entries)


def test_lists_are_cut_relative_to_the_block():
    x = cl.tensor("x", FP32, [(7, 9), (300,), (1,)], Local, bucket=16)
    out = cl.all_gather(cl.reduce_scatter(x, name="part"), name="out")
    plan = check_plan(overlapped(cl.program("p", outputs=[out], ranks=3), "part", "out"))
    assert shown(plan)[:3] == ["part0", "part1", "out0"]


# -- the meetings are needed, and the interpreter sees it ------------------------------------------------------------


def fails(program, plan):
    """Whether some order of `ORDERS`, or of many random ones, makes wrong values or never ends."""
    inputs = cl.random_inputs(program)
    expected = oracle.run(program, inputs)
    for seed, greedy in (*ORDERS, *((seed, None) for seed in range(2, 40))):
        try:
            if differences(program, plan, run_plan(program, plan, inputs, seed, greedy), expected):
                return True
        except AssertionError:
            return True
    return False


def sent():
    return pipeline(4, 8, 8, 4).schedules["ol(RS,fuse(C-P2P),AG)"].program


# A rank's own signal is among those a chunk waits for, so `after` alone carries what no peer is needed for.
@pytest.mark.parametrize(
    ("make", "what"), [(attention, "wait"), (attention, "signal"), (sent, "wait"), (sent, "signal"), (sent, "after")]
)
def test_a_plan_without_one_kind_of_meeting_is_wrong(make, what):
    program = make()
    plan = lower(program)
    entries = []
    for entry in plan.entries:
        if what == "after":
            entries.append(replace(entry, after=()))
        else:
            opens = tuple(s for s in entry.opens if s.kind != what)
            entries.append(replace(entry, opens=opens, closes=tuple(s for s in entry.closes if s.kind != what)))
    assert not fails(program, plan)
    assert fails(program, replace(plan, entries=tuple(entries)))


@pytest.mark.parametrize("end", ["opens", "closes"])
def test_a_fused_collective_without_one_of_its_barriers_is_wrong(end):
    g = cl.tensor("g", FP32, (8,), Local)
    w = cl.tensor("w", FP32, (8,), Replicated)
    total = cl.all_reduce(cl.mul(g, 2, name="h"), name="total")
    out = cl.add(total, w, name="out")
    s = cl.Schedule(cl.program("p", outputs=[cl.mul(out, 2, name="last")], ranks=4))
    program = s.split("total").reorder("total", past="out").fuse("total_rs", "out").program
    plan = lower(program)
    entries = tuple(replace(e, **{end: ()}) for e in plan.entries)
    assert not fails(program, plan)
    assert fails(program, replace(plan, entries=entries))
