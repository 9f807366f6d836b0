"""Random programs under random legal schedules, lowered and run rank by rank in NumPy against the oracle."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from plan_checks import check_plan
from strategies import BINARY, UNARY, choice, legal_step, operation, programs

import coconet_lab as cl
from coconet_lab.ir.inputs import proof_inputs


def holds(program, data):
    """One to six legal steps on; small integers make sums exact, so that values must be equal to the bit."""
    for _ in range(data.draw(st.integers(1, 6))):
        step = legal_step(data.draw, program)
        if step is None:
            break
        program = step(program)
    chunks = choice(data.draw, [1, 2, 3, 4])
    check_plan(program, proof_inputs(program, frozenset(program.inputs)), chunks=chunks)


@settings(max_examples=50)
@given(programs(), st.data())
def test_every_legal_schedule_of_a_random_program_runs_right(program, data):
    holds(program, data)


def grown(draw, pool, updatable, most=6):
    """More random values over those of `pool`, the newest last."""
    pool = list(pool)
    for _ in range(draw(st.integers(2, most))):
        value = operation(draw, pool, updatable)
        if value is not None:
            pool.append(value)
    return pool


LISTS = st.lists(st.sampled_from([(1,), (2, 3), (7,), (0,), (4,)]), min_size=1, max_size=4)


@st.composite
def list_programs(draw):
    """Programs over lists of tensors, some of them empty, with their norms."""
    ranks, bucket = choice(draw, [1, 2, 3, 4]), choice(draw, [1, 2, 5])
    shapes = draw(LISTS)
    dtype = choice(draw, [cl.FP32, cl.FP16])
    g, h = (cl.tensor(name, dtype, shapes, cl.Local, bucket=bucket) for name in ("g", "h"))
    w, v = (cl.tensor(name, dtype, shapes, cl.Replicated, bucket=bucket) for name in ("w", "v"))
    total = cl.all_reduce(g, name="total")
    pool = [h, w, v, cl.scalar("lr", dtype, low=-2, high=2), total, cl.add(total, w), cl.norm(total)]
    made = grown(draw, pool, [w, v])
    outputs = [made[-1], choice(draw, made[4:])]
    return cl.program("lists", outputs=list(dict.fromkeys(outputs)), ranks=ranks)


@settings(max_examples=50)
@given(list_programs(), st.data())
def test_every_legal_schedule_of_a_random_program_of_lists_runs_right(program, data):
    holds(program, data)


@st.composite
def sending_programs(draw):
    """Programs whose value goes from group to group, with work before and after."""
    groups, size = choice(draw, [2, 3]), choice(draw, [1, 2, 3])
    shape = choice(draw, [(5,), (size * 2, 3), (size, size)])
    g = cl.tensor("g", cl.FP32, shape, cl.Local)
    w = cl.tensor("w", cl.FP32, shape, cl.Replicated)
    total = cl.all_reduce(g, name="total")
    made = grown(draw, [g, w, total, cl.add(total, w)], [w])
    value = choice(draw, [x for x in made[2:] if x.shape != ()])
    outputs = [made[-1]]
    for hop in range(groups - 1):
        value = cl.send(choice(draw, UNARY)(value), to=cl.GROUP + 1, name=f"sent{hop}")
        if value.layout.is_sliced and draw(st.booleans()):
            value = cl.all_gather(value)
        value = choice(draw, BINARY)(value, value)
        outputs.append(value)
    return cl.program("sending", outputs=list(dict.fromkeys(outputs)), ranks=groups * size, groups=groups)


@settings(max_examples=50)
@given(sending_programs(), st.data())
def test_every_legal_schedule_of_a_random_program_that_sends_runs_right(program, data):
    holds(program, data)


@st.composite
def programs_of_small_values(draw):
    """Programs whose zero-dimensional values depend on norms, on scalars and on states that are updated on the way."""
    ranks = choice(draw, [1, 2, 3])
    shape = choice(draw, [(5,), (ranks, 2), (1,), (), [(3,), (2, 2)], [(1,), (1,)]])
    g = cl.tensor("g", cl.FP32, shape, cl.Local, bucket=2)
    w = cl.tensor("w", cl.FP32, shape, cl.Replicated, bucket=2)
    states = [cl.tensor(name, cl.FP32, (), cl.Replicated) for name in ("s", "t")]
    total = cl.all_reduce(g, name="total")
    wide, small = [total, w], [cl.scalar("lr", cl.FP32, low=-2, high=2), cl.max(g), cl.norm(total), *states]
    old = list(states)
    for _ in range(draw(st.integers(4, 10))):
        kind = choice(draw, ["small", "small", "small", "small", "wide", "wide", "reduction", "update", "update"])
        newest = small[-1 - min(choice(draw, [0, 0, 1, 2, 3]), len(small) - 1)]
        try:
            if kind == "update" and old:
                state = old.pop(draw(st.integers(0, len(old) - 1)))
                small.append(cl.update(state, newest))
                small.remove(state)  # nothing below its update may read it
            elif kind == "wide":
                wide.append(choice(draw, BINARY)(wide[-1 - draw(st.integers(0, 1))], newest))
            elif kind == "reduction":
                small.append(choice(draw, [cl.sum, cl.norm, cl.max])(choice(draw, [*wide, newest])))
            else:
                unary = draw(st.booleans())
                small.append(
                    choice(draw, UNARY)(newest) if unary else choice(draw, BINARY)(newest, choice(draw, small))
                )
        except cl.LayoutError:
            pass
    outputs = draw(st.permutations(list(dict.fromkeys([wide[-1], choice(draw, small[1:]), small[-1]]))))
    return cl.program("small", outputs=outputs, ranks=ranks)


@settings(max_examples=50)
@given(programs_of_small_values(), st.data())
def test_every_legal_schedule_of_a_random_program_of_zero_dimensional_values_runs_right(program, data):
    holds(program, data)
