"""reorder: gathers move below computation exactly as the rules say."""

import programs
import pytest

import coconet_lab as cl
from coconet_lab import FP32, IllegalTransform, Local, Replicated, Sliced
from coconet_lab.transforms.fuse import Fuse
from coconet_lab.transforms.moves import legal_moves
from coconet_lab.transforms.reorder import Reorder
from coconet_lab.transforms.split import Split


def lines(program):
    """name -> "Kind(operands) Layout" of every operation but inputs."""
    return {
        name: f"{op.kind}({', '.join(op.sources)}) {program.types[name].layout}"
        for name, op in program.ops.items()
        if name not in program.inputs
    }


@pytest.fixture
def epilogue():
    return Split("total")(programs.self_attention())


def test_the_epilogue_past_out_computes_on_slices_and_gathers_out(epilogue):
    after = Reorder("total", ("out",))(epilogue)
    assert lines(after) == {
        "layer": "MatMul(x, w) Local",
        "total_rs": "ReduceScatter(layer) Sliced(0)",
        "add_1": "Add(total_rs, b) Sliced(0)",
        "drop": "Dropout(add_1, seed) Sliced(0)",
        "out_part": "Add(drop, r) Sliced(0)",
        "out": "AllGather(out_part) Replicated",
    }
    assert "total" not in after


def test_the_epilogue_past_drop_gathers_drop_and_adds_whole(epilogue):
    after = Reorder("total", ("drop",))(epilogue)
    assert lines(after) == {
        "layer": "MatMul(x, w) Local",
        "total_rs": "ReduceScatter(layer) Sliced(0)",
        "add_1": "Add(total_rs, b) Sliced(0)",
        "drop_part": "Dropout(add_1, seed) Sliced(0)",
        "drop": "AllGather(drop_part) Replicated",
        "out": "Add(drop, r) Replicated",
    }
    assert Reorder("drop", ("out",))(after).key() == Reorder("total", ("out",))(epilogue).key()


def test_an_output_on_the_way_is_gathered_and_read_as_its_part():
    before = Split("total")(programs.self_attention(outputs=("drop", "out")))
    after = Reorder("total", ("out",))(before)
    assert lines(after) == {
        "layer": "MatMul(x, w) Local",
        "total_rs": "ReduceScatter(layer) Sliced(0)",
        "add_1": "Add(total_rs, b) Sliced(0)",
        "drop_part": "Dropout(add_1, seed) Sliced(0)",
        "drop": "AllGather(drop_part) Replicated",
        "out_part": "Add(drop_part, r) Sliced(0)",
        "out": "AllGather(out_part) Replicated",
    }
    assert after.outputs == ("drop", "out")


def test_the_optimizer_past_p1_updates_blocks_and_gathers_them_in_place():
    after = Reorder("total", ("p1",))(Split("total")(programs.adam()))
    found = lines(after)
    assert found["m1_part"].endswith("Sliced(0)")
    assert found["m1"] == "AllGather(m1_part) Replicated"
    for name in ("v1", "w1", "p1"):
        assert found[name] == f"AllGather({name}_part) Replicated"
        assert found[f"{name}_part"].startswith("Update(")
        assert found[f"{name}_part"].endswith("Sliced(0)")
    assert "m1_part" in "".join(v for k, v in found.items() if k.startswith("div"))
    whole = [n for n, op in after.ops.items() if op.kind == "Mul" and after[n].layout == Replicated and after[n].shape]
    assert sorted(next(s for s in after.ops[n].sources if s in "mv") for n in whole) == ["m", "v"]
    names = list(after.ops)
    assert names.index("m1") == names.index("m1_part") + 1


def test_a_slice_of_a_crossed_value_vanishes_and_both_routes_of_the_pipeline_meet():
    first = programs.pipeline()
    direct = Reorder("total", ("sent",))(Split("total")(first))
    assert {k: v for k, v in lines(direct).items() if k in ("out", "sent_part", "sent")} == {
        "out": "Add(drop, r) Sliced(0)",
        "sent_part": "Send(out) Sliced(0)",
        "sent": "AllGather(sent_part) Replicated",
    }
    assert direct["sent_part"].type.group == direct["sent"].type.group == 1
    sliced = Split("sent")(first)
    assert lines(sliced)["out_part"] == "LocalSlice(out) Sliced(0)"
    assert lines(sliced)["sent_part"] == "Send(out_part) Sliced(0)"
    other = Reorder("total", ("sent_part",))(Split("total")(sliced))
    assert "out_part" not in other
    assert other.key() == direct.key()


