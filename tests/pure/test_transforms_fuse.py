"""fuse: which values become one kernel, what it is called, and every reason it is refused."""

import programs
import pytest

import coconet_lab as cl
from coconet_lab import FP32, IllegalTransform, Local, ProgramError, Replicated, Sliced
from coconet_lab.ir.program import Fusion
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


def vector(name, layout=Replicated, elements=8):
    return cl.tensor(name, FP32, (elements,), layout)


def fused(program, *steps):
    return after(program, *steps).fusions[-1]


def test_before_the_split_the_group_is_the_one_shot_form():
    group = fused(programs.self_attention(), Fuse(("total", "out")))
    assert group == Fusion("fused", ("total", "add_1", "drop", "out"))


def test_after_split_and_reorder_the_group_is_the_two_shot_form():
    group = fused(
        programs.self_attention(), Split("total"), Reorder("total", ("out",)), Fuse(("total_rs", "out"), "fused")
    )
    assert group == Fusion("fused", ("total_rs", "add_1", "drop", "out_part", "out"), True)


def test_megatron_fuses_the_pointwise_part_alone():
    assert fused(programs.self_attention(), Fuse(("add_1", "out"))).members == ("add_1", "drop", "out")


def test_the_optimizer_is_one_group_whichever_way_it_was_reached():
    direct = after(
        programs.adam(),
        Split("total"),
        Reorder("total", ("p1",)),
        AsSlice(("m", "v", "w")),
        Dead(),
        Fuse(("total_rs", "p1")),
    )
    ar_opt = after(programs.adam(), Fuse(("G", "p1")))
    rs_opt_ag = after(ar_opt, Split("total"), Reorder("total", ("fused",)), AsSlice(("m", "v", "w")), Dead())
    assert "total_rs" not in rs_opt_ag.fusions[0].members
    assert "p1" not in rs_opt_ag.fusions[0].members
    assert "p1_part" in rs_opt_ag.fusions[0].members
    assert after(rs_opt_ag, Fuse(("total_rs", "fused", "p1"))).key() == direct.key()
    assert len(direct.fusions[0].members) == len(direct.ops) - len(direct.inputs)


def test_products_with_the_state_and_scalars_are_absorbed():
    group = fused(programs.adam(), Fuse(("G", "p1")))
    program = after(programs.adam(), Fuse(("G", "p1")))
    outside = [n for n in program.ops if n not in group.members and n not in program.inputs]
    assert outside == ["total"]


def test_without_dead_the_state_is_gathered_outside_the_group():
    group = fused(programs.adam(), Split("total"), Reorder("total", ("p1",)), Fuse(("total_rs", "p1")))
    assert {"m1_part", "v1_part", "w1_part", "p1_part", "p1"} <= set(group.members)
    assert {"m1", "v1", "w1"}.isdisjoint(group.members)


def test_a_scalar_that_two_groups_use_stays_outside_both():
    x, s = vector("x"), cl.scalar("s", FP32)
    square = s * 2.0
    a = cl.all_gather(cl.local_slice(cl.add(x * square, 1.0, name="a"), 0), name="whole")
    before = cl.program("p", outputs=[cl.add(a * square, 2.0, name="b")], ranks=2)
    done = after(before, Fuse(("mul_2", "a")), Fuse(("mul_3", "b")))
    assert done["mul_1"].shape == ()
    assert [f.members for f in done.fusions] == [("mul_2", "a"), ("mul_3", "b")]


def test_a_reader_of_an_old_tensor_is_not_absorbed_where_the_update_comes_between():
    w, x = vector("w"), vector("x")
    old = cl.mul(w, 2.0, name="old")
    w1 = cl.update(w, x, name="w1")
    y = cl.add(old, cl.all_gather(cl.local_slice(w1, 0), name="again"), name="y")
    before = cl.program("p", outputs=[cl.mul(y, 3.0, name="z")], ranks=2)
    group = fused(before, Fuse(("y", "z")))
    assert group.members == ("y", "z")


