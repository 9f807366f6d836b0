"""Operators of the user whose functions, type rules or expressions are wrong: one error that names the operator."""

from dataclasses import replace

import numpy as np
import pytest

import coconet_lab as cl
from coconet_lab import FP16, FP32, INT32, Local, Replicated, Sliced
from coconet_lab.ir.expression import evaluate

X = cl.tensor("x", FP32, (8, 4), Replicated, low=0.5, high=2.0)
H = cl.tensor("h", FP16, (8, 4), Sliced(0))
INTEGER = cl.tensor("i", INT32, (8, 4), Local)


def same(x, ranges):
    return x


def applied(value=X, meaning=same, **given):
    out = cl.operator("mine", meaning=meaning, **given)(value)
    return cl.Schedule(cl.program("p", outputs=[out], ranks=2))


def has_four_lines(error):
    lines = str(error).splitlines()
    return [line.split()[0] for line in lines[1:]] == ["rule:", "in:", "try:"]


@pytest.mark.parametrize(
    "meaning",
    [
        lambda x, ranges: 1 / 0,
        lambda x, ranges: x.__iadd__(1),
        lambda x: x,
        lambda x, ranges: None,
        lambda x, ranges: "x",
        lambda x, ranges: x[:1],
        lambda x, ranges: x.astype(np.float64),
        lambda x, ranges: x.tolist(),
    ],
)
def test_a_meaning_that_raises_or_makes_something_else_is_told_with_its_name(meaning):
    with pytest.raises(cl.ProgramError, match="operator 'mine'") as caught:
        applied(meaning=meaning).check()
    assert has_four_lines(caught.value)


@pytest.mark.parametrize(
    "infer",
    [
        lambda kind, ranks: 1 / 0,
        lambda kind: kind,
        lambda kind, ranks: None,
        lambda kind, ranks: (8, 4),
        lambda kind, ranks: replace(kind, layout="x"),
        lambda kind, ranks: replace(kind, layout=replace(Sliced(0), dim=9)),
        lambda kind, ranks: replace(kind, shape=(-3,)),
        lambda kind, ranks: replace(kind, shape=(2.5,)),
        lambda kind, ranks: replace(kind, shape=[8, 4]),
        lambda kind, ranks: replace(kind, dtype=np.float32),
    ],
)
def test_a_type_rule_that_raises_or_gives_no_type_is_told_at_the_users_line(infer):
    with pytest.raises(cl.LayoutError, match="type rule of operator 'mine'") as caught:
        applied(infer=infer)
    assert has_four_lines(caught.value)
    assert "test_custom_operators.py" in caught.value.where


@pytest.mark.parametrize(
    "expression",
    [
        "{0} +", "__import__('os').system('x')", "{0}.__class__", "(lambda: 1)()", "foo + {0}", "{0}\n+1", "min({0})",
        "min({0}, 1, 2)", "{0}**2", "{0} < 1", "({0}" + " + 1" * 3000 + ")", "(" * 500 + "{0}" + ")" * 500, "{0!r}",
        "{x}", "{", "_0 + 1", "True", "'a'", "exp()", "exp({0}, {0})", "max(*{0})", "",
    ],
)  # fmt: skip
def test_an_expression_that_is_none_is_refused_where_the_operator_is_made(expression):
    with pytest.raises(cl.ProgramError, match="expression") as caught:
        cl.operator("mine", meaning=same, expression=expression)
    assert has_four_lines(caught.value)


def test_an_expression_reads_the_operands_there_are_and_divides_floats_alone():
    with pytest.raises(cl.LayoutError, match=r"reads \{1\}, and it was given 1 operand"):
        applied(expression="{0} + {1}")
    with pytest.raises(cl.LayoutError, match="divides or takes a function of INT32"):
        applied(INTEGER, expression="{0} / 2")
    with pytest.raises(cl.LayoutError, match="reads no value"):
        cl.operator("mine", meaning=same)(3)
    assert applied(INTEGER, lambda x, ranges: np.abs(x) * 2, expression="abs({0}) * 2").check()


@pytest.mark.parametrize("value", [X, H, INTEGER], ids=["FP32", "FP16", "INT32"])
def test_a_proof_finds_an_expression_that_is_not_its_meaning(value):
    schedule = applied(value, lambda x, ranges: x * x.dtype.type(3), expression="{0} * 2")
    with pytest.raises(cl.ProofError, match="expression of 'mine_1' is not its meaning: it computes") as caught:
        schedule.check()
    assert has_four_lines(caught.value)
    assert applied(value, lambda x, ranges: x * x.dtype.type(3), expression="{0} * 3").check()


def test_an_expression_may_round_otherwise_than_its_meaning():
    assert applied(meaning=lambda x, ranges: np.log1p(x), expression="log({0} + 1)").check()
    assert applied(meaning=lambda x, ranges: np.float32(1) / x, expression="1 / {0}").check()


@pytest.mark.parametrize("expression", ["abs({0})", "sqrt({0})", "exp({0})", "log({0})", "tanh({0})", "erf({0})"])
def test_expressions_have_numpys_values(expression):
    x = np.float32([0.25, 1.0, 2.0])
    name = expression.split("(")[0]
    out = getattr(cl, name)(cl.tensor("x", FP32, (3,), Replicated), name="out")
    expected = cl.simulate(cl.program("p", outputs=[out]), {"x": x})["out"]
    np.testing.assert_allclose(evaluate(expression, [x], FP32), expected, rtol=1e-6)
