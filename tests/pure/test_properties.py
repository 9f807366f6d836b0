"""The sentences the lab rests on, over random programs and random steps."""

from __future__ import annotations

import pickle

from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import any_step, legal_step, programs

import coconet_lab as cl
from coconet_lab.errors import CoconetError
from coconet_lab.ir.json import program_from_json, program_to_json


def schedules(data, program, most=6):
    """A schedule of one to `most` random legal steps, where there are any."""
    s = cl.Schedule(program)
    for _ in range(data.draw(st.integers(1, most))):
        step = legal_step(data.draw, s.program)
        if step is None:
            break
        s = s.then(step)
    return s


@settings(max_examples=120)
@given(programs(), st.data())
def test_every_legal_schedule_computes_the_values_of_its_program(program, data):
    s = schedules(data, program)
    proof = s.check(seed=data.draw(st.integers(0, 3)), full=True)
    assert proof.ranks == program.ranks


@settings(max_examples=40)
@given(programs(), st.data())
def test_a_schedule_that_holds_at_full_size_holds_at_small_size(program, data):
    schedules(data, program).check()


@settings(max_examples=150)
@given(programs(), st.data())
def test_a_step_is_refused_exactly_when_it_has_a_reason_and_then_leaves_the_program_as_it_was(program, data):
    s = schedules(data, program, most=2)
    before, text = pickle.loads(pickle.dumps(s.program)), repr(s.program)
    step = legal_step(data.draw, s.program) if data.draw(st.booleans()) else None
    step = step or any_step(data.draw, s.program)
    refusal = step.why_not(s.program)
    try:
        after = s.then(step)
    except CoconetError:
        after = None
    assert (refusal is None) == (after is not None), refusal
    if refusal is not None:
        assert refusal.found
        assert refusal.rule
    if after is not None:
        assert after.undo() == s
        after.check(full=True)
    assert s.program == before
    assert repr(s.program) == text


@settings(max_examples=60)
@given(programs(), st.data())
def test_legal_moves_are_legal(program, data):
    s = schedules(data, program, most=1)
    for step in s.legal_moves()[:8]:
        assert step.why_not(s.program) is None
        s.then(step)


@settings(max_examples=60)
@given(programs(), st.data())
def test_schedules_survive_json_scripts_and_pickles(program, data):
    s = schedules(data, program)
    read = cl.Schedule.from_json(s.to_json())
    assert read == s
    assert read.program == s.program
    assert read.key() == s.key()
    assert program_from_json(program_to_json(s.program)) == s.program
    names = {"cl": cl, "random": program}
    exec(s.script(), names)
    assert names["s"] == s
    assert pickle.loads(pickle.dumps(s)) == s


@settings(max_examples=60)
@given(programs(), st.data())
def test_fused_groups_and_overlaps_change_no_operation(program, data):
    s = schedules(data, program)
    for record in s.record:
        if record.step.kind in ("fuse", "overlap"):
            assert record.after.ops == record.before.ops
            assert record.after.types == record.before.types
