"""overlap: chains of producers and consumers, and every reason one is refused."""

import programs
import pytest

import coconet_lab as cl
from coconet_lab import FP32, IllegalTransform, Local, Replicated, Sliced
from coconet_lab.ir.program import Overlap as Annotation
from coconet_lab.transforms.as_slice import AsSlice
from coconet_lab.transforms.dead import Dead
from coconet_lab.transforms.fuse import Fuse
from coconet_lab.transforms.overlap import Overlap
from coconet_lab.transforms.reorder import Reorder
from coconet_lab.transforms.split import Split


def after(program, *steps):
    for step in steps:
        program = step(program)
    return program


def refusal(program, *names, name=None):
    found = Overlap(names, name).why_not(program)
    assert found is not None
    with pytest.raises(IllegalTransform):
        Overlap(names, name)(program)
    return found


@pytest.fixture
def fused():
    return after(programs.self_attention(), Split("total"), Reorder("total", ("out",)), Fuse(("total_rs", "out")))


@pytest.fixture
def sending():
    return after(
        programs.pipeline(), Split("total"), Reorder("total", ("sent",)), Fuse(("add_1", "sent_part"), name="cp")
    )


def test_a_matmul_and_the_fused_collective_it_feeds_run_at_once(fused):
    done = Overlap(("layer", "fused"))(fused)
    assert done.overlaps == (Annotation("ol", ("layer", "fused")),)
    assert Overlap(("layer", "out_part"), "mine")(fused).overlaps == (Annotation("mine", ("layer", "fused"), True),)
    assert dict(done.types) == dict(fused.types)


def test_the_pipeline_overlaps_three_stages_in_two_process_groups(sending):
    assert Overlap(("total_rs", "cp", "sent"))(sending).overlaps[0].stages == ("total_rs", "cp", "sent")
    assert Overlap(("layer", "total_rs", "cp", "sent")).why_not(sending) is None


def test_stages_that_feed_nothing_are_refused_with_the_right_order_where_there_is_one(fused):
    found = refusal(fused, "fused", "layer")
    assert "'layer' reads nothing of 'fused'" in found.found
    assert found.way_out == Overlap(("layer", "fused"))
    x = cl.tensor("x", FP32, (8,), Sliced(0))
    before = cl.program("p", outputs=[cl.all_gather(x, name="a"), cl.all_gather(x, name="b")], ranks=2)
    assert not refusal(before, "a", "b").applies


def test_one_stage_or_the_same_one_twice_is_no_chain(fused):
    assert "as stages they are fused | fused" in refusal(fused, "total_rs", "out").found
    assert "as stages they are layer" in refusal(fused, "layer").found
    assert "as stages they are nothing" in refusal(fused).found


def test_what_runs_between_the_stages_is_named():
    before = programs.self_attention()
    assert "'out' reads nothing of 'layer'" in refusal(before, "layer", "out").found
    x = cl.tensor("x", FP32, (8,), Local)
    total = cl.all_reduce(x, name="total")
    twice = cl.mul(total, 2.0, name="twice")
    before = cl.program("p", outputs=[cl.add(total, cl.mul(twice, 3.0, name="thrice"), name="y")], ranks=2)
    assert "'twice' runs between them" in refusal(before, "total", "y").found


def test_operations_that_do_not_run_in_chunks_are_refused():
    x = cl.tensor("x", FP32, (8, 8), Sliced(0))
    swapped = cl.all_to_all(x, split=1, concat=0, name="swapped")
    before = cl.program("p", outputs=[cl.all_gather(swapped, name="y"), cl.sum(swapped, 1, name="s")], ranks=2)
    assert "'swapped' is AllToAll, which does not run in chunks" in refusal(before, "swapped", "y").found
    assert "'x' is Input" in refusal(before, "x", "swapped").found


