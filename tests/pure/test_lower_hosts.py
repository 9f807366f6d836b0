"""Plans for ranks on several hosts, run rank by rank in NumPy against the oracle; nobody reaches another host."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_checks import check_plan
from strategies import legal_steps, programs
from test_lower_random import list_programs, sending_programs

from coconet_lab.errors import ProgramError
from coconet_lab.ir.exact import integer_inputs
from coconet_lab.ir.inputs import proof_inputs
from coconet_lab.kernels.hosts import Hosts
from coconet_lab.workloads import adam, lamb, mlp, pipeline, self_attention, sgd

PLACES = {"2 hosts of 2": (4, 2), "2 hosts of 1": (2, 2), "4 hosts of 1": (4, 4)}
SIZES = {"37": 37, "2": 2, "64": 64, "a list": [(3, 4), (2000,), (5,), (1,)]}


def check(program, hosts, **options):
    """Sums that are exact whatever their order: a host adds its ranks first."""
    return check_plan(program, proof_inputs(program, integer_inputs(program)), hosts=hosts, **options)


def schedules(workload):
    return {name: schedule.program for name, schedule in workload.schedules.items()}


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("elements", SIZES)
@pytest.mark.parametrize("make", [sgd, adam, lamb])
def test_every_schedule_of_an_optimizer_runs_right(make, elements, place, dtype):
    ranks, hosts = PLACES[place]
    for program in schedules(make(SIZES[elements], ranks, dtype)).values():
        check(program, hosts)


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("make", [self_attention, mlp])
def test_every_schedule_of_an_epilogue_runs_right(make, place, dtype):
    ranks, hosts = PLACES[place]
    for program in schedules(make(4, 6, 8, ranks, dtype)).values():
        check(program, hosts)


@pytest.mark.parametrize(("ranks", "groups", "hosts"), [(4, 2, 2), (4, 2, 4), (8, 2, 4), (2, 2, 2), (4, 4, 2)])
def test_every_schedule_of_a_pipeline_runs_right(ranks, groups, hosts):
    for program in schedules(pipeline(ranks // groups * 2, 8, 8, ranks, groups)).values():
        check(program, hosts)


def on_hosts(program, data):
    """Up to six legal steps on, on some number of hosts that its ranks fit."""
    counts = [n for n in range(2, program.ranks + 1) if fits(program, n)]
    for _ in range(data.draw(st.integers(0, 6))):
        step = data.draw(legal_steps(program))
        if step is None:
            break
        program = step(program)
    hosts = data.draw(st.sampled_from(counts)) if counts else 1
    check_plan(program, proof_inputs(program, frozenset(program.inputs)), hosts=hosts)


def fits(program, hosts):
    try:
        Hosts(program.ranks, program.groups, hosts)
    except ProgramError:
        return False
    return True


@settings(max_examples=300)
@given(programs(), st.data())
def test_every_legal_schedule_of_a_random_program_runs_right(program, data):
    on_hosts(program, data)


@settings(max_examples=300)
@given(list_programs(), st.data())
def test_every_legal_schedule_of_a_random_program_of_lists_runs_right(program, data):
    on_hosts(program, data)


@settings(max_examples=300)
@given(sending_programs(), st.data())
def test_every_legal_schedule_of_a_random_program_that_sends_runs_right(program, data):
    on_hosts(program, data)
