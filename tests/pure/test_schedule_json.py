"""Schedules as JSON: a round trip, and every malformed file refused without being executed."""

from __future__ import annotations

import json

import pytest
from programs import adam, lamb, pipeline, self_attention

import coconet_lab as cl
from coconet_lab.errors import IllegalTransform, ProgramError


def saved(make=self_attention):
    program = make()
    target = "sent" if make is pipeline else "total"
    return cl.Schedule(program).split(target)


@pytest.mark.parametrize("make", [self_attention, adam, lamb, pipeline])
def test_a_schedule_is_read_as_it_was_written(make, tmp_path):
    s = saved(make)
    read = cl.Schedule.from_json(s.to_json())
    assert read == s
    assert read.key() == s.key()
    s.save(tmp_path / "s.json")
    assert cl.Schedule.load(tmp_path / "s.json") == s
    assert json.loads(s.to_json())["format"] == 1


def test_a_list_program_and_every_kind_of_operand_survive():
    w = cl.tensor("w", cl.BF16, [(2, 3), (5,)], cl.Sliced(0), low=0.0, bucket=4)
    x = cl.tensor("x", cl.BF16, (2, 3, 8), cl.Local)
    y = cl.all_to_all(cl.reduce_scatter(x, 2, "max"), split=0, concat=2)
    outs = [w / cl.norm(w) * cl.GROUP.size, y, cl.conv(x, cl.tensor("k", cl.BF16, (1, 3, 2), cl.Replicated), stride=2)]
    s = cl.Schedule(cl.program("p", outputs=outs, ranks=2))
    assert cl.Schedule.from_json(s.to_json()) == s
    assert cl.Schedule.from_json(s.to_json()).program.types == s.program.types


def test_no_path_of_the_users_machine_is_written():
    assert "test_schedule_json" not in saved().to_json()


def test_custom_operators_are_named_and_passed_when_they_are_read():
    twice = cl.operator("twice", meaning=lambda x, ranges: x * 2)
    x = cl.tensor("x", cl.FP32, (8,), cl.Replicated)
    s = cl.Schedule(cl.program("p", outputs=[twice(x, name="y")]))
    assert cl.Schedule.from_json(s.to_json(), operators=[twice]) == s
    with pytest.raises(ProgramError, match="the operator 'twice'") as caught:
        cl.Schedule.from_json(s.to_json())
    assert "operators=[twice]" in caught.value.hint
    with pytest.raises(ProgramError, match="is no operator"):
        cl.Schedule.from_json(s.to_json(), operators=[print])


def changed(path, value, make=self_attention):
    """The saved text with one place changed; `path` of keys and indices, None deletes."""
    data = json.loads(saved(make).to_json())
    place = data
    for key in path[:-1]:
        place = place[key]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return json.dumps(data)


OPS = ("program", "ops")
MALFORMED = {
    "not JSON": "{",
    "a list": "[]",
    "a number": "3",
    "deep": "[" * 100_000,
    "no steps": changed(["steps"], None),
    "steps that are none": changed(["steps"], {}),
    "a step that is none": changed(["steps", 0], 5),
    "a step of no kind": changed(["steps", 0, "kind"], "eval"),
    "a step with a list for a name": changed(["steps", 0, "target"], ["total"]),
    "a step with a word for a dim": changed(["steps", 0, "dim"], "0"),
    "a step with more": changed(["steps", 0, "code"], "import os"),
    "a step with less": changed(["steps", 0, "into"], None),
    "no ranks": changed(["program", "ranks"], None),
    "a word for ranks": changed(["program", "ranks"], "4"),
    "true for ranks": changed(["program", "ranks"], True),
    "ops that are none": changed([*OPS], 3),
    "an unknown op": changed([*OPS, 0, "op"], "Eval"),
    "an unknown function": changed([*OPS, -1, "fn"], "__import__"),
    "an operand too many": changed([*OPS, -1, "operands"], ["drop", "r", "r"]),
    "an operand that is none": changed([*OPS, -1, "operands"], ["drop", {"x": 1}]),
    "an operand that does not exist": changed([*OPS, -1, "operands"], ["drop", "nowhere"]),
    "a number where a value belongs": changed([*OPS, 5, "operands"], [{"literal": 1}, "w"]),
    "an operand of its own": changed([*OPS, -1, "operands"], ["drop", "out"]),
    "a word for a literal": changed([*OPS, -1, "operands"], ["drop", {"literal": "1"}]),
    "a name twice": changed([*OPS, 1, "name"], "w"),
    "an empty name": changed([*OPS, 1, "name"], ""),
    "an unknown dtype": changed([*OPS, 0, "type", "dtype"], "FP8"),
    "an unknown layout": changed([*OPS, 0, "type", "layout"], ["Diagonal", None]),
    "a layout without its dim": changed([*OPS, 0, "type", "layout"], ["Sliced", None]),
    "a dim it does not have": changed([*OPS, 0, "type", "layout"], ["Sliced", 7]),
    "a negative extent": changed([*OPS, 0, "type", "shape"], [-8, 8]),
    "a fraction of an extent": changed([*OPS, 0, "type", "shape"], [8.5, 8]),
    "a group below 0": changed([*OPS, 0, "type", "group"], -1),
    "a list that does not fill": changed([*OPS, 0, "type", "pieces"], [[3]]),
    "a bucket of nothing": changed([*OPS, 0, "type", "bucket"], 0),
    "outputs that do not exist": changed(["program", "outputs"], ["nowhere"]),
    "a fused group of nothing": changed(["program", "fusions"], [{"name": "f", "members": ["nowhere"], "named": True}]),
    "an overlap of nothing": changed(["program", "overlaps"], [{"name": "v", "stages": ["x", "no"], "named": True}]),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_file_is_a_program_error(what):
    with pytest.raises((ProgramError, cl.LayoutError)) as caught:
        cl.Schedule.from_json(MALFORMED[what])
    assert caught.value.found


def test_another_format_is_named():
    with pytest.raises(ProgramError, match="format 99"):
        cl.Schedule.from_json(changed(["format"], 99))


def test_a_step_that_does_not_apply_is_the_steps_own_refusal():
    with pytest.raises(IllegalTransform, match="step 1") as caught:
        cl.Schedule.from_json(changed(["steps", 0, "target"], "drop"))
    assert caught.value.rule
