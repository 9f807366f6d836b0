"""Operations and updates (design §4a, 10-12 and 17-21)."""

from __future__ import annotations

import numpy as np
import pytest

import coconet_lab as cl
from coconet_lab.ir.oracle import run
from coconet_lab.ir.updates import is_effect, order_edges, updated_inputs


def vector(name="w", layout=cl.Replicated, dtype=cl.FP32, **more):
    return cl.tensor(name, dtype, (8,), layout, **more)


def test_operands_of_different_dtypes_are_refused_with_the_cast_to_write():
    with pytest.raises(cl.LayoutError, match="'w' of FP16 and 'v' of FP32") as caught:
        vector(dtype=cl.FP16) + vector("v")
    assert caught.value.hint == "cast(v, FP16), or cast(w, FP32)"


INTEGERS = [
    lambda x: x / 2,
    lambda x: x * 0.5,
    lambda x: x * (1 / cl.GROUP.size),
    cl.sqrt,
    cl.norm,
    cl.mean,
    lambda x: cl.dropout(x, 0.5),
    lambda x: cl.where(x > 0, x, 0.5),
]


@pytest.mark.parametrize("make", INTEGERS)
def test_integers_are_not_divided_rooted_or_mixed_with_fractions(make):
    with pytest.raises(cl.LayoutError):
        make(vector(dtype=cl.INT32))


NUMBERS = [
    lambda w: cl.update(w, 0.0),
    lambda w: cl.matmul(w, 2),
    lambda w: cl.all_reduce(3),
    lambda w: cl.dropout(3, 0.1),
    lambda w: cl.cast(3, cl.FP16),
    lambda w: cl.add(1, 2),
]


@pytest.mark.parametrize("make", NUMBERS)
def test_a_python_number_stands_beside_a_value_in_elementwise_operations_only(make):
    with pytest.raises(cl.LayoutError, match="Python number"):
        make(vector())


def test_comparisons_are_int32():
    assert (vector() > 0).dtype == cl.INT32
    assert cl.equal(vector(), 1).dtype == cl.INT32
    assert (vector(dtype=cl.INT64) <= 1).dtype == cl.INT32


@pytest.mark.parametrize("p", [-0.1, 1.0, 2])
def test_a_dropouts_probability_is_at_least_0_and_below_1(p):
    with pytest.raises(cl.LayoutError, match="0 <= p < 1"):
        cl.dropout(vector(), p)


def test_dropout_adds_one_implicit_seed_and_keeps_its_stream_under_another_name():
    w = vector()
    p = cl.program("p", outputs=[cl.dropout(cl.dropout(w, 0.5, name="a"), 0.5, name="b")])
    assert p.inputs == ("w", "seed")
    assert p.ops["a"].stream != p.ops["b"].stream
    with pytest.raises(cl.ProgramError, match="not the dropout seed"):
        cl.program("p", outputs=[cl.dropout(vector("seed"), 0.5)])


def test_bounds_are_the_right_way_round():
    with pytest.raises(cl.ProgramError, match="low=2 above high=1"):
        vector(low=2, high=1)


def test_an_update_is_the_new_value_and_its_target_the_old_one():
    w = vector()
    w1 = cl.update(w, w + 1, name="w1")
    w2 = cl.update(w1, w1 * 2, name="w2")
    ran = run(cl.program("p", outputs=[w2], ranks=2), {"w": np.ones(8, np.float32)})
    assert ran["w"].tolist() == [1] * 8
    assert ran["w1"].tolist() == [2] * 8
    assert ran.state["w"].tolist() == [4] * 8


REFUSED = [
    (lambda w, w1: [cl.update(w + 1, w)], "which is no input"),
    (lambda w, w1: [w1, cl.update(w, w * 3, name="w2")], "updated twice"),
    (lambda w, w1: [w1, w], "is an output, but 'w1' overwrites it"),
    (lambda w, w1: [w1 + w], "reads 'w' below 'w1'"),
    (lambda w, w1: [(w1 + 1) * w], "reads 'w' below 'w1'"),
]


@pytest.mark.parametrize(("outputs", "words"), REFUSED)
def test_the_old_value_is_gone_after_an_update(outputs, words):
    w = vector()
    w1 = cl.update(w, w * 2, name="w1")
    with pytest.raises(cl.ProgramError, match=words):
        cl.program("p", outputs=outputs(w, w1))


def test_a_copy_keeps_the_old_value():
    w = vector()
    old = cl.copy(w)
    w1 = cl.update(w, w * 2, name="w1")
    ran = run(cl.program("p", outputs=[cl.add(w1, old, name="out")]), {"w": np.ones(8, np.float32)})
    assert ran["out"].tolist() == [3] * 8


LAYOUTS = [
    (cl.Replicated, cl.Local, "all_reduce"),
    (cl.Sliced(0), cl.Replicated, "local_slice"),
    (cl.Sliced(0), cl.Local, "all_reduce"),
]


@pytest.mark.parametrize(("tensor", "value", "fix"), LAYOUTS)
def test_a_value_has_its_tensors_layout_or_is_its_sliced_form(tensor, value, fix):
    with pytest.raises(cl.LayoutError, match="cannot update") as caught:
        cl.update(vector(layout=tensor), vector("v", value))
    assert fix in caught.value.hint


@pytest.mark.parametrize(
    "v", [cl.tensor("v", cl.FP32, (4,), cl.Replicated), vector("v", dtype=cl.FP16), vector("v", group=1)]
)
def test_an_update_keeps_shape_dtype_and_group(v):
    with pytest.raises(cl.LayoutError):
        cl.update(vector(), v)


def test_a_list_is_not_updated_by_one_value_a_tensor_even_where_it_has_one_element_a_tensor():
    v = cl.tensor("v", cl.FP32, [(1,), (1,)], cl.Replicated)
    with pytest.raises(cl.LayoutError, match="cannot update the list 'v' with 'n'") as caught:
        cl.update(v, cl.norm(v, name="n"))
    assert caught.value.hint == "update(v, 0 * v + n)"
    assert cl.update(v, 0 * v + cl.norm(v, name="n")).shape == (2,)


def test_a_sliced_update_of_a_replicated_tensor_is_gathered_in_place():
    w = vector()
    part = cl.update(w, cl.reduce_scatter(vector("g", cl.Local), name="rs"), name="part")
    with pytest.raises(cl.ProgramError, match="nothing gathers it"):
        cl.program("p", outputs=[part], ranks=4)
    p = cl.program("p", outputs=[cl.all_gather(part, name="w1")], ranks=4)
    assert is_effect(p, "part")
    assert is_effect(p, "w1")
    assert not is_effect(p, "rs")
    assert updated_inputs(p) == {"w": "w1"}
    assert (run(p).state["w"] == run(p)["g"].sum(0)).all()


def test_the_order_graph_puts_a_reader_of_a_tensor_before_its_update():
    w = vector()
    w1 = cl.update(w, w * 2, name="w1")
    p = cl.program("p", outputs=[w1, cl.add(w, 1, name="late")])
    assert ("late", "w1") in set(order_edges(p))
    assert run(p, {"w": np.ones(8, np.float32)})["late"].tolist() == [2] * 8
