"""The explorer's state: a tree of schedules that only grows, and the file it is kept in."""

from __future__ import annotations

import json
import warnings

import pytest
from explorer_programs import attention, small_attention

import coconet_lab as cl
from coconet_lab.errors import IllegalTransform, ProgramError
from coconet_lab.run.trace import Span
from coconet_lab.schedule.schedule import Schedule
from coconet_lab.transforms.fuse import Fuse
from coconet_lab.transforms.reorder import Reorder
from coconet_lab.transforms.split import Split
from coconet_lab.viz.explorer import history_file
from coconet_lab.viz.explorer import state as st
from coconet_lab.viz.explorer.state import Measured


def at_start() -> st.State:
    return st.start(Schedule(attention()))


def test_a_step_makes_a_child_and_changes_no_state_before():
    before = at_start()
    after = st.apply(before, Split("total"))
    assert (len(before.nodes), before.current) == (1, 0)
    assert (after.current, after.node.parent, after.node.title) == (1, 0, "split total")
    assert after.changed == ("total_rs", "total")


def test_a_refused_step_raises_and_leaves_the_state():
    before = at_start()
    with pytest.raises(IllegalTransform, match="not an AllGather"):
        st.apply(before, Reorder("total", ("out",)))
    assert before == at_start()


def test_a_step_taken_before_is_gone_back_to_and_not_taken_twice():
    once = st.undo(st.apply(at_start(), Split("total")))
    assert len(st.apply(once, Split("total")).nodes) == 2


def test_undo_keeps_what_was_left_and_redo_returns_to_it():
    there = st.apply(at_start(), Split("total"))
    back = st.undo(there)
    assert back.schedule.steps == ()
    assert len(back.nodes) == 2
    assert st.redo(back).current == there.current
    assert st.undo(at_start()) == at_start()
    assert st.redo(at_start()) == at_start()


def test_a_step_after_undo_branches_and_forgets_redo():
    state = st.undo(st.apply(at_start(), Split("total")))
    state = st.apply(state, Fuse(("add_1", "out")))
    assert [node.parent for node in state.nodes] == [None, 0, 0]
    assert st.redo(state) == state


def test_a_jump_lights_nothing_and_a_wrong_number_is_refused():
    state = st.jump(st.apply(at_start(), Split("total")), 0)
    assert state.changed == ()
    with pytest.raises(ProgramError, match="no schedule 7"):
        st.jump(state, 7)


def test_the_selection_follows_a_value_to_its_new_name():
    state = st.select(st.apply(at_start(), Split("total")), ["total"])
    state = st.apply(state, Reorder("total", ("out",)))
    assert "total" not in state.program.ops
    assert state.selected == ("total_rs",)


def test_select_drops_unknown_names_and_add_toggles():
    state = st.select(at_start(), ["total", "nobody"])
    assert state.selected == ("total",)
    assert st.select(state, ["drop"], add=True).selected == ("total", "drop")
    assert st.select(state, ["total"], add=True).selected == ()


def test_a_schedule_with_steps_brings_its_history():
    state = st.start(Schedule(attention()).split("total").reorder("total", past="out"))
    assert [node.title for node in state.nodes] == ["start", "split total", "reorder total past out"]


def test_going_to_a_schedule_of_the_paper_names_where_it_leads():
    steps = Schedule(attention()).split("total").reorder("total", past="out").steps
    state = st.follow(st.apply(at_start(), Split("total")), steps, "MM-RS-C-AG")
    assert state.node.title == "MM-RS-C-AG"
    assert len(state.nodes) == 3


def test_quantiles_are_those_between_the_samples():
    found = Measured((4.0, 1.0, 2.0, 3.0), 4, 2, "cpu")
    assert found.median_us == 2.5
    assert found.quantile_us(0.0) == 1.0
    assert found.quantile_us(1.0) == 4.0


# -- the file --------------------------------------------------------------------------------------------------------


def grown() -> st.State:
    state = st.apply(st.start(Schedule(small_attention())), Split("total"))
    state = st.apply(st.undo(state), Fuse(("add_1", "out")))
    spans = (Span(0, 1, "total", "AllReduce", 0.5, 2.0, "Replicated", 3), Span(1, 0, "out", "Launch", 0.0, 1.0))
    state = st.measured(state, 2, Measured((3.0, 4.0), 2, 2, "cpu", "here", spans))
    return st.proved(st.rename(state, 1, "mine"), 2, "proved", "equal: 1 output")


def test_a_history_comes_back_from_its_file_with_names_times_and_proofs(tmp_path):
    state = grown()
    file = tmp_path / "deep" / "tries.json"
    history_file.write(file, history_file.to_text(state))
    found = history_file.from_text(file.read_text(), small_attention())
    assert found == state.__class__(state.nodes, state.current)
    assert [path.name for path in file.parent.iterdir()] == ["tries.json"]


def test_a_history_of_another_program_is_refused():
    with pytest.raises(ProgramError, match="belongs to another program"):
        history_file.from_text(history_file.to_text(grown()), attention())