def test_a_member_names_its_group_which_lends_its_name():
    before = after(programs.self_attention(), Fuse(("add_1", "drop"), "mine"))
    assert fused(before, Fuse(("drop", "out"))) == Fusion("mine", ("add_1", "drop", "out"), True)
    assert fused(before, Fuse(("mine", "out"))).name == "mine"
    renamed = after(before, Fuse(("mine", "out"), "other"))
    assert renamed.fusions[0].name == "other"
    assert renamed.moved["mine"].now == ("other",)


def test_made_up_names_count():
    before = after(programs.lamb(), Fuse(("G", "m1")), Fuse(("div_2", "sqrt_1")))
    assert [f.name for f in before.fusions] == ["fused", "fused_2"]


def refusal(program, *names, name=None):
    found = Fuse(names, name).why_not(program)
    assert found is not None
    with pytest.raises(IllegalTransform):
        Fuse(names, name)(program)
    return found


def test_operations_that_cannot_run_inside_are_refused_by_name():
    found = refusal(programs.self_attention(), "layer", "out")
    assert "'layer' is MatMul, which cannot run inside a fused kernel" in found.found
    assert "overlap" in found.hint
    sums = Split("total", into="reduce_broadcast")(programs.sgd())
    assert "'total_reduce' is Reduce" in refusal(sums, "total_reduce").found
    assert "'total' is Broadcast" in refusal(sums, "total", "w1").found
    assert "'b' is an input" in refusal(programs.self_attention(), "b", "out").found
    x, k = cl.tensor("x", FP32, (4, 4, 8), Sliced(0)), cl.tensor("k", FP32, (4, 4, 3), Replicated)
    swapped = cl.all_to_all(cl.conv(x, k, name="y"), split=1, concat=0, name="swapped")
    before = cl.program("p", outputs=[swapped], ranks=4)
    assert "'y' is Conv" in refusal(before, "y").found
    assert "'swapped' is AllToAll" in refusal(before, "swapped").found


def test_an_operator_without_an_expression_cannot_run_inside_one_with_it_can():
    call = cl.operator("call", meaning=lambda a, ranges: a)
    shown = cl.operator("shown", meaning=lambda a, ranges: a, expression="{0}")
    before = cl.program("p", outputs=[call(shown(vector("x") + 1.0, name="a"), name="b")], ranks=2)
    assert "'b' is call" in refusal(before, "a", "b").found
    assert fused(before, Fuse(("add_1", "a"))).members == ("add_1", "a")


def test_two_reducing_collectives_are_refused():
    g = vector("g", Local)
    before = cl.program(
        "p", outputs=[cl.add(cl.all_reduce(g, name="a"), cl.all_reduce(g, "max", name="b"), name="c")], ranks=2
    )
    assert "'a' (AllReduce) and 'b' (AllReduce) both reduce" in refusal(before, "a", "b", "c").found


def test_a_collective_of_what_the_group_computes_is_refused():
    before = cl.program("p", outputs=[cl.all_reduce(cl.mul(vector("g", Local), 2.0, name="a"), name="b")], ranks=2)
    assert "'b' reduces 'a', which the group computes" in refusal(before, "a", "b").found


def test_an_operand_of_the_collective_is_not_absorbed():
    g = vector("g", Local)
    twice = cl.mul(g, 2.0, name="twice")
    before = cl.program("p", outputs=[cl.add(cl.all_reduce(twice, name="total"), twice, name="out")], ranks=2)
    assert fused(before, Fuse(("total", "out"))).members == ("total", "out")


def test_reading_the_groups_own_gather_is_refused_with_the_reorder_that_helps():
    found = refusal(Split("total")(programs.self_attention()), "total_rs", "out")
    assert "'add_1' reads 'total', the group's own AllGather" in found.found
    assert found.hint == 'reorder("total", past="out") first'
    assert found.way_out == Reorder("total", ("out",))


def test_reading_the_groups_own_send_is_refused():
    sent = cl.send(cl.add(vector("x"), 1.0, name="a"), to=cl.GROUP + 1, name="sent")
    before = cl.program("p", outputs=[cl.add(sent, 1.0, name="b")], ranks=4, groups=2)
    assert "'b' reads 'sent', the group's own Send" in refusal(before, "a", "b").found
    assert fused(before, Fuse(("a", "sent"))).members == ("a", "sent")


