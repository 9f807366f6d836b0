"""What depends on what, and what lies between: told by numbers, as a walk over the edges tells it."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import legal_step, programs

import coconet_lab as cl
from coconet_lab import FP32, Local, Replicated
from coconet_lab.errors import Refusal
from coconet_lab.ir import ops as o
from coconet_lab.ir.ancestry import is_within, spans
from coconet_lab.ir.program import Fusion
from coconet_lab.transforms.crossing import Crossing, annotated_between, cross, last_values
from coconet_lab.transforms.reorder import Reorder


def after_some_steps(data, program, most=3):
    for _ in range(data.draw(st.integers(0, most))):
        step = legal_step(data.draw, program)
        if step is None:
            break
        program = step(program)
    return program


def gathers(program):
    return [name for name, op in program.ops.items() if isinstance(op, o.AllGather)]


def between(program, gather, past):
    """Everything on paths from `gather` to `past`, ends included: the definition."""
    graph = program.to_networkx()
    above = set(past).union(*(nx.ancestors(graph, name) for name in past))
    return [name for name in program.ops if name in above & nx.descendants(graph, gather)]


@settings(max_examples=60)
@given(programs(max_ops=14), st.data())
def test_a_value_is_below_another_exactly_when_a_path_leads_to_it(program, data):
    program = after_some_steps(data, program)
    graph, found = program.to_networkx(), program.ancestry
    assert [found.number[name] for name in found.names] == list(range(len(program)))
    for name in program.ops:
        above = {other for other in program.ops if found.is_below(name, other)}
        assert above == nx.ancestors(graph, name)


@settings(max_examples=60)
@given(programs(max_ops=14), st.data())
def test_a_cone_holds_its_names_and_all_above_them_and_its_ranges_do_not_meet(program, data):
    names = data.draw(st.lists(st.sampled_from(list(program.ops)), min_size=1, max_size=4))
    graph, found = program.to_networkx(), program.ancestry
    cone = found.cone(names)
    assert sorted(set(cone)) == list(cone)
    held = {name for name in program.ops if is_within(found.number[name], cone)}
    assert held == set(names).union(*(nx.ancestors(graph, name) for name in names))


@settings(max_examples=80)
@given(programs(max_ops=14), st.data())
def test_what_a_gather_crosses_is_what_reads_slices_on_paths_to_the_past(program, data):
    program = after_some_steps(data, program)
    for gather in gathers(program):
        past = data.draw(st.lists(st.sampled_from(list(program.ops)), min_size=1, max_size=3))
        region = between(program, gather, past)
        crossing = cross(program, gather, program.ancestry.cone(past))
        if isinstance(crossing, Refusal):
            continue
        sliced = {gather, *crossing.sliced}
        assert list(crossing.region) == [n for n in region if not sliced.isdisjoint(program.ops[n].operands)]
        assert set(crossing.sliced) <= set(region)


@settings(max_examples=100)
@given(programs(max_ops=30), st.data())
def test_the_first_of_each_group_between_is_named_and_nothing_else_than_what_is_between(program, data):
    program = after_some_steps(data, program)
    # Groups of any values at all: more of them, and longer ones, than random legal steps make.
    group_of = data.draw(st.lists(st.integers(0, 2), min_size=len(program), max_size=len(program)))
    members = [[name for name, group in zip(program.ops, group_of) if group == at] for at in range(2)]
    program = replace(program, overlaps=(), fusions=tuple(Fusion(f"f{at}", tuple(m)) for at, m in enumerate(members)))
    past = data.draw(st.lists(st.sampled_from(list(program.ops)), min_size=1, max_size=3))
    for start in program.ops:  # as if it were a gather: there are few
        region = [name for name in between(program, start, past) if name in program.unit_of]
        named = annotated_between(program, start, program.ancestry.cone(past))
        assert set(named) <= set(region)
        assert firsts(program, named) == firsts(program, region)


def firsts(program, names):
    """The first value of each fused group, in order."""
    found = {}
    for name in names:
        found.setdefault(program.unit_of[name], name)
    return list(found.items())


@settings(max_examples=80)
@given(programs(max_ops=14), st.data())
def test_last_values_are_those_that_take_slices_and_that_no_other_depends_on(program, data):
    program = after_some_steps(data, program)
    graph = program.to_networkx()
    for gather in gathers(program):
        last = last_values(program, gather)
        for name in last:
            assert isinstance(cross(program, gather, program.ancestry.cone([name])), Crossing)
            assert not nx.ancestors(graph, name) & set(last)
        for reader in program.readers[gather]:
            if isinstance(cross(program, gather, program.ancestry.cone([reader])), Crossing):
                assert reader in last or any(reader in nx.ancestors(graph, name) for name in last)


def test_readers_are_found_within_ranges_whether_few_or_many():
    x = cl.tensor("x", FP32, (8,), Replicated)
    for count in (3, 30):
        outputs = [cl.add(x, float(k), name=f"y{k}") for k in range(count)]
        program = cl.program("wide", outputs=outputs, ranks=2)
        for wanted in (["y1"], ["y0", f"y{count - 1}"], [f"y{k}" for k in range(count)]):
            cone = program.ancestry.cone(wanted)
            assert sorted(program.ancestry.readers_within(program, "x", cone)) == sorted(wanted)


def test_parts_of_a_list_within_ranges_come_last_first():
    assert spans([1, 3, 4, 8, 9], (0, 2, 4, 9)) == [(2, 4), (0, 1)]
    assert spans([1, 3], (4, 9)) == []


def test_a_group_of_scalars_that_a_past_would_cut_is_named_with_its_first_value_outside():
    gathered = [cl.all_gather(cl.reduce_scatter(cl.tensor(f"g{k}", FP32, (8,), Local)), name=f"a{k}") for k in range(4)]
    total = cl.norm(gathered[0])
    for k, part in enumerate(gathered[1:], 1):
        total = cl.add(total, cl.norm(part), name=f"t{k}")
    outputs = [cl.mul(part, total, name=f"y{k}") for k, part in enumerate(gathered)]
    program = cl.program("clip", outputs=outputs, ranks=4).edit(fusions=(Fusion("sum", ("t1", "t2", "t3")),))
    refusal = Reorder("a0", ("t2",)).why_not(program)
    assert "would cut fused group 'sum': 't3' would stay whole" in refusal.found
    assert refusal.way_out == Reorder("a0", ("t2", "sum"))
    for past in (("y0",), ("y3",), ("t2", "y0"), ("sum",)):
        assert Reorder("a0", past).why_not(program) is None
