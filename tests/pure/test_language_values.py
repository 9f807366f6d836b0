"""Values and names (design §4a, 1-4): what a value is, what it refuses, and what things are called."""

from __future__ import annotations

import numpy as np
import pytest

import coconet_lab as cl
from coconet_lab.ir.oracle import run


def vector(name="w", layout=cl.Replicated, dtype=cl.FP32, **more):
    return cl.tensor(name, dtype, (8,), layout, **more)


NOT_A_VALUE = [
    (bool, "has no truth value"),
    (len, "has no length"),
    (list, "cannot be iterated"),
    (np.asarray, "is no array"),
    (lambda w: np.ones(8) + w, "ndarray is no operand"),
    (lambda w: w + np.ones(8), "ndarray is no operand"),
    (lambda w: w + "1", "str is no operand"),
]


@pytest.mark.parametrize(("use", "words"), NOT_A_VALUE)
def test_what_a_value_is_not_is_told_with_a_way_out(use, words):
    with pytest.raises(cl.ProgramError, match=words) as caught:
        use(vector())
    assert caught.value.hint


def test_a_value_knows_dtype_shape_layout_and_prints_itself():
    value = cl.matmul(
        cl.tensor("x", cl.FP16, (4, 8), cl.Sliced(1)), cl.tensor("w", cl.FP16, (8, 2), cl.Sliced(0)), name="y"
    )
    assert (value.dtype, value.shape, value.layout) == (cl.FP16, (4, 2), cl.Local)
    assert repr(value) == "y = MatMul(x, w): FP16[4, 2] Local"


def test_unnamed_values_are_named_per_kind_in_dependency_order_of_the_outputs():
    w = vector()
    late, early = w * 2, (w + 1) + 2
    p = cl.program("p", outputs=[early, late])
    assert list(p) == ["w", "add_1", "add_2", "mul_1"]
    assert p.outputs == ("add_2", "mul_1")


def test_a_made_up_name_steps_aside_for_a_given_one():
    w = vector()
    p = cl.program("p", outputs=[cl.mul(w + 1, 2, name="add_1")])
    assert list(p) == ["w", "add_2", "add_1"]


def test_two_values_of_one_name_are_refused():
    w = vector()
    with pytest.raises(cl.ProgramError, match="two values of program 'p' are called 'a'"):
        cl.program("p", outputs=[cl.add(w, 1, name="a"), cl.add(w, 2, name="a")])


@pytest.mark.parametrize("name", ["a b", "x;drop", '"quoted"', "🙂", "1", "lambda"])
def test_any_non_empty_string_is_a_name(name):
    p = cl.program("p", outputs=[cl.add(vector(name), 1, name=name + "'")])
    assert name in p
    assert (run(p)[name + "'"] == run(p)[name] + 1).all()


def test_an_empty_name_is_none():
    for make in (
        lambda: vector(""),
        lambda: cl.add(vector(), 1, name=""),
        lambda: cl.program("", outputs=[vector() + 1]),
    ):
        with pytest.raises(cl.ProgramError, match="is no name"):
            make()


def test_a_program_is_exactly_the_ancestors_of_its_outputs():
    w, u = vector(), vector("u")
    cl.add(u, 1, name="unread")
    p = cl.program("p", outputs=[cl.add(w, 1, name="out")])
    assert list(p) == ["w", "out"]


def test_a_leaf_missing_from_the_inputs_is_refused_and_so_is_an_input_nothing_reaches():
    w, u = vector(), vector("u")
    with pytest.raises(cl.ProgramError, match="reads 'u', which is not among its inputs"):
        cl.program("p", inputs=[w], outputs=[w + u])
    with pytest.raises(cl.ProgramError, match="an update or send counts only if an output depends on it"):
        cl.program("p", inputs=[w, u], outputs=[w + 1])


def test_an_unknown_name_lists_close_matches():
    p = cl.program("p", outputs=[cl.add(vector(), 1, name="total")])
    with pytest.raises(cl.ProgramError, match="no value 'totl'") as caught:
        p["totl"]
    assert caught.value.hint == "'total'"


