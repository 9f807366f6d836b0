"""The view of a fused group: what it reads and writes, its space, phases and form."""

import programs

import coconet_lab as cl
from coconet_lab import FP32, Local, Replicated, Sliced
from coconet_lab.ir.groups import group_view
from coconet_lab.ir.order import hull, order_graph_is_acyclic
from coconet_lab.ir.program import Fusion
from coconet_lab.transforms.as_slice import AsSlice
from coconet_lab.transforms.dead import Dead
from coconet_lab.transforms.fuse import Fuse
from coconet_lab.transforms.reorder import Reorder
from coconet_lab.transforms.split import Split


def view(program, *steps):
    for step in steps:
        program = step(program)
    return group_view(program, program.fusions[-1].name)


def test_the_epilogue_reads_layer_b_r_and_writes_out():
    found = view(programs.self_attention(), Split("total"), Reorder("total", ("out",)), Fuse(("total_rs", "out")))
    assert (found.reads, found.scalars, found.written) == (("layer", "b", "r"), ("seed",), ("out",))
    assert (found.space_shape, found.space_dim) == ((8, 4, 8), 0)
    assert (found.form, found.reducing, found.gathers, found.in_place) == ("two-shot", "total_rs", ("out",), ())
    assert found.phases == (found.members,)
    assert found.process_group == 0


def test_the_one_shot_form_computes_everything_on_every_rank():
    found = view(programs.self_attention(), Fuse(("total", "out")))
    assert (found.form, found.reducing, found.space_dim) == ("one-shot", "total", None)
    assert found.absorbed == ()


def test_adam_reads_g_m_v_w_and_writes_the_blocks_of_the_state_and_the_whole_parameter():
    found = view(
        programs.adam(),
        Split("total"),
        Reorder("total", ("p1",)),
        AsSlice(("m", "v", "w")),
        Dead(),
        Fuse(("total_rs", "p1")),
    )
    assert sorted(found.reads) == ["g", "m", "v", "w"]
    assert sorted(found.scalars) == ["b1", "b2", "eps", "lr", "t"]
    assert found.written == ("m1_part", "v1_part", "w1_part", "p1")
    assert found.in_place == ("p1",)
    assert found.absorbed == ()


def test_without_as_slice_products_with_the_whole_state_are_computed_at_the_block():
    found = view(programs.adam(), Split("total"), Reorder("total", ("p1",)), Fuse(("total_rs", "p1")))
    assert found.absorbed == ("mul_1", "mul_3")
    assert found.written == ("m1_part", "v1_part", "w1_part", "p1")


def test_norms_across_the_sliced_dim_end_a_phase():
    found = view(
        programs.lamb(),
        Split("total"),
        Reorder("total", ("w1",)),
        AsSlice(("m", "v")),
        Dead(),
        Fuse(("total_rs", "w1")),
    )
    assert found.crossing == ("w_norm", "u_norm")
    assert len(found.phases) == 2
    assert {"w_norm", "u_norm", "u", "total_rs"} <= set(found.phases[0])
    assert {"ratio", "w1_part", "w1"} <= set(found.phases[1])
    assert tuple(sorted(n for phase in found.phases for n in phase)) == tuple(sorted(found.members))
    assert found.written == ("m1_part", "v1_part", "w1")


def test_a_norm_of_a_whole_tensor_ends_a_phase_of_the_one_shot_form_too():
    found = view(programs.lamb(), Fuse(("total", "w1")))
    assert found.crossing == ()
    assert len(found.phases) == 2


def test_a_reduction_nobody_in_the_group_reads_ends_no_phase():
    x = cl.tensor("x", FP32, (8,), Sliced(0))
    a = cl.add(x, 1.0, name="a")
    found = view(cl.program("p", outputs=[a, cl.norm(a, name="n")], ranks=2), Fuse(("a", "n")))
    assert (found.written, found.crossing, len(found.phases)) == (("a", "n"), ("n",), 1)


def test_reductions_over_rows_cross_no_ranks():
    x = cl.tensor("x", FP32, (8, 8), Sliced(0))
    rows = cl.mean(x * x, 1, name="rows")
    found = view(cl.program("p", outputs=[cl.div(x, cl.sqrt(rows + 1e-6), name="y")], ranks=2), Fuse(("rows", "y")))
    assert (found.crossing, len(found.phases), found.written) == ((), 2, ("y",))