def test_two_process_groups_are_refused():
    x, y = vector("x"), cl.tensor("y", FP32, (8,), Replicated, group=1)
    before = cl.program("p", outputs=[cl.add(x, 1.0, name="a"), cl.add(y, 1.0, name="b")], ranks=4, groups=2)
    assert "'b' runs in process group 1, other members in 0" in refusal(before, "a", "b").found


def test_two_shapes_are_two_index_spaces():
    x, y = vector("x"), vector("y", elements=16)
    before = cl.program("p", outputs=[cl.add(x, 1.0, name="a"), cl.add(y, 1.0, name="b")], ranks=2)
    assert "'a' runs over [8], the group over [16]" in refusal(before, "a", "b").found


def test_two_sliced_dims_are_two_index_spaces():
    x, y = cl.tensor("x", FP32, (8, 8), Sliced(0)), cl.tensor("y", FP32, (8, 8), Sliced(1))
    before = cl.program("p", outputs=[cl.add(x, 1.0, name="a"), cl.add(y, 1.0, name="b")], ranks=2)
    assert "'b' runs over blocks of dim 1 of [8, 8], the group over blocks of dim 0" in refusal(before, "a", "b").found


def test_a_whole_value_that_is_read_outside_does_not_go_with_blocks():
    x, r = vector("x", Sliced(0)), vector("r")
    twice = cl.mul(r, 2.0, name="twice")
    before = cl.program("p", outputs=[cl.add(x, twice, name="a"), cl.add(twice, 1.0, name="b")], ranks=2)
    found = refusal(before, "twice", "a")
    assert "'twice' runs over the whole on every rank, the group over blocks of dim 0 of [8]" in found.found
    inside = cl.program("q", outputs=[cl.add(x, twice, name="a")], ranks=2)
    assert fused(inside, Fuse(("a",))).members == ("twice", "a")


def test_a_smaller_value_is_computed_where_it_is_read_but_not_written():
    x, b = cl.tensor("x", FP32, (4, 8), Sliced(0)), vector("b")
    half = cl.mul(b, 0.5, name="half")
    before = cl.program("p", outputs=[cl.add(x, half, name="a")], ranks=2)
    assert fused(before, Fuse(("a",))).members == ("half", "a")
    read = cl.program("q", outputs=[cl.add(x, half, name="a"), half], ranks=2)
    assert "'half' runs over [8]" in refusal(read, "half", "a").found


def test_local_values_do_not_go_with_blocks():
    g, x = vector("g", Local), vector("x", Sliced(0))
    before = cl.program("p", outputs=[cl.add(g, 1.0, name="a"), cl.add(x, 1.0, name="b")], ranks=2)
    assert "'a' runs over a whole value of every rank's own" in refusal(before, "a", "b").found


def test_an_all_reduce_does_not_go_with_blocks():
    x = vector("x", Sliced(0))
    total = cl.all_reduce(vector("g", Local), name="total")
    before = cl.program("p", outputs=[cl.add(total, x, name="a")], ranks=2)
    assert "'total' runs over the whole on every rank" in refusal(before, "total", "a").found


def test_a_collective_of_one_number_does_not_go_with_tensors():
    x = vector("x")
    total = cl.all_reduce(cl.sum(vector("g", Local)), name="total")
    before = cl.program("p", outputs=[cl.add(x, total, name="a")], ranks=2)
    assert "'total' runs over one number" in refusal(before, "total", "a").found


def test_a_reduction_of_a_smaller_value_is_another_index_space():
    x, b = cl.tensor("x", FP32, (4, 8), Sliced(0)), vector("b")
    before = cl.program("p", outputs=[cl.mul(x, cl.sum(b, name="s"), name="a")], ranks=2)
    assert "'s' runs over [8]" in refusal(before, "s", "a").found
    assert fused(before, Fuse(("a",))).members == ("a",)