def test_every_argument_that_takes_a_name_takes_the_value():
    w = vector()
    out = w + 1
    p = cl.program("p", outputs=[out])
    assert p[out].name == "add_1"
    assert out in p
    assert p.resolve(w) == "w"


def test_keys_are_equal_where_programs_differ_in_made_up_names_only():
    def build(*, first, factor=2, out="out"):
        w = vector()
        doubled = cl.mul(w, factor, name=first)
        return cl.program("p", outputs=[cl.add(doubled, 1, name=out)])

    assert build(first=None).key() == build(first=None).key()
    assert build(first=None).key() != build(first="doubled").key()
    assert build(first=None).key() != build(first=None, factor=3).key()
    assert build(first=None).key() != build(first=None, out="other").key()
    w = vector()
    other = cl.mul(w, 3)
    two = cl.program("p", outputs=[cl.add(w * 2, 1, name="out"), cl.add(other, 1, name="more")])
    three = cl.program("p", outputs=[cl.add(w * 2, 1, name="out")])
    assert two.key() != three.key()


def test_variables_name_values_and_scopes_prefix_them():
    w = vector()
    with cl.scope("block9"):
        hidden = w + 1
        total = cl.mul(hidden, 2, name="total")
    doubled = total * 2
    p = cl.program("p", outputs=[doubled], names=locals())
    assert list(p) == ["w", "hidden", "block9.total", "doubled"]
    assert list(cl.program("p", outputs=[doubled])) == ["w", "block9.add_1", "block9.total", "mul_1"]


def test_a_function_of_specs_is_a_program_that_can_be_rebuilt_with_other_sizes():
    @cl.program(ranks=4)
    def layer(x: cl.spec(cl.FP32, ("B", 8), cl.Local), *, B=4):
        total = cl.all_reduce(x)
        return total * 2

    assert layer.inputs == ("x",)
    assert "total" in layer
    assert layer["total"].shape == (4, 8)
    assert layer(B=16)["total"].shape == (16, 8)
    with pytest.raises(cl.ProgramError, match="has no size 'C'"):
        layer(C=1)


def test_each_value_knows_the_line_that_made_it_and_equality_does_not():
    first, second = vector() + 1, vector() + 1
    assert first.op.site.line == second.op.site.line
    other = vector() + 1
    assert other.op.site != first.op.site
    assert cl.program("p", outputs=[first]) == cl.program("p", outputs=[other])


def test_comparing_long_chains_is_linear():
    def chain():
        x = vector()
        for _ in range(3000):
            x = x + x
        return cl.program("chain", outputs=[x])

    a, b = chain(), chain()
    assert a == b
    assert a.key() == b.key()


def test_running_a_cell_twice_is_harmless():
    def cell():
        x = vector()
        return cl.program("p", outputs=[cl.dropout(x, 0.5, name="drop")])

    assert cell() == cell()


@pytest.mark.parametrize("shape", [(4.5,), (-1,), (True,), ("a",), 4.5, [(2, 3), (1.5,)]])
def test_a_shape_that_is_none_is_refused_in_four_lines(shape):
    with pytest.raises(cl.ProgramError, match="whole numbers of 0 or more"):
        cl.tensor("q", cl.FP32, shape, cl.Local)


def test_a_shape_may_be_numpys_whole_numbers_and_one_number():
    assert cl.tensor("q", cl.FP32, (np.int64(4), np.int32(2)), cl.Local).shape == (4, 2)
    assert cl.tensor("q", cl.FP32, 4, cl.Local).shape == (4,)


@pytest.mark.parametrize("take", [cl.sum, cl.mean, cl.max, cl.min, cl.norm, lambda x: cl.conv(x, x)])
@pytest.mark.parametrize("item", [3, 2.5, np.ones(3)])
def test_what_is_no_value_cannot_be_reduced_or_convolved(take, item):
    with pytest.raises(cl.ProgramError, match=r"cannot take .* of a"):
        take(item)