@pytest.mark.parametrize(
    "broken",
    ["", "[]", "{}", '{"format": 9}', "null", '{"format": 1, "program": 3}'],
)
def test_a_malformed_history_is_one_error_of_four_lines(broken):
    with pytest.raises(ProgramError, match=r"no history|another program"):
        history_file.from_text(broken, small_attention())


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("parent", 5),
        ("parent", "0"),
        ("step", {"kind": "boom"}),
        ("proof", "sure"),
        ("measured", {"samples_us": ["x"]}),
    ],
)
def test_a_malformed_node_is_refused(place, value):
    data = json.loads(history_file.to_text(grown()))
    data["nodes"][1][place] = value
    with pytest.raises(ProgramError):
        history_file.from_text(json.dumps(data), small_attention())


# -- one file, several explorers, and files that cannot be written ---------------------------------------------------


def kept(path) -> history_file.HistoryFile:
    return history_file.HistoryFile(path, small_attention())


def test_two_writers_of_one_file_lose_no_schedule_name_proof_or_time(tmp_path):
    file = tmp_path / "tries.json"
    start = st.start(Schedule(small_attention()))
    one, two = kept(file), kept(file)
    assert (one.read(), two.read()) == (None, None)
    first = one.save(st.apply(start, Split("total")))
    second = st.apply(start, Fuse(("add_1", "out")))
    second = st.measured(st.rename(second, 1, "mine"), 1, Measured((3.0,), 1, 2, "cpu"))
    second = two.save(second)
    assert [node.title for node in second.nodes] == ["start", "mine", "split total"]
    assert second.current == 1, "one stays where one is"
    first = one.save(st.apply(first, Reorder("total", ("out",))))
    assert [node.title for node in first.nodes] == ["start", "split total", "reorder total past out", "mine"]
    assert first.nodes[3].measured == second.nodes[1].measured
    again = kept(file).read()
    assert again.nodes == first.nodes


def test_below_a_schedule_that_both_have_each_keeps_its_own_branch():
    shared = st.apply(st.start(Schedule(small_attention())), Split("total"))
    mine = st.apply(shared, Reorder("total", ("out",)))
    theirs = st.proved(st.apply(shared, Reorder("total", ("drop",))), 1, "proved", "equal: 1 output")
    found = history_file.merged(mine, theirs)
    assert [(node.parent, node.title) for node in found.nodes] == [
        (None, "start"), (0, "split total"), (1, "reorder total past out"), (1, "reorder total past drop")
    ]  # fmt: skip
    assert found.nodes[1].proof == "proved"
    assert history_file.merged(found, theirs) is found


def test_what_nobody_else_has_written_is_not_read_again(tmp_path, monkeypatch):
    one = kept(tmp_path / "tries.json")
    state = one.save(grown())
    monkeypatch.setattr(history_file, "from_text", lambda *_: pytest.fail("read again"))
    assert one.save(state) is state
    (tmp_path / "tries.json").unlink()
    assert one.save(state) is state, "a file that was taken away is written anew"
    assert (tmp_path / "tries.json").exists()


def test_a_file_that_meanwhile_belongs_to_another_program_is_left_alone(tmp_path):
    file = tmp_path / "tries.json"
    one = kept(file)
    one.save(grown())
    history_file.write(file, history_file.to_text(at_start()))
    before = file.read_bytes()
    with pytest.raises(ProgramError, match="another program"):
        one.save(grown())
    assert file.read_bytes() == before


def test_a_read_only_history_is_read_and_never_replaced(tmp_path):
    file = tmp_path / "tries.json"
    kept(file).save(grown())
    file.chmod(0o444)
    before = file.read_bytes()
    one = kept(file)
    assert len(one.read().nodes) == 3
    with pytest.raises(ProgramError, match=r"tries\.json is read-only") as caught:
        one.save(at_start())
    assert len(str(caught.value).splitlines()) == 4
    assert file.read_bytes() == before


def test_a_link_to_a_history_stays_a_link(tmp_path):
    file, link = tmp_path / "tries.json", tmp_path / "link.json"
    kept(file).save(grown())
    link.symlink_to(file)
    kept(link).save(grown())
    assert link.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.json", "tries.json"]


@pytest.mark.parametrize("make", [lambda file: file.mkdir(), lambda file: file.write_bytes(b"\xff\xfe\x00")])
def test_what_is_no_text_is_one_error_of_four_lines(tmp_path, make):
    make(tmp_path / "tries.json")
    with pytest.raises(ProgramError, match="no history") as caught:
        kept(tmp_path / "tries.json").read()
    assert len(str(caught.value).splitlines()) == 4


def test_exploring_goes_on_where_the_history_cannot_be_kept_and_says_so_once(tmp_path):
    (tmp_path / "file").write_text("in the way")
    ex = cl.explore(small_attention(), history=tmp_path / "file" / "tries.json")
    with pytest.warns(RuntimeWarning, match="the history cannot be written"):
        ex.apply(Split("total"))
    assert "the history cannot be written" in ex._view()["moves"]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        ex.apply(Reorder("total", ("out",)))
    assert ex.wait(60)
    assert told == []
    assert [node.title for node in ex.history] == ["start", "split total", "reorder total past out"]
    assert "cannot be written" not in ex._view()["moves"]
    with pytest.raises(ProgramError, match="cannot be written"):
        ex.save()