def test_the_norms_of_a_list_cross_ranks_tensor_by_tensor():
    w = cl.tensor("w", FP32, [(3, 5), (7,)], Sliced(0))
    found = view(cl.program("p", outputs=[cl.mul(w, cl.norm(w, name="n"), name="y")], ranks=2), Fuse(("n", "y")))
    assert (found.crossing, found.space.pieces, found.written) == (("n",), ((3, 5), (7,)), ("y",))


def test_forms_are_told_by_the_collectives_inside():
    p = programs.pipeline()
    assert view(p, Fuse(("add_1", "out"))).form == "pointwise"
    sliced = Reorder("total", ("sent",))(Split("total")(p))
    sending = view(sliced, Fuse(("add_1", "sent_part")))
    assert (sending.form, sending.sends, sending.process_group) == ("send", ("sent_part",), 0)
    assert sending.written == ("sent_part",)
    assert view(sliced, Fuse(("total_rs", "out"))).form == "reduce-scatter"
    assert view(sliced, Fuse(("sent",))).form == "gather"
    assert view(sliced, Fuse(("sent",))).process_group == 1


def test_whole_values_before_a_slice_that_is_sent_are_computed_at_the_block():
    found = view(Split("sent")(programs.pipeline()), Fuse(("add_1", "sent_part")))
    assert found.absorbed == ("add_1", "drop", "out")
    assert (found.space_dim, found.written) == (0, ("sent_part",))


def test_a_group_that_is_not_in_the_program_yet_has_a_view_too():
    found = group_view(programs.self_attention(), Fusion("new", ("add_1", "drop")))
    assert (found.name, found.written) == ("new", ("drop",))


def test_a_group_of_scalars_has_no_space():
    found = group_view(programs.adam(), Fusion("s", ("pow_1", "sub_2")))
    assert (found.space_shape, found.process_group, found.reads) == ((), None, ())


def test_members_follow_the_order_graph_where_program_order_does_not():
    w, x = cl.tensor("w", FP32, (8,), Replicated), cl.tensor("x", FP32, (8,), Replicated)
    w1 = cl.update(w, x, name="w1")
    old = cl.mul(w, 2.0, name="old")
    program = cl.program("p", outputs=[w1, old], ranks=2)
    assert list(program.ops)[-2:] == ["w1", "old"]
    assert group_view(program, Fusion("f", ("w1", "old"))).members == ("old", "w1")
    assert program.order.position["old"] < program.order.position["w1"]


def test_readers_of_a_gather_in_place_come_before_the_next_update_of_its_storage():
    w, g = cl.tensor("w", FP32, (8,), Replicated), cl.tensor("g", FP32, (8,), Sliced(0))
    first = cl.update(w, g, name="first")
    whole = cl.all_gather(first, name="whole")
    second = cl.update(first, g * 2.0, name="second")
    last = cl.all_gather(second, name="last")
    program = cl.program("p", outputs=[last, cl.add(whole, 1.0, name="y")], ranks=2)
    assert program.order.position["y"] < program.order.position["second"]


def test_the_hull_is_everything_on_paths_between():
    program = programs.self_attention()
    assert hull(program, ["total", "out"]) == {"total", "add_1", "drop", "out"}
    assert hull(program, ["drop"]) == {"drop"}


def test_the_hull_follows_from_a_reader_to_the_update():
    w, x = cl.tensor("w", FP32, (8,), Replicated), cl.tensor("x", FP32, (8,), Local)
    old = cl.mul(w, 2.0, name="old")
    far = cl.add(cl.all_reduce(x, name="total"), old, name="far")
    w1 = cl.update(w, far, name="w1")
    program = cl.program("p", outputs=[w1], ranks=2)
    assert hull(program, ["old", "w1"]) == {"old", "far", "w1"}


def test_groups_that_wait_for_each_other_make_the_order_graph_cyclic():
    x = cl.tensor("x", FP32, (8,), Local)
    a, b = cl.add(x, 1.0, name="a"), cl.add(x, 2.0, name="b")
    program = cl.program("p", outputs=[cl.mul(b, 2.0, name="c"), cl.mul(a, 2.0, name="d")], ranks=2)
    assert order_graph_is_acyclic(program)
    from dataclasses import replace

    crossed = replace(program, fusions=(Fusion("f", ("a", "c")), Fusion("g", ("b", "d"))))
    assert not order_graph_is_acyclic(crossed)
    straight = replace(program, fusions=(Fusion("f", ("a", "d")), Fusion("g", ("b", "c"))))
    assert order_graph_is_acyclic(straight)