def test_a_slice_outside_the_region_vanishes_too():
    sliced = Split("total")(Split("sent")(programs.pipeline()))
    after = Reorder("total", ("out",))(sliced)
    assert lines(after)["sent_part"] == "Send(out) Sliced(0)"
    assert "out_part" not in after


def test_a_vanishing_slice_that_is_an_output_becomes_a_copy():
    g, r = cl.tensor("g", FP32, (8,), Sliced(0)), cl.tensor("r", FP32, (8,), Replicated)
    a = cl.add(cl.all_gather(g, name="whole"), r, name="a")
    before = cl.program("p", outputs=[cl.local_slice(a, 0, name="block")], ranks=4)
    after = Reorder("whole", ("block",))(before)
    assert lines(after) == {"a": "Add(g, r) Sliced(0)", "block": "Copy(a) Sliced(0)"}


def test_the_gather_stays_where_it_is_read_outside():
    g, r = cl.tensor("g", FP32, (8,), Local), cl.tensor("r", FP32, (8,), Replicated)
    total = cl.all_reduce(g, name="total")
    before = Split("total")(cl.program("p", outputs=[cl.add(total, r, name="a"), cl.mul(total, r, name="b")], ranks=4))
    after = Reorder("total", ("a",))(before)
    assert lines(after)["total"] == "AllGather(total_rs) Replicated"
    assert lines(after)["a_part"] == "Add(total_rs, r) Sliced(0)"
    assert lines(after)["b"] == "Mul(total, r) Replicated"


def test_a_value_on_the_way_that_is_read_whole_outside_is_gathered_again():
    g, r = cl.tensor("g", FP32, (8,), Local), cl.tensor("r", FP32, (8,), Replicated)
    a = cl.add(cl.all_reduce(g, name="total"), r, name="a")
    before = Split("total")(cl.program("p", outputs=[cl.mul(a, 2.0, name="b"), cl.mul(a, 3.0, name="c")], ranks=4))
    assert lines(Reorder("total", ("b",))(before)) == {
        "total_rs": "ReduceScatter(g) Sliced(0)",
        "a_part": "Add(total_rs, r) Sliced(0)",
        "a": "AllGather(a_part) Replicated",
        "b_part": "Mul(a_part) Sliced(0)",
        "b": "AllGather(b_part) Replicated",
        "c": "Mul(a) Replicated",
    }


def test_a_norm_on_the_way_becomes_explicitly_cross_rank_and_stays_replicated():
    before = Split("total")(programs.lamb())
    after = Reorder("total", ("w1",))(before)
    assert lines(after)["u_norm"] == "Norm(u) Replicated"
    assert after["u"].layout == Sliced(0)


def test_a_dropped_gather_says_which_step_dropped_it_and_what_carries_it(epilogue):
    after = Reorder("total", ("out",))(epilogue)
    error = after.unknown("total")
    assert 'reorder("total", past="out")' in error.rule
    assert "'total_rs'" in error.hint


def test_values_that_do_not_depend_on_the_gather_are_refused(epilogue):
    refusal = Reorder("total", ("layer",)).why_not(epilogue)
    assert "does not depend on 'total'" in refusal.found
    assert not refusal.applies


def test_what_is_no_gather_is_refused_with_the_split_that_makes_one():
    refusal = Reorder("total", ("out",)).why_not(programs.self_attention())
    assert "AllReduce, not an AllGather" in refusal.found
    assert refusal.way_out == Split("total")
    assert refusal.applies


def test_an_unknown_gather_a_wrong_past_and_an_empty_past_are_refused(epilogue):
    assert "no value 'nothing'" in Reorder("nothing", ("out",)).why_not(epilogue).found
    assert "no value 'nothing'" in Reorder("total", ("nothing",)).why_not(epilogue).found
    assert "past nothing" in Reorder("total", ()).why_not(epilogue).found


