"""The explorer without a browser: what clicks do, what runs behind them, and what is left after a fault."""

from __future__ import annotations

import re
import time

import pytest
from explorer_programs import WAIT_S, FakeCluster, attention, broken, large, small_attention, wrong_size

import coconet_lab as cl
from coconet_lab import workloads
from coconet_lab.errors import IllegalTransform, ProgramError, ProofError
from coconet_lab.schedule.schedule import Schedule
from coconet_lab.transforms.reorder import Reorder
from coconet_lab.transforms.split import Split
from coconet_lab.viz.explorer import graph, static


def click(ex, act, arg=None, **more):
    ex.handle({"act": act, "arg": arg, "n": 1, **more})
    return ex


def box(ex, name):
    ex._view()
    return ex.page.graph.ids[name]


def card(ex, number):
    """What a click on the card with this number sends."""
    return re.search(rf'data-arg="([^"]*)" data-key="move {number}"', ex._view()["moves"]).group(1)


def test_the_naive_program_becomes_the_papers_overlapped_schedule_in_five_clicks():
    ex = cl.explore(attention())
    click(ex, "select", [box(ex, "total")])
    for _ in range(4):
        click(ex, "move", card(ex, 1))
    paper = Schedule(attention()).split("total").reorder("total", past="out").fuse("total_rs", "out")
    assert ex.schedule.key() == paper.overlap("layer", "fused").key()


def test_adam_becomes_the_papers_fused_form_in_five_clicks():
    workload = workloads.adam(elements=64, dtype="fp16")
    ex = cl.explore(workload)
    wanted = workload.schedules["fuse(RS-Opt-AG)"].key()
    for first in ("split", "reorder", 'as_slice("w", "m", "v")', "dead", "fuse"):
        at = next(at for at, c in enumerate(ex.facts.cards(ex.state.node)) if c.step.script().startswith(first))
        click(ex, "move", f"{ex.state.current}:{at}")
    assert ex.schedule.key() == wanted


def test_the_script_rebuilds_the_schedule():
    ex = cl.explore(attention())
    ex.apply(Split("total"))
    ex.apply(Reorder("total", ("out",)))
    names = {"cl": type("cl", (), {"Schedule": Schedule}), "self_attention": attention()}
    exec(ex._view()["copies"]["script"], names)
    assert names["s"] == ex.schedule


def test_a_click_on_a_card_of_a_schedule_that_was_left_does_nothing():
    ex = cl.explore(attention())
    old = card(ex, 1)
    ex.apply(Split("total"))
    click(ex, "move", old)
    assert len(ex.history) == 2


@pytest.mark.parametrize(
    ("act", "arg"),
    [("move", "0:99"), ("move", "x"), ("move", None), ("jump", "99"), ("jump", "-1"), ("select", ["nope"]),
     ("select", 3),
     ("open", "op0"), ("wayout", "0:0"), ("tab", "evil"), ("target", "evil"), ("kernel", None), ("boom", None),
     ("rename", "99"), ("choose", None)],
)  # fmt: skip
def test_a_message_that_makes_no_sense_changes_nothing(act, arg):
    ex = cl.explore(attention())
    before = ex.state
    click(ex, act, arg, value="0:0:99")
    assert ex.state == before


def test_a_way_out_is_a_click():
    ex = cl.explore(attention())
    click(ex, "select", [box(ex, "total")])
    assert "Split total first" in ex._view()["moves"]
    click(ex, "wayout", "0:0")
    assert ex.schedule.steps == (Split("total"),)


def test_another_form_of_a_move_is_chosen_on_its_card():
    ex = cl.explore(attention())
    ex._view()
    click(ex, "choose", value="0:0:2")
    click(ex, "move", "0:0")
    assert ex.schedule.steps == (Split("total", 2),)


def test_a_refused_step_is_shown_to_the_page_and_raised_to_python():
    ex = cl.explore(attention())
    with pytest.raises(IllegalTransform):
        ex.apply(Reorder("total", ("out",)))
    click(ex, "goto", value="nothing of the paper")
    assert "is no schedule of the paper" in ex._view()["moves"]
    assert len(ex.history) == 1


def test_go_to_takes_every_step_of_a_schedule_of_the_paper():
    ex = cl.explore(attention())
    click(ex, "goto", value="ol(MM,fuse(RS-C-AG))")
    assert len(ex.schedule.steps) == 4
    assert ex.history[-1].title == "ol(MM,fuse(RS-C-AG))"
    with pytest.raises(ProgramError):
        cl.explore(large(1)).goto("MM-AR-C")


