"""Lists whose tensors lie apart in memory: where they lie, that kernels find them, and that nothing else is touched."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from cuda_engine_on_host import HostEngine, assert_equals_oracle
from engine_checks import check_on_threads, own_inputs

import coconet_lab as cl
from coconet_lab import workloads
from coconet_lab.ir.exact import integer_inputs
from coconet_lab.ir.inputs import proof_inputs, random_inputs
from coconet_lab.ir.types import TensorType
from coconet_lab.kernels.cuda_launch import bucket_tables
from coconet_lab.kernels.cuda_printer import print_kernel
from coconet_lab.kernels.lower import lower
from coconet_lab.kernels.numba_printer import print_numba
from coconet_lab.kernels.plan import Buffer, Collective, Launch, Library, Transfer
from coconet_lab.kernels.scatter import reserved_elements, shifts, spans
from coconet_lab.run.engine import Engine
from coconet_lab.run.engine_memory import run_time_extents
from coconet_lab.run.world import ThreadWorld

LIST = [(5,), (1,), (0,), (1023,), (1024,), (3, 0), (1025,), (4099,)]
MAKERS = {"sgd": workloads.sgd, "adam": workloads.adam, "lamb": workloads.lamb}


def buffer(layout=cl.Local, dtype=cl.FP32, shapes=LIST, bucket=1024, **facts):
    elements = sum(int(np.prod(shape)) for shape in shapes)
    kind = TensorType(dtype, (elements,), layout, 0, tuple(shapes), False, bucket)
    placement = "block" if layout.is_sliced else "whole"
    return Buffer("b3", "g", kind, placement, "input", False, 0, 4 * elements, 0, 0, True, **facts)


# -- places ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [cl.FP16, cl.FP32, cl.FP64], ids=repr)
@pytest.mark.parametrize("layout", [cl.Local, cl.Sliced(0)], ids=repr)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_tensors_lie_apart_at_multiples_of_256_bytes_in_an_order_of_their_own(ranks, layout, dtype):
    made = buffer(layout, dtype)
    for index in range(ranks):
        found = spans(made, made.type, index, ranks)
        assert sum(b - a for a, b in found) == made.type.local_shape(index, ranks)[0]
        assert all(a * dtype.itemsize % 256 == 0 for a, _ in found)
        inside = sorted(found)
        assert len(found) < 3 or inside != found
        assert all(b < c for (_, b), (c, _) in pairwise(inside)), "no two follow each other without a gap"
        assert all(a >= 0 and b <= reserved_elements(made, ranks) for a, b in found)


def test_a_sliced_value_in_a_whole_buffer_takes_its_part_of_each_tensor():
    made = buffer()
    block = made.type.with_layout(cl.Sliced(0))
    whole = spans(made, made.type, 0, 2)
    parts = [span for index in range(2) for span in spans(made, block, index, 2)]
    covered = [e for a, b in sorted(parts) for e in range(a, b)]
    assert covered == [e for a, b in sorted(whole) for e in range(a, b)]


def test_a_list_in_a_row_is_shifted_by_where_its_block_starts_alone():
    row = replace(buffer(cl.Sliced(0)), scattered=False)
    ((low, _),) = row.type.ranges(1, 2)
    assert set(shifts(row, 1, 2)) == {-low}


@pytest.mark.parametrize(("dtype", "count"), [("fp32", 4), ("fp16", 5)])
def test_tables_take_at_most_six_tenths_of_a_percent_of_bert_s_weights(dtype, count):
    made = workloads.adam(elements=list(workloads.BERT_SHAPES), ranks=1, dtype=dtype)
    plan = lower(made.schedules["fuse(RS-Opt-AG)"].program)
    (entry,) = [e for e in plan.entries if isinstance(e, Launch)]
    scattered = [t for t, tensor in enumerate(entry.kernel.tensors) if tensor.scattered]
    places = {t: shifts(plan.buffers[entry.tensors[t].buffer], 0, 1) for t in scattered}
    tables = bucket_tables(entry.kernel, 0, None, places)
    used = sum(table.nbytes for table in tables.values())
    weights = 4 * sum(int(np.prod(shape)) for shape in workloads.BERT_SHAPES)
    assert len(scattered) == count
    assert used <= 24 * len(tables["bucket_piece"])
    assert used <= 0.006 * weights
    assert run_time_extents(entry.kernel, list(places.values())).nbytes < 0.0001 * weights


@pytest.mark.parametrize("ranks", [2, 4])
def test_so_do_the_tables_of_a_rank_that_pushes(ranks):
    made = workloads.adam(elements=list(workloads.BERT_SHAPES), ranks=ranks, dtype="fp16")
    (entry,) = [e for e in lower(made.schedules[FUSED].program).entries if isinstance(e, Launch)]
    tables = [bucket_tables(entry.kernel, rank) for rank in range(ranks)]
    pushed = sum(table["bucket_start"].nbytes + table["bucket_piece"].nbytes for table in tables)
    assert pushed <= 0.004 * 4 * sum(int(np.prod(shape)) for shape in workloads.BERT_SHAPES)


# -- Plans -----------------------------------------------------------------------------------------------------------


def test_every_list_of_an_optimizer_is_scattered_and_no_kernel_of_one_tensor_is():
    for made, expected in ((workloads.adam(LIST, 2), True), (workloads.adam(64, 2), False)):
        for schedule in made.schedules.values():
            plan = lower(schedule.program)
            kernels = [tensor for kernel in plan.kernels() for tensor in kernel.tensors if tensor.shape]
            assert {b.scattered for b in plan.buffers.values() if b.type.shape} == {expected}
            assert {tensor.scattered for tensor in kernels} == {expected}
            for kernel in plan.kernels():
                assert ("a.shift[" in print_kernel(kernel).body) is expected


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_the_text_of_a_fused_sgd_is_the_golden_one_and_serves_every_list(target, golden):
    body = {}
    for shapes in (LIST, [(7,), (2000, 3)]):
        plan = lower(workloads.sgd(shapes, 2, "fp16").schedules["fuse(RS-Opt-AG)"].program)
        (kernel,) = plan.kernels()
        body[len(shapes)] = print_numba(kernel) if target == "cpu" else print_kernel(kernel).body
    assert len(set(body.values())) == 1
    golden(body[len(LIST)], ".txt" if target == "cpu" else ".cu")


def test_an_operator_of_the_user_takes_lists_in_a_row_and_the_plan_shows_the_packs():
    double = cl.operator("double", meaning=lambda x, ranges: x + x)
    x = cl.tensor("x", cl.FP32, [(5,), (1030,)], cl.Sliced(0))
    program = cl.program("p", outputs=[double(x, name="y")], ranks=2)
    plan = lower(program)
    assert [type(e) for e in plan.entries] == [Launch, Library, Launch]
    assert [e.name for e in plan.entries] == ["pack x", "y", "unpack y"]
    check_on_threads(program)


# -- runs ------------------------------------------------------------------------------------------------------------

FEW = [("sgd", 3, "fp32"), ("adam", 2, "fp16"), ("adam", 4, "fp32"), ("lamb", 3, "fp16"), ("lamb", 1, "fp32")]
TOLERANCE = {"lamb": 1e-5}
FUSED = "fuse(RS-Opt-AG)"


@pytest.fixture(scope="module")
def folder(pytestconfig):
    return pytestconfig.cache.mkdir("cuda_on_host")


@pytest.mark.parametrize(("make", "ranks", "dtype"), FEW)
def test_optimizers_of_a_scattered_list_are_the_oracle_s_on_threads(make, ranks, dtype):
    for name, schedule in MAKERS[make](LIST, ranks, dtype).schedules.items():
        # A kernel for each operation takes long to compile, and those of one optimizer are like those of another.
        if name != "naive" or (make, dtype) in (("sgd", "fp32"), ("lamb", "fp16")):
            check_on_threads(schedule.program, tolerance=TOLERANCE.get(make, 0.0))


@pytest.mark.parametrize(("make", "ranks", "dtype"), FEW)
@pytest.mark.parametrize(("name", "form"), [("AR-Opt", "read"), (FUSED, "read"), (FUSED, "turns"), (FUSED, "push")])
def test_optimizers_of_a_scattered_list_are_the_oracle_s_in_cuda_text_on_the_host(
    make, ranks, dtype, name, form, folder
):
    made = MAKERS[make](LIST, ranks, dtype)
    inputs = proof_inputs(made.program, integer_inputs(made.program))
    assert_equals_oracle(made, made.schedules[name], inputs, folder, runs=2, form=form)


def overlapped():
    """A chunk begins and ends inside of buckets, and inside of vectors."""
    x = cl.tensor("x", cl.FP16, [(7, 9), (300,), (1,), (2100,)], cl.Local)
    part = cl.reduce_scatter(x, name="part")
    y = cl.mul(part, part, name="y")
    s = cl.Schedule(cl.program("p", outputs=[cl.all_gather(y, name="whole")], ranks=2))
    return s.overlap("part", "y", "whole").program


def dropped():
    """Masks are drawn by flat index, wherever the tensors lie."""
    x = cl.tensor("x", cl.FP32, [(8,), (1027,), (64,), (2048,)], cl.Replicated)
    return cl.program("p", outputs=[cl.dropout(x, 0.25, name="y")], ranks=2)


@pytest.mark.parametrize("make", [overlapped, dropped])
def test_chunks_and_dropout_of_a_scattered_list_are_the_oracle_s_on_both_printers(make, folder):
    program = make()
    assert any(tensor.scattered for kernel in lower(program).kernels() for tensor in kernel.tensors)
    check_on_threads(program)
    assert_equals_oracle(None, cl.Schedule(program), random_inputs(program), folder)


@pytest.mark.parametrize("layout", [cl.Local, cl.Replicated, cl.Sliced(0)], ids=repr)
def test_a_list_is_sent_tensor_by_tensor_and_by_a_kernel_that_knows_the_partner_s_places(layout):
    x = cl.tensor("x", cl.FP16, LIST, layout)
    sent = cl.send(cl.mul(x, 2, name="twice"), to=cl.GROUP + 1, name="sent")
    program = cl.program("p", outputs=[cl.add(sent, 1, name="y")], ranks=4, groups=2)
    check_on_threads(program)
    fused = cl.Schedule(program).fuse("twice", "sent").program
    assert not any(isinstance(entry, Transfer) for entry in lower(fused).entries)
    check_on_threads(fused)


@pytest.mark.parametrize("reduction", ["+", "max"])
def test_the_library_s_collectives_of_a_list_are_groups_of_calls(reduction):
    x = cl.tensor("x", cl.BF16, LIST, cl.Local)
    outputs = [cl.all_reduce(x, reduction, name="a"), cl.reduce(x, root=1, reduction=reduction, name="r")]
    program = cl.program("p", outputs=[*outputs, cl.broadcast(x, root=0, name="b")], ranks=3)
    assert [type(entry) for entry in lower(program).entries] == 3 * [Collective]
    check_on_threads(program)


def test_hosts_exchange_rows_and_everything_else_stays_where_it_is():
    made = workloads.adam(LIST, 4, "fp16")
    for schedule in made.schedules.values():
        plan = lower(schedule.program, hosts=2)
        assert {b.role for b in plan.buffers.values() if b.type.is_list and not b.scattered} <= {"temporary"}
        check_on_threads(schedule.program, hosts=2)


def many_buffers():
    """A group of more lists than a warp has lanes."""
    shapes = [(5,), (1030,), (64,)]
    lists = [cl.tensor(f"x{n}", cl.FP32, shapes, cl.Sliced(0)) for n in range(37)]
    total = lists[0]
    for n, item in enumerate(lists[1:]):
        total = cl.add(total, item, name=f"y{n}")
    s = cl.Schedule(cl.program("p", outputs=[total], ranks=2))
    return s.fuse(*(f"y{n}" for n in range(36)), name="fused").program


def many_tensors():
    """A list of more tensors than a CTA keeps results of, each divided by its own norm."""
    x = cl.tensor("x", cl.FP32, [(3,)] * 1030 + [(700,)], cl.Sliced(0))
    return cl.program("p", outputs=[cl.div(x, cl.norm(x, name="norm"), name="y")], ranks=2)


def gathered_with_norms():
    """What goes to all ranks is added up for each tensor in the same phase: a warp has whole buckets then."""
    g = cl.tensor("g", cl.FP32, [(5000,), (3,), (1024,), (2050,)], cl.Local)
    part = cl.reduce_scatter(g, name="part")
    y = cl.mul(part, 0.5, name="y")
    s = cl.Schedule(cl.program("p", outputs=[cl.all_gather(y, name="whole"), cl.norm(y, name="norms")], ranks=2))
    return s.fuse("part", "y", "whole", "norms", name="fused").program


def test_a_rank_sends_in_its_turn_what_the_same_thread_has_stored(folder):
    program = gathered_with_norms()
    for form in ("read", "turns"):
        assert_equals_oracle(None, cl.Schedule(program), random_inputs(program), folder, runs=3, form=form)


@pytest.mark.parametrize("make", [many_buffers, many_tensors])
def test_a_list_may_have_any_number_of_buffers_and_tensors(make, folder):
    program = make()
    check_on_threads(program)
    assert_equals_oracle(None, cl.Schedule(program), random_inputs(program), folder)


@pytest.mark.parametrize("form", [None, "read", "turns", "push"])
def test_no_kernel_touches_a_gap(form, folder):
    schedule = workloads.adam(LIST, 2, "fp16").schedules[FUSED]
    plan, inputs = lower(schedule.program), random_inputs(schedule.program)

    def work(world):
        engine = HostEngine(plan, world, folder, form) if form else Engine(plan, world, deadline_s=20)
        for array in engine.memory.arrays.values():
            array.view(np.uint8)[...] = 0xA5
        engine.load(own_inputs(schedule.program, plan, inputs, world.rank))
        engine.run()
        for name, made in plan.buffers.items():
            if made.scattered:
                gaps = engine.memory.arrays[name].copy()
                for a, b in spans(made, made.type, world.rank, 2):
                    gaps.view(np.uint8)[a * gaps.itemsize : b * gaps.itemsize] = 0xA5
                assert set(gaps.view(np.uint8)) == {0xA5}, name
        engine.close()

    ThreadWorld.run(2, work)