def test_a_reduction_across_the_chunks_after_the_first_stage_is_refused():
    lamb = after(
        programs.lamb(), Split("total"), Reorder("total", ("w1",)), AsSlice(("m", "v")), Dead(), Fuse(("G", "w1_part"))
    )
    found = refusal(lamb, "total_rs", "fused")
    assert "(Norm) reduces across dim 0" in found.found
    assert Overlap(("fused", "w1")).why_not(lamb) is None  # in the first stage it may


def test_a_reduction_of_whole_rows_is_none_across_chunks_of_rows():
    x = cl.tensor("x", FP32, (8, 8), Local)
    rs = cl.reduce_scatter(x, 0, name="rs")
    before = cl.program("p", outputs=[cl.mul(rs, cl.sum(rs, 1, name="rows"), name="y")], ranks=2)
    grouped = Fuse(("rows", "y"))(before)
    assert Overlap(("rs", "fused")).why_not(grouped) is None


def test_a_matmul_sums_over_chunks_of_its_inner_dim_only():
    x, w = cl.tensor("x", FP32, (8, 8), Sliced(0)), cl.tensor("w", FP32, (8, 8), Replicated)
    whole = cl.all_gather(x, name="whole")
    rows = cl.program("p", outputs=[cl.matmul(whole, w, name="y")], ranks=2)
    assert Overlap(("whole", "y")).why_not(rows) is None
    inner = cl.program("p", outputs=[cl.matmul(w, whole, name="y")], ranks=2)
    assert "'y' (MatMul) reduces across dim 0" in refusal(inner, "whole", "y").found
    both = cl.program("p", outputs=[cl.matmul(whole, whole, name="y")], ranks=2)
    assert "'y' (MatMul) reduces across dim 0" in refusal(both, "whole", "y").found


def test_columns_of_a_right_operand_are_columns_of_the_product():
    x, w = cl.tensor("x", FP32, (8, 8), Sliced(1)), cl.tensor("w", FP32, (8, 8), Replicated)
    before = cl.program("p", outputs=[cl.matmul(w, cl.all_gather(x, name="whole"), name="y")], ranks=2)
    assert Overlap(("whole", "y")).why_not(before) is None


def test_a_convolution_keeps_chunks_of_the_batch():
    k = cl.tensor("k", FP32, (4, 4, 3), Replicated)
    batch = cl.all_gather(cl.tensor("x", FP32, (4, 4, 8), Sliced(0)), name="whole")
    assert Overlap(("whole", "y")).why_not(cl.program("p", outputs=[cl.conv(batch, k, name="y")], ranks=2)) is None
    channels = cl.all_gather(cl.tensor("x", FP32, (4, 4, 8), Sliced(1)), name="whole")
    before = cl.program("p", outputs=[cl.conv(channels, k, name="y")], ranks=2)
    assert "'y' (Conv) reduces across dim 1" in refusal(before, "whole", "y").found
    kernels = cl.all_gather(cl.tensor("c", FP32, (4, 4, 3), Sliced(0)), name="whole")
    x = cl.tensor("x", FP32, (4, 4, 8), Replicated)
    assert Overlap(("whole", "y")).why_not(cl.program("p", outputs=[cl.conv(x, kernels, name="y")], ranks=2)) is None


def test_chunks_of_two_dims_do_not_match():
    x = cl.tensor("x", FP32, (8, 8), Sliced(0))
    whole = cl.all_gather(x, name="whole")
    cut = cl.local_slice(whole, 1)
    before = cl.program("p", outputs=[cl.all_gather(cl.mul(cut, 2.0, name="twice"), name="y")], ranks=2)
    grouped = Fuse(("localslice_1", "y"))(before)
    found = refusal(grouped, "whole", "fused")
    assert "one runs in chunks of dim 0, the other of dim 1" in found.found


