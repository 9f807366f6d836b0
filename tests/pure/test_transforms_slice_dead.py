"""as_slice stores blocks where blocks are enough; dead drops what nobody reads."""

import programs
import pytest

import coconet_lab as cl
from coconet_lab import FP32, IllegalTransform, Local, Replicated, Sliced
from coconet_lab.ir.updates import is_in_place_gather
from coconet_lab.transforms.as_slice import AsSlice
from coconet_lab.transforms.dead import Dead
from coconet_lab.transforms.reorder import Reorder
from coconet_lab.transforms.split import Split


@pytest.fixture
def reordered():
    return Reorder("total", ("p1",))(Split("total")(programs.adam()))


def products(program, tensor):
    """The layouts of what is multiplied with `tensor`."""
    return {program[r].layout for r in program.readers[tensor] if program.ops[r].kind == "Mul"}


def test_the_state_becomes_sliced_and_its_gathers_ordinary(reordered):
    after = AsSlice(("m", "v", "w"))(reordered)
    assert {after[n].layout for n in ("m", "v", "w", "m1_part")} == {Sliced(0)}
    assert products(reordered, "m") == products(reordered, "v") == {Replicated}
    assert products(after, "m") == products(after, "v") == {Sliced(0)}
    for name in ("m1", "v1", "w1"):
        assert is_in_place_gather(reordered, name)
        assert not is_in_place_gather(after, name)
        assert after.readers[name] == ()
    assert is_in_place_gather(after, "p1")


def test_dead_then_drops_the_gathers_and_keeps_the_updates_and_the_output(reordered):
    after = Dead()(AsSlice(("m", "v", "w"))(reordered))
    assert {"m1", "v1", "w1"}.isdisjoint(after.ops)
    assert {"m1_part", "v1_part", "w1_part", "p1_part", "p1"} <= set(after.ops)
    assert after.moved["m1"].now == ("m1_part",)
    assert "dead() dropped it" in after.unknown("m1").rule


def test_before_the_reorder_it_is_refused_since_the_output_would_become_sliced():
    refusal = AsSlice(("m", "v", "w")).why_not(programs.adam())
    assert "'p1', an output, would become Sliced(0)" in refusal.found
    assert "reorder" in refusal.hint
    with pytest.raises(IllegalTransform, match="would become"):
        AsSlice(("m", "v", "w"))(programs.adam())


def test_another_tensors_update_may_not_change():
    refusal = AsSlice(("m",)).why_not(programs.adam())
    assert "'w1', the update of 'w', would become Sliced(0)" in refusal.found


def test_what_is_sent_may_not_change():
    x = cl.tensor("x", FP32, (8,), Replicated)
    sent = cl.send(x + 1.0, to=cl.GROUP + 1, name="sent")
    before = cl.program("p", outputs=[cl.add(sent, 1.0, name="y")], ranks=8, groups=2)
    assert "'sent', what is sent, would become" in AsSlice(("x",)).why_not(before).found


def test_an_operation_that_takes_no_blocks_is_named():
    x, g = cl.tensor("x", FP32, (8,), Replicated), cl.tensor("g", FP32, (8,), Local)
    before = cl.program("p", outputs=[cl.add(x, g, name="y")], ranks=4)
    refusal = AsSlice(("x",)).why_not(before)
    assert "'y' cannot work on blocks" in refusal.found
    assert "share a layout" in refusal.rule


def test_scalars_sliced_inputs_and_other_operations_are_refused(reordered):
    assert "it is a scalar" in AsSlice(("lr",)).why_not(reordered).found
    assert "it is a Local input" in AsSlice(("g",)).why_not(reordered).found
    assert "it is Div" in AsSlice(("G",)).why_not(reordered).found
    assert "no value 'nothing'" in AsSlice(("nothing",)).why_not(reordered).found
    assert "names no tensor" in AsSlice(()).why_not(reordered).found


def test_a_dim_it_does_not_have_is_refused(reordered):
    assert "along dim 1 among 4 ranks" in AsSlice(("m",), 1).why_not(reordered).found


def _twice_updated():
    w, x = cl.tensor("w", FP32, (8,), Replicated), cl.tensor("x", FP32, (8,), Sliced(0))
    first = cl.all_gather(cl.update(w, x, name="first_part"), name="first")
    return cl.program("p", outputs=[cl.update(first, first * 2.0, name="second")], ranks=2)