def test_a_whole_reduction_that_is_read_outside_does_not_go_with_blocks():
    r, x = cl.tensor("r", FP32, (4, 8), Replicated), cl.tensor("x", FP32, (4, 8), Sliced(0))
    rows = cl.sum(r, 1, name="rows")
    before = cl.program("p", outputs=[cl.add(x, rows, name="a"), rows], ranks=2)
    assert "'rows' runs over the whole of [4, 1]" in refusal(before, "rows", "a").found


def test_a_tensor_gathered_in_place_is_read_at_the_block_only():
    p, v = vector("p"), vector("v", Sliced(0))
    x = cl.tensor("x", FP32, (8, 8), Sliced(0))
    wide = cl.add(x, p, name="wide")
    p1 = cl.all_gather(cl.update(p, v, name="p1_part"), name="p1")
    before = cl.program("p", outputs=[wide, p1], ranks=2)
    found = refusal(before, "wide", "p1_part", "p1")
    assert "'wide' reads more of 'p' than this rank's block, and 'p1' gathers into it" in found.found


def test_groups_that_would_wait_for_each_other_are_refused():
    x, y = vector("x"), vector("y")
    a1, b1 = cl.add(x, 1.0, name="a1"), cl.add(y, 1.0, name="b1")
    a2 = cl.mul(b1, 2.0, name="a2")
    b2 = cl.mul(a1, 2.0, name="b2")
    before = cl.program("p", outputs=[a2, b2, cl.mul(a1, 4.0, name="a3"), cl.mul(b1, 4.0, name="b3")], ranks=2)
    one = after(before, Fuse(("a1", "a2"), "A"))
    found = refusal(one, "b1", "b2")
    assert "'A' would wait for the new group, and it for 'A'" in found.found


def test_groups_that_would_wait_for_each_other_through_others_are_refused():
    x, y = vector("x"), vector("y")
    a1, b1 = cl.add(x, 1.0, name="a1"), cl.add(y, 1.0, name="b1")
    far, long = cl.mul(b1, 5.0, name="far"), cl.mul(a1, 5.0, name="long")
    outputs = [cl.mul(far, 2.0, name="a2"), cl.mul(long, 2.0, name="b2"), far, long, a1, b1, cl.abs(b1, name="other")]
    one = after(cl.program("p", outputs=outputs, ranks=2), Fuse(("a1", "a2"), "A"))
    assert set(one.fusions[0].members) == {"a1", "a2"}
    assert "'far' would wait for the new group, and it for 'far'" in refusal(one, "b1", "b2").found


def test_a_group_that_waits_for_itself_is_no_program():
    x, w = vector("x"), cl.tensor("w", FP32, (8, 8), Replicated)
    y = cl.matmul(cl.tensor("t", FP32, (8, 8), Replicated) + x, w, name="y")
    before = cl.program("p", outputs=[cl.add(y, 1.0, name="z")], ranks=2)
    with pytest.raises(ProgramError, match="wait for each other"):
        before.edit(fusions=(Fusion("f", ("add_1", "z")),))


def test_names_that_are_taken_empty_or_unknown_are_refused():
    before = programs.self_attention()
    assert "the name is taken" in refusal(before, "add_1", "out", name="total").found
    assert "a group has a name" in refusal(before, "add_1", "out", name="").found
    assert "no value 'nothing'" in refusal(before, "nothing").found
    assert "names nothing" in refusal(before).found


def test_a_group_that_exists_is_not_made_again():
    before = after(programs.self_attention(), Fuse(("add_1", "out")))
    assert "'fused' is that group already" in refusal(before, "add_1", "drop").found
    assert Fuse(("fused",), "better")(before).fusions[0].name == "better"


def test_an_overlapped_stage_is_left_alone():
    before = after(
        programs.self_attention(),
        Split("total"),
        Reorder("total", ("out",)),
        Fuse(("total_rs", "out")),
        Overlap(("layer", "fused")),
    )
    assert "runs in overlap 'ol' (layer | fused)" in refusal(before, "fused", name="x").found


def test_a_step_that_cuts_or_breaks_a_group_is_refused():
    one_shot = after(programs.self_attention(), Fuse(("total", "out")))
    found = Split("total").why_not(one_shot)
    assert "the group's own AllGather" in found.found
    ready = after(programs.self_attention(), Split("total"), Fuse(("add_1", "out")))
    found = Reorder("total", ("drop",)).why_not(ready)
    assert "would cut fused group 'fused': 'out' would stay whole" in found.found
    assert found.way_out.why_not(ready) is None
    assert Reorder("total", ("out",)).why_not(ready) is None


