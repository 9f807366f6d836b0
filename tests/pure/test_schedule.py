"""Schedules: history, replay, questions, text (design §2, §5a)."""

from __future__ import annotations

import pickle

import pytest
from programs import adam, mlp, self_attention, sgd

import coconet_lab as cl
from coconet_lab.errors import IllegalTransform, ProgramError, Refusal
from coconet_lab.schedule.schedule import program_of
from coconet_lab.transforms.split import Split


def sliced():
    return cl.Schedule(self_attention()).split("total").reorder("total", past="out")


def test_every_step_is_a_new_schedule_and_the_old_one_is_unchanged():
    start = cl.Schedule(self_attention())
    split = start.split("total")
    assert start.steps == ()
    assert start.program == self_attention()
    assert "total_rs" not in start
    assert "total_rs" in split
    assert split.program == Split("total")(start.program)
    assert "the one it was made from is unchanged" in repr(split)
    with pytest.raises(AttributeError, match="does not change"):
        split.base = start


def test_values_name_what_strings_name():
    x = cl.tensor("x", cl.FP32, (8,), cl.Local)
    total = cl.all_reduce(x)
    out = total + 1
    p = cl.program("p", outputs=[out], ranks=4)
    s = cl.Schedule(p).split(total).reorder(total, past=out)
    assert s == cl.Schedule(p).split("allreduce_1").reorder("allreduce_1", past="add_1")
    assert s == cl.Schedule(p).split("allreduce_1").reorder("allreduce_1", past=("add_1",))
    assert s[out].layout == cl.Replicated


def test_undo_and_before_walk_the_history():
    s = sliced()
    assert s.undo() == s.before(2) == cl.Schedule(s.base).split("total")
    assert s.undo(2) == s.before(1) == cl.Schedule(s.base)
    assert s.undo(0) == s.before(3) == s
    for wrong in (lambda: s.undo(3), lambda: s.undo(-1), lambda: s.before(0), lambda: s.before(4)):
        with pytest.raises(ProgramError, match="this schedule has 2"):
            wrong()


def test_a_record_has_the_programs_around_a_step_and_what_changed():
    record = sliced().record[0]
    assert record.step == Split("total")
    assert record.before == self_attention()
    assert record.changed == ("total_rs", "total")
    assert record.moved == {}
    assert sliced().record[1].moved["total"].now == ("total_rs",)


def test_a_name_that_was_dropped_says_where_its_value_went():
    s = sliced()
    assert s.moved["total"].now == ("total_rs",)
    with pytest.raises(ProgramError, match="no value 'total'") as caught:
        s["total"]
    assert 'reorder("total", past="out") dropped it' in caught.value.rule
    assert "total_rs" in caught.value.hint
    with pytest.raises(IllegalTransform, match="no value 'total'"):
        s.split("total")


def test_steps_replay_on_another_program_or_name_the_one_that_does_not():
    s = sliced()
    assert s.on(mlp()).program["out_part"].layout == cl.Sliced(0)
    assert s.replay(s.base) == s
    with pytest.raises(IllegalTransform) as caught:
        s.on(sgd())
    assert "step 2: reorder(" in caught.value.where


def test_with_ranks_replays_on_more_ranks():
    s = cl.Schedule(self_attention(ranks=2)).split("total").reorder("total", past="out").with_ranks(4)
    assert s.base.ranks == s.program.ranks == 4
    assert s["out_part"].local_shape == (2, 4, 8)
    with pytest.raises(cl.LayoutError):
        s.with_ranks(3)


def test_a_refusal_names_program_step_and_call():
    with pytest.raises(IllegalTransform) as caught:
        sliced().split("drop")
    assert caught.value.where == "program 'self_attention', step 3: split(\"drop\")"
    assert caught.value.rule


def test_why_not_is_the_refusal_of_the_same_call():
    s = cl.Schedule(self_attention())
    assert s.why_not("split", "total") is None
    assert isinstance(s.why_not("split", "drop"), Refusal)
    assert isinstance(s.why_not("reorder", "total", past="out"), Refusal)
    assert isinstance(s.why_not("fuse", "layer", "out"), Refusal)
    with pytest.raises(ProgramError, match="there is no step 'splt'") as caught:
        s.why_not("splt", "total")
    assert 'why_not("split"' in caught.value.hint
    with pytest.raises(ProgramError, match="split: "):
        s.why_not("split", "total", past="out")