def test_a_refusal_is_text_that_can_have_the_focus_never_a_disabled_button():
    ex = cl.explore(attention())
    html = click(ex, "select", [box(ex, "total")])._view()["moves"]
    assert " disabled" not in html
    assert re.search(r'role="button" tabindex="0" aria-disabled="true"[^>]*aria-describedby="cl-rule-near-0"', html)


def test_every_new_schedule_is_proved_behind_the_clicks():
    ex = cl.explore(small_attention())
    ex.apply(Split("total"))
    assert ex.wait(WAIT_S)
    assert ex.history[1].proof == "proved"
    assert "✓ equal to the start" in ex._view()["header"]


def test_schedules_that_were_passed_by_are_proved_when_there_is_time():
    ex = cl.explore(small_attention())
    ex.goto("fuse(RS-C-AG)")
    assert ex.wait(WAIT_S)
    assert [node.proof for node in ex.history] == ["unchecked", "proved", "proved", "proved"]


def test_a_schedule_that_differs_says_so_in_four_lines(monkeypatch):
    def differs(self, **how):
        raise ProofError("out differs on rank 2", rule="equal values", where="step 1", hint="before(1)")

    monkeypatch.setattr(Schedule, "check", differs)
    ex = cl.explore(small_attention())
    ex.apply(Split("total"))
    assert ex.wait(WAIT_S)
    assert ex.history[1].proof == "wrong"
    assert "out differs on rank 2" in ex._view()["header"]


def test_the_history_is_saved_at_each_move_and_gone_on_from(tmp_path):
    file = tmp_path / "tries.json"
    ex = cl.explore(small_attention(), history=file)
    ex.apply(Split("total"))
    ex.undo()
    again = cl.explore(small_attention(), history=file)
    assert [node.title for node in again.history] == [node.title for node in ex.history] == ["start", "split total"]
    assert again.schedule == ex.schedule
    for one in (ex, again):  # both prove, and write what they found into the one file
        assert one.wait(WAIT_S)
    assert ex.save(tmp_path / "other.json").read_text() == file.read_text()
    with pytest.raises(ProgramError, match="no file"):
        cl.explore(small_attention()).save()


def test_a_schedule_given_beside_a_history_is_where_one_goes_on(tmp_path):
    file = tmp_path / "tries.json"
    cl.explore(small_attention(), history=file).apply(Split("total", 1))
    again = cl.explore(Schedule(small_attention()).split("total"), history=file)
    assert again.schedule.steps == (Split("total"),)
    assert len(again.history) == 3


def test_a_click_on_a_program_of_505_operations_calls_no_graphviz_and_takes_under_200_ms(monkeypatch):
    ex = cl.explore(large())
    ex._view()
    assert ex.wait(WAIT_S)
    ex.select("block9.attn.total")
    ex._view()
    assert ex.wait(WAIT_S)
    monkeypatch.setattr(graph, "layout", lambda *_: pytest.fail("a selection was drawn anew"))
    best = 1.0
    for _ in range(3):
        started = time.perf_counter()
        click(ex, "select", [ex.page.graph.ids["block9.attn.total"]])
        view = ex._view()
        best = min(best, time.perf_counter() - started)
    assert len(view["boxes"]) <= 40
    assert best < 0.2


def test_what_moves_lead_to_is_drawn_ahead_of_the_click(monkeypatch):
    ex = cl.explore(attention())
    ex._shown._widget = type("Page", (), {"show": lambda self, view: None})()
    ex.select("total")
    assert ex.wait(WAIT_S)
    monkeypatch.setattr(graph, "layout", lambda *_: pytest.fail("the click waited for Graphviz"))
    click(ex, "move", card(ex, 1))
    assert ex.schedule.steps == (Split("total"),)


def test_find_selects_the_name_and_unfolds_it():
    ex = cl.explore(large(12))
    click(ex, "find", value="block7.attn.tot")
    assert ex.selected == ("block7.attn.total",)
    assert ex._view()["selected"] == [ex.page.graph.ids["block7.attn.total"]]
    click(ex, "find", value="zebra")
    assert "no name has" in ex._view()["moves"]


# -- the run button --------------------------------------------------------------------------------------------------