def test_a_reorder_may_not_leave_a_group_with_two_index_spaces():
    r, total = vector("r"), cl.all_gather(vector("x", Sliced(0)), name="total")
    x0 = cl.add(total, r, name="x0")
    a = cl.mul(x0, 2.0, name="a")
    before = cl.program("p", outputs=[cl.add(a, x0, name="out"), cl.mul(r, 3.0, name="z")], ranks=2)
    grouped = after(before, Fuse(("a", "z")))
    found = Reorder("total", ("out",)).why_not(grouped)
    assert "fused group 'fused': 'z' runs over the whole on every rank" in found.found
    with pytest.raises(IllegalTransform, match="runs over the whole"):
        Reorder("total", ("out",))(grouped)
    assert "'z' runs over the whole" in AsSlice(("w",)).why_not(_update_beside_whole()).found


def _update_beside_whole():
    w, r = vector("w"), vector("r")
    w1_part = cl.update(w, cl.add(vector("x", Sliced(0)), 1.0, name="v"), name="w1_part")
    w1 = cl.all_gather(w1_part, name="w1")
    twice = cl.mul(w, 2.0, name="twice")
    before = cl.program("p", outputs=[w1, cl.norm(twice, name="n"), cl.mul(r, 3.0, name="z")], ranks=2)
    return after(before, Fuse(("twice", "z")))


def test_new_gathers_join_the_group_of_the_gather_that_moved():
    x = vector("x", Sliced(0))
    a = cl.all_gather(cl.add(x, 1.0, name="a_part"), name="a")
    before = cl.program("p", outputs=[cl.mul(a, 2.0, name="b")], ranks=2)
    both = after(before, Fuse(("a_part", "a")))
    found = Reorder("a", ("b",)).why_not(both)
    assert "fused groups wait for each other" in found.found
    other = cl.program(
        "q", outputs=[cl.mul(cl.all_gather(x, name="whole"), 2.0, name="b"), cl.add(x, 1.0, name="c")], ranks=2
    )
    done = after(other, Fuse(("whole", "c"), "g"), Reorder("whole", ("b",)))
    assert done.fusions == (Fusion("g", ("b", "c"), True),)


def test_the_halves_of_a_split_stay_in_the_group_of_what_they_replace():
    alone = after(programs.sgd(), Fuse(("total",), "sum"), Split("total"))
    assert alone.fusions == (Fusion("sum", ("total_rs", "total"), True),)
    sends = after(programs.pipeline(), Fuse(("add_1", "sent")), Split("sent"))
    assert sends.fusions[0].members == ("add_1", "drop", "out", "out_part", "sent_part")
    rooted = Split("total", into="reduce_broadcast").why_not(after(programs.sgd(), Fuse(("total",), "sum")))
    assert "'total_reduce' is Reduce, which cannot run inside" in rooted.found


def test_a_group_left_without_members_goes():
    x = vector("x", Sliced(0))
    before = cl.program("p", outputs=[cl.mul(cl.all_gather(x, name="whole"), 2.0, name="b")], ranks=2)
    alone = after(before, Fuse(("whole",), "g"))
    moved = after(alone, Reorder("whole", ("b",)))
    assert moved.fusions == (Fusion("g", ("b",), True),)


def test_the_script_writes_the_call():
    assert Fuse(("total_rs", "out"), "fused").script() == 'fuse("total_rs", "out", name="fused")'
    assert Fuse(("a",)).script() == 'fuse("a")'


def test_candidates_are_the_region_with_the_collectives_touching_it_largest_first():
    before = after(programs.self_attention(), Split("total"), Reorder("total", ("out",)))
    assert [step.script() for step in Fuse.candidates(before)] == [
        'fuse("total_rs", "out")',
        'fuse("add_1", "out")',
        'fuse("total_rs", "out_part")',
        'fuse("add_1", "out_part")',
    ]