def test_legal_moves_can_be_taken_by_then():
    s = cl.Schedule(self_attention())
    moves = s.legal_moves()
    assert Split("total") in moves
    assert s.then(Split("total")) == s.split("total")


def test_a_schedule_is_accepted_wherever_a_program_is():
    s = sliced()
    assert program_of(s) is s.program
    assert cl.Schedule(s).base == s.program
    assert cl.random_inputs(s).keys() == cl.random_inputs(s.program).keys()
    with pytest.raises(ProgramError, match="str is neither"):
        program_of("p")


def test_repr_lists_steps_and_whether_they_are_proved():
    s = sliced()
    assert repr(s).splitlines() == [
        "self_attention, 4 ranks: 2 steps, not checked yet: .check()",
        '  1 split("total")',
        '  2 reorder("total", past="out")',
        "  a new schedule; the one it was made from is unchanged",
    ]
    s.check()
    assert "2 steps, equal: 1 output × 4 ranks, exact" in repr(s)
    assert "no steps" in repr(cl.Schedule(self_attention()))


def test_equality_is_by_base_and_steps():
    assert sliced() == sliced()
    assert hash(sliced()) == hash(sliced())
    assert sliced() != sliced().undo()
    assert sliced() != cl.Schedule(mlp()).split("total").reorder("total", past="out")
    assert pickle.loads(pickle.dumps(sliced())) == sliced()


def test_two_ways_to_one_program_have_one_key():
    short = cl.Schedule(self_attention()).split("total").reorder("total", past="out")
    long = cl.Schedule(self_attention()).split("total").reorder("total", past="drop").reorder("drop", past="out")
    assert short.key() == long.key()
    assert short != long


def test_names_complete_and_are_found():
    s = sliced()
    assert "out_part" in s._ipython_key_completions_()
    assert "drop" in s
    assert "total" not in s


def test_a_diff_names_and_shows_what_differs():
    s = cl.Schedule(sgd())
    diff = s.diff(s.split("total"))
    assert (diff.added, diff.removed, diff.changed) == (("total_rs",), (), ("total",))
    assert diff.text.splitlines() == [
        "+ total_rs = ReduceScatter(g, dim=0): FP32[16] Sliced(0)",
        "- total = AllReduce(g): FP32[16] Replicated",
        "+ total = AllGather(total_rs): FP32[16] Replicated",
    ]
    assert not s.diff(s)
    assert repr(s.diff(s.base)) == "no difference"
    back = s.split("total").diff(s)
    assert back.removed == ("total_rs",)
    assert "- total_rs = ReduceScatter" in back.text


def test_a_script_rebuilds_the_schedule_with_cl_and_the_base_alone():
    s = sliced()
    assert s.script() == (
        's = (cl.Schedule(self_attention)\n     .split("total")\n     .reorder("total", past="out"))\n'
    )
    names = {"cl": cl, "self_attention": s.base}
    exec(s.script(), names)
    assert names["s"] == s


def test_a_script_of_names_that_are_no_identifiers_is_still_python():
    x = cl.tensor('x"y', cl.FP32, (8,), cl.Local)
    total = cl.all_reduce(x, name='evil"); import os; ("')
    program = cl.program("class", outputs=[cl.add(total, 1, name="a\nb\\")], ranks=2)
    s = cl.Schedule(program).split(total).reorder(total, past="a\nb\\")
    names = {"cl": cl, "program": program}
    exec(s.script(), names)
    assert names["s"] == s


def test_as_slice_and_dead_finish_the_papers_adam():
    s = cl.Schedule(adam()).split("total").reorder("total", past="p1").as_slice("m", "v", "w").dead()
    assert s.check().exact
    assert s["m"].layout == cl.Sliced(0)
    assert {"m1", "v1", "w1"}.isdisjoint(s.program.ops)
