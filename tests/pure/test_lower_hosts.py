"""Plans for ranks on several hosts, run rank by rank in NumPy against the oracle; nobody reaches another host."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_checks import check_plan
from strategies import choice, legal_step, programs
from test_lower_random import list_programs, sending_programs

import coconet_lab as cl
from coconet_lab.errors import ProgramError
from coconet_lab.ir.exact import integer_inputs
from coconet_lab.ir.inputs import proof_inputs
from coconet_lab.kernels.hosts import Hosts
from coconet_lab.kernels.lower import lower
from coconet_lab.kernels.plan import Collective, Exchange, Launch
from coconet_lab.kernels.plan_text import kernel_text, plan_text
from coconet_lab.workloads import adam, lamb, mlp, pipeline, self_attention, sgd

PLACES = {"2 hosts of 2": (4, 2), "2 hosts of 1": (2, 2), "4 hosts of 1": (4, 4)}
SIZES = {"37": 37, "2": 2, "64": 64, "a list": [(3, 4), (2000,), (5,), (1,)]}


def check(program, hosts, **options):
    """Sums that are exact whatever their order: a host adds its ranks first."""
    return check_plan(program, proof_inputs(program, integer_inputs(program)), hosts=hosts, **options)


def schedules(workload):
    return {name: schedule.program for name, schedule in workload.schedules.items()}


# Everything where both kinds of exchange are; where one of them is missing, the dtype with the conversions in between.
CASES_OF_AN_OPTIMIZER = [
    (place, elements, dtype)
    for place, elements, dtype in itertools.product(PLACES, SIZES, ("fp16", "fp32"))
    if place == "2 hosts of 2" or (elements != "64" and dtype == "fp16")
]


@pytest.mark.parametrize(("place", "elements", "dtype"), CASES_OF_AN_OPTIMIZER)
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


def kinds(plan):
    return [entry.kind if isinstance(entry, Collective | Exchange) else type(entry).__name__ for entry in plan.entries]


CASES = {
    "adam mixed fused": lambda: adam(1000, 4, "fp16").schedules["fuse(RS-Opt-AG)"],
    "lamb of a list fused": lambda: lamb([(3, 4), (2000,), (5,)], 4).schedules["fuse(RS-Opt-AG)"],
    "self_attention one-shot": lambda: self_attention().schedules["MM-AR-C"],
    "self_attention overlapped": lambda: self_attention().schedules["ol(MM,fuse(RS-C-AG))"],
    "pipeline overlapped": lambda: pipeline(ranks=8).schedules["ol(RS,fuse(C-P2P),AG)"],
}


@pytest.mark.parametrize("case", CASES)
def test_plan(case, golden):
    plan = CASES[case]().plan(hosts=2)
    golden("\n\n".join([plan_text(plan), *map(kernel_text, plan.kernels())]) + "\n")


def test_what_leaves_a_host_is_counted_apart():
    schedule = sgd(1024, 4, "fp16").schedules["fuse(RS-Opt-AG)"]
    block = 1024 // 4
    there = schedule.plan(hosts=2).ledger()
    # To the other host: a float32 sum of its block, and the new block in FP16; as much in FP16 to the other rank here.
    assert there.between_hosts_bytes == block * (4 + 2)
    assert there.wire_bytes == there.between_hosts_bytes + 2 * block * 2 + 2 * block * 2
    here = schedule.ledger()
    assert here.between_hosts_bytes == 0
    assert here.wire_bytes == 3 * block * (2 + 2)


def test_a_fused_all_reduce_becomes_the_librarys_and_the_kernel_of_the_rest():
    g, w = cl.tensor("g", cl.FP32, (64,), cl.Local), cl.tensor("w", cl.FP32, (64,), cl.Replicated)
    total = cl.all_reduce(g, name="total")
    program = cl.program("p", outputs=[cl.add(total, w, name="out")], ranks=4)
    program = cl.Schedule(program).fuse("total", "out", name="fused").program
    plan = check(program, 2)
    assert kinds(plan) == ["AllReduce", "Launch"]
    assert not plan.entries[1].kernel.has_peers
    assert dict(plan.entries[0].link_bytes) == {"between hosts": 2 * 3 * 64 * 4 // 4}


def test_a_send_stays_a_store_inside_a_host_and_becomes_a_transfer_to_another():
    x = cl.tensor("x", cl.FP32, (8,), cl.Replicated)
    first = cl.send(cl.mul(x, 2, name="a"), to=cl.GROUP + 1, name="first")
    second = cl.send(cl.mul(first, 3, name="b"), to=cl.GROUP + 1, name="second")
    program = cl.program("p", outputs=[cl.mul(second, 5, name="y")], ranks=8, groups=4)
    program = cl.Schedule(program).fuse("a", "first", name="f").fuse("b", "second", name="s").program
    plan = check(program, 2)
    assert kinds(plan) == ["Launch", "Arrive", "Launch", "Transfer", "Launch"]
    assert [dict(entry.link_bytes) for entry in plan.entries[:4:2]] == [{"between groups": 32}, {}]
    assert dict(plan.entries[3].link_bytes) == {"between hosts": 32}
    assert plan.ledger().between_groups_bytes == plan.ledger().between_hosts_bytes == 32


def test_groups_that_lie_on_one_host_keep_their_kernels_and_their_chunks():
    schedule = self_attention(4, 6, 8, 4).schedules["ol(MM,fuse(RS-C-AG))"]
    alone = schedule.on(schedule.base.with_ranks(8, 2))
    assert alone.plan(hosts=2).entries == alone.plan().entries
    assert {entry.chunk for entry in alone.plan().entries} != {None}
    check(alone.program, 2)


def test_stages_that_span_hosts_are_overlapped_whole_each_on_its_stream():
    entries = self_attention(4, 6, 8, 4).schedules["ol(MM,fuse(RS-C-AG))"].plan(hosts=2).entries
    assert {entry.chunk for entry in entries} == {None}
    assert [entry.stream for entry in entries] == [0, 1, 1, 1, 1, 1, 1]


def test_a_reduction_across_hosts_beside_one_inside_a_rank_runs_by_itself():
    x = cl.tensor("x", cl.FP32, (8, 6), cl.Sliced(0))
    rows, all_of_it = cl.max(x, dim=1, name="rows"), cl.norm(x, name="norm")
    program = cl.program("p", outputs=[cl.mul(cl.add(x, rows, name="a"), all_of_it, name="y")], ranks=4)
    program = cl.Schedule(program).fuse("rows", "norm", "y", name="fused").program
    assert kinds(check(program, 2)) == ["Launch", "Launch", "Launch", "Reduction", "Launch"]


def test_each_part_of_a_kernel_that_ends_at_a_reduction_says_what_it_computes():
    first, second, _, third = lamb(37, 4).schedules["fuse(RS-Opt-AG)"].plan(hosts=2).entries[4:8]
    assert {"u", "v1_part", "w_norm", "u_norm"} <= set(first.ops)
    assert second.ops == ("w_norm",)
    assert {"w1_part", "w1"} <= set(third.ops)
    assert {"u", "total_rs", "w", "w_norm"}.isdisjoint(third.ops)


@pytest.mark.parametrize(
    ("ranks", "groups", "hosts", "found"),
    [(4, 1, 3, "do not spread"), (12, 2, 3, "do not fit"), (4, 1, 0, "the number of hosts is 0")],
)
def test_ranks_that_do_not_lie_evenly_are_refused_with_a_way_out(ranks, groups, hosts, found):
    program = pipeline(12, 12, 12, ranks, groups).program if groups > 1 else sgd(64, ranks).program
    with pytest.raises(ProgramError, match=found) as error:
        lower(program, hosts=hosts)
    assert len(str(error.value).splitlines()) == 4
    assert "try" in str(error.value)


@pytest.mark.parametrize("side", ["opens", "closes"])
def test_without_a_barrier_of_the_host_ranks_read_what_is_not_there_yet(side):
    g = cl.tensor("g", cl.FP32, (8, 6), cl.Local)
    total = cl.all_reduce(cl.mul(g, 2, name="double"), name="total")
    program = cl.program("p", outputs=[cl.norm(cl.add(total, 1, name="more"), dim=1, name="y")], ranks=4)
    schedule = cl.Schedule(program).split("total").reorder("total", "more").fuse("total_rs", "more", name="f")
    plan = check(schedule.program, 2)
    broken = [replace(entry, **{side: ()}) if isinstance(entry, Launch) else entry for entry in plan.entries]
    with pytest.raises(AssertionError):
        check(schedule.program, 2, plan=replace(plan, entries=tuple(broken)))


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_the_printed_kernels_reach_the_ranks_of_one_host_and_keep_a_hosts_sum_wide(target):
    plan = sgd(64, 4, "fp16").schedules["fuse(RS-Opt-AG)"].plan(hosts=2)
    text = plan.code(target)
    combined = next(line for line in text.splitlines() if re.search(r"\br0 = .*(t0_0|x0\[u\]\[0\])", line))
    assert re.search(r"t0_1|x0\[u\]\[1\]", combined)
    assert not re.search(r"t0_2|x0\[u\]\[2\]|to_fp16|rounded<", combined)
    assert ("#define RANKS 2" in text) == (target == "cuda")


def test_a_kernel_that_reaches_another_host_is_found():
    program = sgd(64, 4).schedules["fuse(RS-Opt-AG)"].program
    with pytest.raises(AssertionError):
        check(program, 1, plan=replace(lower(program), hosts=2))


def on_hosts(program, data):
    """One to six legal steps on, on some number of hosts that its ranks fit."""
    counts = [n for n in range(2, program.ranks + 1) if fits(program, n)]
    for _ in range(data.draw(st.integers(1, 6))):
        step = legal_step(data.draw, program)
        if step is None:
            break
        program = step(program)
    hosts = choice(data.draw, counts) if counts else 1
    check_plan(program, proof_inputs(program, frozenset(program.inputs)), hosts=hosts)


def fits(program, hosts):
    try:
        Hosts(program.ranks, program.groups, hosts)
    except ProgramError:
        return False
    return True


@settings(max_examples=100)
@given(programs(), st.data())
def test_every_legal_schedule_of_a_random_program_runs_right(program, data):
    on_hosts(program, data)


@settings(max_examples=100)
@given(list_programs(), st.data())
def test_every_legal_schedule_of_a_random_program_of_lists_runs_right(program, data):
    on_hosts(program, data)


@settings(max_examples=100)
@given(sending_programs(), st.data())
def test_every_legal_schedule_of_a_random_program_that_sends_runs_right(program, data):
    on_hosts(program, data)