def test_a_tensor_whose_gathered_version_is_updated_again_stays_whole():
    refusal = AsSlice(("w",)).why_not(_twice_updated())
    assert "'second' updates a gathered version of it" in refusal.found


def test_readers_of_the_block_come_before_the_update_of_the_gathered_version():
    w, x = cl.tensor("w", FP32, (8,), Replicated), cl.tensor("x", FP32, (8,), Sliced(0))
    part = cl.update(w, x, name="part")
    second = cl.update(cl.all_gather(part, name="whole"), cl.tensor("v", FP32, (8,), Replicated), name="second")
    before = cl.program("p", outputs=[second, cl.mul(part, 2.0, name="block")], ranks=2)
    assert before.order.position["block"] < before.order.position["second"]


def test_a_tensor_no_dim_of_which_divides_stays_whole():
    x, y = cl.tensor("x", FP32, (6, 9), Replicated), cl.tensor("y", FP32, (6, 9), Replicated)
    before = cl.program("p", outputs=[cl.add(x, y, name="z")], ranks=4)
    assert "along dim 0 among 4 ranks" in AsSlice(("x",)).why_not(before).found


def test_the_dim_is_that_of_the_tensors_own_update():
    before = Reorder("total", ("w1",))(Split("total", 1)(programs.adam(mixed=False, shape=(8, 8))))
    assert AsSlice(("m",))(before)["m"].layout == Sliced(1)


def test_without_an_update_the_dim_is_the_first_that_divides():
    x, y = cl.tensor("x", FP32, (6, 8), Replicated), cl.tensor("y", FP32, (6, 8), Sliced(1))
    before = cl.program("p", outputs=[cl.add(x, y, name="z")], ranks=4)
    assert AsSlice(("x",))(before)["x"].layout == Sliced(1)


def test_candidates_of_as_slice_are_all_updated_tensors_those_whose_gathers_die_and_each(reordered):
    assert list(AsSlice.candidates(reordered)) == [
        AsSlice(("p", "w", "m", "v")),
        AsSlice(("w", "m", "v")),
        *(AsSlice((n,)) for n in "pwmv"),
    ]


def test_dead_drops_what_only_dropped_values_read():
    x = cl.tensor("x", FP32, (8,), Sliced(0))
    a = cl.add(x, 1.0, name="a")
    whole = cl.all_gather(a, name="whole")
    before = cl.program("p", outputs=[cl.mul(whole, 2.0, name="y")], ranks=4)
    sliced = Reorder("whole", ("y",))(before)
    assert Dead().why_not(sliced).found.startswith("every value is read")
    loose = before.edit(
        {n: op for n, op in before.ops.items() if n != "y"}
        | {"y": before.ops["a"].__class__(name="y", fn="Add", operands=before.ops["a"].operands)},
        touched=["y"],
    )
    after = Dead()(loose)
    assert list(after.ops) == ["x", "y"]


def test_dead_of_one_name_drops_it_alone_or_says_why_not(reordered):
    after = AsSlice(("m", "v", "w"))(reordered)
    assert "m1" not in Dead("m1")(after)
    assert "v1" in Dead("m1")(after)
    assert "'div_" in Dead("m1_part").why_not(after).found or "reads it" in Dead("m1_part").why_not(after).found
    assert "it is an output" in Dead("p1").why_not(after).found
    assert "it is an input" in Dead("m").why_not(after).found
    assert "it is an effect" in Dead("m1").why_not(reordered).found
    assert "no value 'nothing'" in Dead("nothing").why_not(after).found


def test_an_update_nobody_reads_is_an_effect():
    state, x = cl.tensor("s", FP32, (8,), Replicated), cl.tensor("x", FP32, (8,), Replicated)
    before = cl.program("p", outputs=[cl.update(state, x, name="s1")], ranks=2)
    assert not Dead().why_not(before).applies


def test_scripts_of_as_slice_and_dead():
    assert AsSlice(("m", "v")).script() == 'as_slice("m", "v")'
    assert AsSlice(("m",), 1).script() == 'as_slice("m", dim=1)'
    assert Dead().script() == "dead()"
    assert Dead("m1").script() == 'dead("m1")'
    assert list(Dead.candidates(programs.adam())) == [Dead()]
