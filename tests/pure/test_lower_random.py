"""Random programs under random legal schedules, lowered and run rank by rank in NumPy against the oracle."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from plan_checks import check_plan
from strategies import BINARY, UNARY, legal_steps, operations, programs

import coconet_lab as cl
from coconet_lab.ir.inputs import proof_inputs


def holds(program, data):
    """Up to six legal steps on; small integers make sums exact, so that values must be equal to the bit."""
    for _ in range(data.draw(st.integers(0, 6))):
        step = data.draw(legal_steps(program))
        if step is None:
            break
        program = step(program)
    chunks = data.draw(st.sampled_from([1, 2, 3, 4]))
    check_plan(program, proof_inputs(program, frozenset(program.inputs)), chunks=chunks)


@settings(max_examples=50)
@given(programs(), st.data())
def test_every_legal_schedule_of_a_random_program_runs_right(program, data):
    holds(program, data)


@st.composite
def grown(draw, pool, updatable, most=6):
    """More random values over those of `pool`, the newest last."""
    pool = list(pool)
    for _ in range(draw(st.integers(2, most))):
        value = draw(operations(pool, updatable))
        if value is not None:
            pool.append(value)
    return pool


@st.composite
def list_programs(draw):
    """Programs over lists of tensors, some of them empty, with their norms."""
    ranks, bucket = draw(st.sampled_from([1, 2, 3, 4])), draw(st.sampled_from([1, 2, 5]))
    shapes = draw(st.lists(st.sampled_from([(1,), (2, 3), (7,), (0,), (4,)]), min_size=1, max_size=4))
    dtype = draw(st.sampled_from([cl.FP32, cl.FP16]))
    g, h = (cl.tensor(name, dtype, shapes, cl.Local, bucket=bucket) for name in ("g", "h"))
    w, v = (cl.tensor(name, dtype, shapes, cl.Replicated, bucket=bucket) for name in ("w", "v"))
    total = cl.all_reduce(g, name="total")
    pool = [h, w, v, cl.scalar("lr", dtype, low=-2, high=2), total, cl.add(total, w), cl.norm(total)]
    made = draw(grown(pool, [w, v]))
    outputs = [made[-1], draw(st.sampled_from(made[4:]))]
    return cl.program("lists", outputs=list(dict.fromkeys(outputs)), ranks=ranks)


@settings(max_examples=50)
@given(list_programs(), st.data())
def test_every_legal_schedule_of_a_random_program_of_lists_runs_right(program, data):
    holds(program, data)


@st.composite
def sending_programs(draw):
    """Programs whose value goes from group to group, with work before and after."""
    groups, size = draw(st.sampled_from([2, 3])), draw(st.sampled_from([1, 2, 3]))
    shape = draw(st.sampled_from([(5,), (size * 2, 3), (size, size)]))
    g = cl.tensor("g", cl.FP32, shape, cl.Local)
    w = cl.tensor("w", cl.FP32, shape, cl.Replicated)
    total = cl.all_reduce(g, name="total")
    made = draw(grown([g, w, total, cl.add(total, w)], [w]))
    value = draw(st.sampled_from([x for x in made[2:] if x.shape != ()]))
    outputs = [made[-1]]
    for hop in range(groups - 1):
        value = cl.send(draw(st.sampled_from(UNARY))(value), to=cl.GROUP + 1, name=f"sent{hop}")
        if value.layout.is_sliced and draw(st.booleans()):
            value = cl.all_gather(value)
        value = draw(st.sampled_from(BINARY))(value, value)
        outputs.append(value)
    return cl.program("sending", outputs=list(dict.fromkeys(outputs)), ranks=groups * size, groups=groups)


@settings(max_examples=50)
@given(sending_programs(), st.data())
def test_every_legal_schedule_of_a_random_program_that_sends_runs_right(program, data):
    holds(program, data)