def test_a_matmul_over_the_sliced_dim_takes_no_slices():
    x, w = cl.tensor("x", FP32, (4, 8), Sliced(1)), cl.tensor("w", FP32, (8, 8), Replicated)
    before = cl.program("p", outputs=[cl.matmul(cl.all_gather(x, name="whole"), w, name="y")], ranks=4)
    refusal = Reorder("whole", ("y",)).why_not(before)
    assert "'y'" in refusal.found
    assert "MatMul takes no slices" in refusal.found
    assert refusal.applies
    with pytest.raises(IllegalTransform, match="takes no slices"):
        Reorder("whole", ("y",))(before)


def test_a_matmul_over_another_dim_takes_slices():
    x, w = cl.tensor("x", FP32, (4, 8), Sliced(0)), cl.tensor("w", FP32, (8, 8), Replicated)
    before = cl.program("p", outputs=[cl.matmul(cl.all_gather(x, name="whole"), w, name="y")], ranks=4)
    assert lines(Reorder("whole", ("y",))(before))["y_part"] == "MatMul(x, w) Sliced(0)"


def test_a_group_whose_reduction_would_go_across_ranks_is_refused_although_no_member_changes():
    g, w = cl.tensor("g", FP32, (8,), Local), cl.tensor("w", FP32, (8,), Replicated)
    total = cl.all_gather(cl.reduce_scatter(g, name="total_rs"), name="total")
    scaled = cl.mul(total, w, name="scaled")
    shifted = cl.add(w, cl.norm(scaled, name="n"), name="shifted")
    before = cl.program("p", outputs=[cl.add(shifted, scaled, name="out")], ranks=2)
    before = Fuse(("n", "shifted"))(before)
    step = Reorder("total", ("out",))
    refusal = step.why_not(before)
    assert "'shifted' runs over the whole on every rank" in refusal.found
    with pytest.raises(IllegalTransform, match="runs over the whole"):
        step(before)
    assert step not in legal_moves(before)


def test_an_operation_that_would_change_more_than_the_layout_is_refused():
    x = cl.tensor("x", FP32, (8, 8), Sliced(1))
    keep = cl.operator("keep", meaning=lambda a, ranges: a, infer=lambda a, ranks: a.with_layout(Local))
    before = cl.program("p", outputs=[keep(cl.all_gather(x, name="whole"), name="y")], ranks=4)
    assert Reorder("whole", ("y",)).why_not(before) is None  # Local before and after: nothing changes
    odd = cl.operator("odd", meaning=lambda a, ranges: a, infer=_odd)
    before = cl.program("p", outputs=[odd(cl.all_gather(x, name="whole"), name="y")], ranks=4)
    assert "instead of FP32[8, 8] Replicated" in Reorder("whole", ("y",)).why_not(before).found


def _odd(kind, ranks):
    return kind.with_layout(Local) if kind.layout.is_sliced else kind


def test_the_candidates_are_past_all_last_values_then_past_each():
    g, r = cl.tensor("g", FP32, (8,), Local), cl.tensor("r", FP32, (8,), Replicated)
    total = cl.all_reduce(g, name="total")
    a = cl.add(total, r, name="a")
    before = cl.program("p", outputs=[cl.add(a, 1.0, name="x"), cl.mul(total, a, name="y")], ranks=4)
    assert list(Reorder.candidates(Split("total")(before))) == [
        Reorder("total", ("x", "y")),
        Reorder("total", ("x",)),
        Reorder("total", ("y",)),
    ]


def test_what_lies_below_a_refused_operation_is_no_candidate():
    x, w = cl.tensor("x", FP32, (8, 8), Sliced(0)), cl.tensor("w", FP32, (8, 8), Sliced(0))
    a = cl.add(cl.all_gather(x, name="whole"), 1.0, name="a")
    partial = cl.matmul(cl.local_slice(a, 1), w, name="partial")
    before = cl.program("p", outputs=[cl.add(a, cl.all_reduce(partial, name="sum"), name="out")], ranks=4)
    assert list(Reorder.candidates(before)) == [Reorder("whole", ("a",))]


def test_a_norm_that_a_later_value_depends_on_is_no_last_value():
    assert list(Reorder.candidates(Split("total")(programs.lamb()))) == [Reorder("total", ("w1",))]


def test_the_script_names_one_value_plainly_and_several_as_a_list():
    assert Reorder("total", ("out",)).script() == 'reorder("total", past="out")'
    assert Reorder("total", ("x", 'y"')).script() == 'reorder("total", past=["x", "y\\""])'
