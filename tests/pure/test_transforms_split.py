"""split: what an AllReduce and a Send become, and why other things are refused."""

import programs
import pytest

import coconet_lab as cl
from coconet_lab import FP32, IllegalTransform, Local, Replicated, Sliced
from coconet_lab.transforms.split import Split


def test_an_all_reduce_becomes_a_reduce_scatter_and_a_gather_of_its_name():
    before = programs.self_attention()
    after = Split("total")(before)
    names = list(after.ops)
    assert names[names.index("layer") :] == ["layer", "total_rs", "total", "add_1", "drop", "out"]
    assert repr(after["total_rs"]) == "total_rs = ReduceScatter(layer, dim=0): FP16[8, 4, 8] Sliced(0), 4 ranks"
    assert repr(after["total"]) == "total = AllGather(total_rs): FP16[8, 4, 8] Replicated, 4 ranks"
    assert after.ops["total_rs"].label == after.ops["total"].label == "total"
    assert after.ops["total_rs"].site == before.ops["total"].site
    assert "total_rs" not in before


def test_the_reduction_goes_along():
    g = cl.tensor("g", FP32, (8,), Local)
    before = cl.program("p", outputs=[cl.all_reduce(g, "max", name="top")], ranks=4)
    assert Split("top")(before).ops["top_rs"].reduction == "max"
    assert Split("top", into="reduce_broadcast")(before).ops["top_reduce"].reduction == "max"


def test_into_reduce_and_broadcast_sums_on_one_rank():
    after = Split("total", into="reduce_broadcast")(programs.sgd())
    assert repr(after["total_reduce"]) == "total_reduce = Reduce(g, root=0): FP32[16] Local, 4 ranks"
    assert repr(after["total"]) == "total = Broadcast(total_reduce, root=0): FP32[16] Replicated, 4 ranks"


def test_a_send_of_a_replicated_value_becomes_slice_send_and_gather_in_the_target_group():
    after = Split("sent")(programs.pipeline())
    assert list(after.ops)[-4:] == ["out", "out_part", "sent_part", "sent"]
    assert repr(after["out_part"]) == "out_part = LocalSlice(out, dim=0): FP16[8, 4, 8] Sliced(0), 4 ranks"
    assert repr(after["sent_part"]) == "sent_part = Send(out_part, offset=1): FP16[8, 4, 8] Sliced(0) group 1, 4 ranks"
    assert repr(after["sent"]) == "sent = AllGather(sent_part): FP16[8, 4, 8] Replicated group 1, 4 ranks"
    assert [after.ops[n].label for n in ("out_part", "sent_part", "sent")] == ["out", "sent", "sent"]


def test_no_dim_means_the_first_that_divides():
    g = cl.tensor("g", FP32, (6, 8), Local)
    before = cl.program("p", outputs=[cl.all_reduce(g, name="total")], ranks=4)
    assert Split("total")(before)["total_rs"].layout == Sliced(1)
    assert Split("total", 1)(before)["total_rs"].layout == Sliced(1)


def test_one_dimensional_values_take_any_size():
    assert Split("total")(programs.sgd(elements=13))["total_rs"].layout == Sliced(0)


def test_a_list_of_tensors_is_sliced_along_its_one_dim():
    g = cl.tensor("g", FP32, [(3, 5), (7,)], Local)
    before = cl.program("p", outputs=[cl.all_reduce(g, name="total")], ranks=4)
    assert Split("total")(before)["total_rs"].layout == Sliced(0)
    assert "has dims 0 to 0" in Split("total", 1).why_not(before).found


def test_made_up_names_avoid_what_is_there():
    g = cl.tensor("total_rs", FP32, (8,), Local)
    before = cl.program("p", outputs=[cl.all_reduce(g, name="total")], ranks=4)
    assert "total_rs_2" in Split("total")(before)


def test_a_dim_that_does_not_divide_is_refused_with_one_that_does():
    g = cl.tensor("g", FP32, (6, 8), Local)
    before = cl.program("p", outputs=[cl.all_reduce(g, name="total")], ranks=4)
    refusal = Split("total", 0).why_not(before)
    assert "it has 6 elements for 4 ranks" in refusal.found
    assert refusal.way_out == Split("total", 1)
    assert "pad dim 0 to 8" in refusal.hint


def test_a_dim_that_is_none_is_refused():
    assert "has dims 0 to 2" in Split("total", 3).why_not(programs.self_attention()).found


def test_a_shape_none_of_whose_dims_divides_is_refused():
    g = cl.tensor("g", FP32, (6, 9), Local)
    before = cl.program("p", outputs=[cl.all_reduce(g, name="total")], ranks=4)
    assert "no dim divides among 4 ranks" in Split("total").why_not(before).found


def test_one_number_has_nothing_to_slice():
    g = cl.tensor("g", FP32, (8,), Local)
    before = cl.program("p", outputs=[cl.all_reduce(cl.sum(g), name="total")], ranks=4)
    assert "zero-dimensional" in Split("total").why_not(before).found


def test_other_operations_are_refused_with_what_could_be_split():
    refusal = Split("out").why_not(programs.self_attention())
    assert refusal.found == "'out' is an Add, not an AllReduce"
    assert refusal.hint == 'split("total")'
    assert "[paper §3.1]" in refusal.rule
    assert not refusal.applies


def test_an_unknown_name_an_unknown_form_and_a_dim_for_a_root_are_refused():
    before = programs.sgd()
    assert "no value 'nothing'" in Split("nothing").why_not(before).found
    assert "into 'halves'" in Split("total", into="halves").why_not(before).found
    assert "its root receives it whole" in Split("total", 0, "reduce_broadcast").why_not(before).found


def test_a_send_of_slices_is_not_split_again():
    before = Split("sent")(programs.pipeline())
    assert "Replicated" in Split("sent_part").why_not(before).rule
    assert "sends a value that is Sliced(0)" in Split("sent_part").why_not(before).found
    assert "'reduce_broadcast'" in Split("sent", into="reduce_broadcast").why_not(programs.pipeline()).found


def test_the_error_has_four_lines_and_the_program_is_untouched():
    before = programs.self_attention()
    key = before.key()
    with pytest.raises(IllegalTransform) as error:
        Split("out")(before)
    assert str(error.value).splitlines() == [
        "'out' is an Add, not an AllReduce",
        "  rule: an AllReduce is a ReduceScatter and an AllGather, or a Reduce and a Broadcast [paper §3.1]",
        "  in:   program 'self_attention', split(\"out\")",
        '  try:  split("total")',
    ]
    assert before.key() == key


def test_candidates_are_the_all_reduces_and_the_sends_of_replicated_values():
    assert list(Split.candidates(programs.pipeline())) == [Split("total"), Split("sent")]
    assert list(Split.candidates(Split("sent")(programs.pipeline()))) == [Split("total")]


def test_the_script_leaves_out_what_is_the_default():
    assert Split("total").script() == 'split("total")'
    assert Split("total", 1, "reduce_broadcast").script() == 'split("total", dim=1, into="reduce_broadcast")'


def test_with_one_rank_a_split_changes_nothing_but_the_operations():
    after = Split("total")(programs.sgd(ranks=1))
    assert after["total"].layout == Replicated
    assert after["total_rs"].local_shape == (16,)