def test_one_number_has_no_chunks():
    total = cl.all_reduce(cl.sum(cl.tensor("x", FP32, (8,), Local)), name="total")
    before = cl.program("p", outputs=[cl.mul(total, 2.0, name="y")], ranks=2)
    assert "'total' is one number" in refusal(before, "total", "y").found


def test_overlaps_that_would_wait_for_each_other_are_refused():
    g, h = cl.tensor("g", FP32, (8,), Local), cl.tensor("h", FP32, (8,), Local)
    a, c = cl.all_reduce(g, name="a"), cl.all_reduce(h, name="c")
    b = cl.add(a, c, name="b")
    d = cl.mul(c, a, name="d")
    before = cl.program("p", outputs=[b, d], ranks=2)
    one = Overlap(("a", "b"))(before)
    assert "'ol' would wait for them, and they for 'ol'" in refusal(one, "c", "d").found


def test_a_stage_of_an_overlap_is_in_no_other_and_other_steps_leave_it_alone(fused):
    done = Overlap(("layer", "fused"))(fused)
    assert "'layer' runs in overlap 'ol'" in refusal(done, "layer", "fused").found
    before = after(programs.self_attention(), Overlap(("layer", "total")))
    assert "'total' runs in overlap 'ol'" in Split("total").why_not(before).found
    before = after(programs.self_attention(), Split("total"), Overlap(("total_rs", "total")))
    assert "runs in overlap 'ol'" in Reorder("total", ("out",)).why_not(before).found
    assert "comes last" in Reorder("total", ("out",)).why_not(before).rule
    chained = after(programs.adam(), Split("total"), Reorder("total", ("p1",)), Overlap(("mul_1", "add_1")))
    assert "'mul_1' runs in overlap 'ol'" in AsSlice(("m", "v", "w")).why_not(chained).found


def test_a_slice_that_would_vanish_from_a_stage_and_a_tensor_a_stage_updates_stay():
    out = cl.add(cl.all_gather(cl.tensor("x", FP32, (8,), Sliced(0)), name="total"), 1.0, name="out")
    sent = cl.all_gather(cl.send(cl.local_slice(out, name="cut"), to=cl.GROUP + 1, name="block"), name="sent")
    before = cl.program("p", outputs=[sent, out], ranks=4, groups=2)
    chained = after(before, Fuse(("cut", "block"), "c"), Overlap(("c", "sent")))
    assert Reorder("total", ("out",)).why_not(before) is None
    assert "'cut' runs in overlap 'ol'" in Reorder("total", ("out",)).why_not(chained).found
    state = after(programs.adam(), Split("total"), Reorder("total", ("p1",)), Overlap(("m1_part", "m1")))
    assert "'m1_part' runs in overlap 'ol'" in AsSlice(("m",)).why_not(state).found


def test_dead_leaves_an_unread_stage_alone():
    before = after(programs.adam(), Split("total"), Reorder("total", ("p1",)), AsSlice(("m", "v", "w")))
    kept = Overlap(("m1_part", "m1"))(before)
    assert "runs in overlap" in Dead("m1").why_not(kept).found
    assert "m1" in Dead()(kept)
    assert "v1" not in Dead()(kept)


def test_names_that_are_taken_empty_or_unknown_are_refused(fused):
    assert "the name is taken" in refusal(fused, "layer", "fused", name="fused").found
    assert "it is empty" in refusal(fused, "layer", "fused", name="").found
    assert "no value 'nothing'" in refusal(fused, "layer", "nothing").found


def test_candidates_are_the_longest_chain_then_adjacent_pairs(sending):
    assert [step.names for step in Overlap.candidates(sending)] == [
        ("layer", "total_rs", "cp", "sent"),
        ("layer", "total_rs"),
        ("total_rs", "cp"),
        ("cp", "sent"),
    ]


def test_the_script_writes_the_call():
    assert Overlap(("layer", "fused")).script() == 'overlap("layer", "fused")'
    assert Overlap(("a", "b"), "x").script() == 'overlap("a", "b", name="x")'