def test_a_run_is_timed_beside_the_start_and_shown(tmp_path):
    ex = cl.explore(small_attention(), FakeCluster(), repeats=4, history=tmp_path / "h.json")
    click(ex, "run")
    assert ex.wait(WAIT_S)
    ex.apply(Split("total"))
    ex.run()
    assert ex.wait(WAIT_S)
    assert list(ex.results) == ["start", "split total"]
    assert ex.results["start"].samples_us == (99.0,) * 4
    view = ex._view()
    assert "1.01×" in view["strip"]
    assert "timeline of the last run" in view["drawer"]
    assert cl.explore(small_attention(), history=tmp_path / "h.json").results == ex.results


def test_while_a_run_is_under_way_clicks_work_and_a_second_run_is_not_begun():
    cluster = FakeCluster(holds=True)
    ex = cl.explore(small_attention(), cluster)
    ex.run()
    assert cluster.started.wait(WAIT_S)
    assert "Cancel" in ex._view()["header"]
    ex.apply(Split("total"))
    ex.run()
    cluster.go_on.set()
    assert ex.wait(WAIT_S)
    assert cluster.names == ["start"]
    assert list(ex.results) == ["start"]


@pytest.mark.parametrize("fault", [broken(), wrong_size(), RuntimeError("a fault of a library")])
def test_an_error_of_a_run_reaches_the_panel_and_everything_stays_usable(fault):
    ex = cl.explore(small_attention(), FakeCluster(fault))
    ex.run()
    assert ex.wait(WAIT_S)
    drawer = ex._view()["drawer"]
    assert str(fault).split("\n")[0].replace("'", "&#x27;") in drawer
    if fault.args and "ZeroDivisionError" in str(fault):
        assert "traceback of rank 1" in drawer
        assert "<b>line</b>" not in drawer
    assert "cl-busy" not in ex._view()["header"]
    assert ex.apply(Split("total")).nodes[-1].title == "split total"
    click(ex, "dismiss")
    assert "cl-error" not in ex._view()["drawer"]


def test_a_dead_cluster_is_said_with_a_way_to_start_again_and_nothing_is_lost():
    cluster = FakeCluster()
    ex = cl.explore(small_attention(), cluster)
    ex.run()
    assert ex.wait(WAIT_S)
    cluster.dies = True
    ex.run()
    assert ex.wait(WAIT_S)
    drawer = ex._view()["drawer"]
    assert "The cluster stopped: rank 1 of 2 was killed" in drawer
    assert "Start again" in drawer
    assert list(ex.results) == ["start"]
    click(ex, "restart")
    assert ex.wait(WAIT_S)
    assert "Start again" not in ex._view()["drawer"]
    assert ex.results["start"].samples_us[0] == 97.0


def test_the_run_button_says_what_it_will_use():
    assert "Start 4 CPU ranks" in cl.explore(attention())._view()["header"]
    assert "Run on 2 ranks" in cl.explore(small_attention(), FakeCluster())._view()["header"]


# -- without a kernel ------------------------------------------------------------------------------------------------


def test_the_static_picture_has_graph_script_and_costs_in_plain_attributes():
    ex = cl.explore(attention())
    ex.apply(Split("total"))
    assert ex.wait(WAIT_S)
    costs = {node.id: ex.facts.known_costs(node.id) for node in ex.history}
    html = static.static_html(ex.state, costs, "cl-static-x")
    assert html.startswith('<div class="cl-static-x"')
    assert "<style" not in html
    assert "var(--" not in html
    assert "<svg" in html
    assert ".split(&quot;total&quot;)" in html
    assert "520.5 MiB" in html


def test_the_static_picture_is_made_again_for_a_move_and_not_for_a_selection():
    made: list[str] = []
    ex = cl.explore(attention())
    ex._shown._widget = type("Page", (), {"show": lambda self, view: None})()
    ex._shown._handle = type("Handle", (), {"update": lambda self, bundle, raw: made.append(bundle["text/plain"])})()
    ex.select("total")
    assert ex.wait(WAIT_S)
    count = len(made)
    ex.select("drop")
    assert ex.wait(WAIT_S)
    assert len(made) == count >= 1
    ex.apply(Split("total"))
    assert ex.wait(WAIT_S)
    assert "at split total" in made[-1]


def test_what_cannot_be_explored_is_refused():
    with pytest.raises(ProgramError, match="cannot explore a list"):
        cl.explore([])
