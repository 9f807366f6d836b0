"""Random fused collectives over random shapes, in every form in which peers' parts come, against the oracle."""

from __future__ import annotations

import shutil

import pytest
from cuda_engine_on_host import assert_equals_oracle
from hypothesis import given, settings
from hypothesis import strategies as st

import coconet_lab as cl
from coconet_lab.ir.exact import integer_inputs
from coconet_lab.ir.inputs import proof_inputs

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++, which is not installed")


@pytest.fixture(scope="module")
def folder(pytestconfig):
    """Compiled kernels by content: a second run compiles only what has changed."""
    return pytestconfig.cache.mkdir("cuda_on_host")


def shapes(ranks):
    flat = st.one_of(st.integers(1, 40), st.integers(1, 90).map(lambda n: 64 * ranks * n), st.integers(1000, 9000))
    rows = st.tuples(st.integers(1, 3).map(lambda n: n * ranks), st.sampled_from([5, 8, 96]))
    lists = st.lists(st.sampled_from([(1,), (7,), (33, 31), (1024,), (2600,)]), min_size=1, max_size=5)
    return st.one_of(flat.map(lambda n: (n,)), rows, lists)


@st.composite
def fused(draw):
    """A ReduceScatter, some arithmetic with values of this rank's and an AllGather, as one kernel."""
    ranks, wire = draw(st.integers(2, 4)), draw(st.sampled_from([cl.FP16, cl.BF16, cl.FP32]))
    shape = draw(shapes(ranks))
    total = cl.all_reduce(cl.tensor("g", wire, shape, cl.Local), name="total")
    value = cl.cast(total, cl.FP32) if wire is not cl.FP32 else total
    names = []
    for n in range(draw(st.integers(1, 3))):
        other = cl.tensor(f"x{n}", cl.FP32, shape, cl.Replicated)
        kind = draw(st.sampled_from(["add", "mul", "where", "half", "drop"]))
        if kind == "drop":
            value = cl.dropout(value, 0.5, name=f"v{n}")
        elif kind == "half":
            value = cl.div(value, 2.0, name=f"v{n}")
        elif kind == "where":
            value = cl.where(other > 0, value, other, name=f"v{n}")
        else:
            value = getattr(cl, kind)(value, other, name=f"v{n}")
        names.append(f"v{n}")
    out = cl.cast(value, wire, name="out") if wire is not cl.FP32 else cl.add(value, value, name="out")
    schedule = cl.Schedule(cl.program("p", outputs=[out], ranks=ranks)).split("total").reorder("total", past="out")
    return schedule.fuse("total_rs", "out", name="fused")


@settings(max_examples=8, deadline=None)
@given(fused())
def test_a_random_fused_collective_equals_the_oracle_in_every_form(folder, schedule):
    inputs = proof_inputs(schedule.program, integer_inputs(schedule.program))
    for form in ("read", "turns", "push"):
        assert_equals_oracle(None, schedule, inputs, folder, runs=2, form=form)
