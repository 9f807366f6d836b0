"""The explorer's panes: which moves they offer, in which words, at which costs; and that no name escapes into HTML."""

from __future__ import annotations

import re

import pytest
from explorer_programs import attention, large
from viz_programs import HOSTILE

import coconet_lab as cl
from coconet_lab import FP32, Local, workloads
from coconet_lab.run.trace import Span
from coconet_lab.schedule.schedule import Schedule
from coconet_lab.transforms.fuse import Fuse
from coconet_lab.transforms.split import Split
from coconet_lab.viz.explorer import costs, graph, pages
from coconet_lab.viz.explorer import state as st
from coconet_lab.viz.explorer.kernel_text import highlighted, kernel_of, kernel_texts
from coconet_lab.viz.explorer.moves_panel import cards, declined, for_selection
from coconet_lab.viz.explorer.paper import paper_schedules
from coconet_lab.viz.explorer.said import said, said_of_run
from coconet_lab.viz.explorer.spans import timeline_html
from coconet_lab.viz.explorer.state import Measured
from coconet_lab.viz.palette import DARK, LIGHT


def cards_of(schedule: Schedule):
    return cards(schedule.program, schedule.legal_moves())


def test_without_a_selection_all_legal_moves_are_offered_each_with_its_effect():
    found = cards_of(Schedule(attention()))
    assert [card.step.script() for card in found] == [
        'split("total")', 'fuse("total", "out")', 'fuse("add_1", "out")', 'overlap("layer", "total")'
    ]  # fmt: skip
    assert [card.effect for card in found] == [
        "AllReduce → ReduceScatter + AllGather",
        "4 operations in one kernel: one-shot FusedAllReduce",
        "3 operations in one kernel",
        "layer and total run at once, chunk by chunk",
    ]


def test_a_reorder_says_what_works_on_slices_and_what_is_gathered():
    found = cards_of(Schedule(attention()).split("total"))
    reorder = next(card for card in found if card.step.kind == "reorder")
    assert reorder.effect == "add_1, drop, out_part work on slices; AllGather now makes out"


def test_a_selection_leaves_the_moves_that_touch_it_also_inside_a_group():
    found = cards_of(Schedule(attention()))
    assert [card.title for card in for_selection(found, ["total"])] == ["Split", "Fuse", "Overlap"]
    assert [card.operands for card in for_selection(found, ["drop"])] == ["total … out", "add_1 … out"]


def test_a_split_offers_every_dim_that_divides_and_its_other_form():
    card = cards_of(Schedule(attention()))[0]
    assert [words for words, _ in card.choices] == ["dim 0", "dim 1", "dim 2", "reduce + broadcast"]
    assert card.choices[0][1] == card.step


def test_refusals_put_near_misses_with_a_way_out_first_and_the_rest_in_one_block():
    near, never = declined(attention(), ["total"], {"split", "fuse", "overlap"})
    assert [entry.title for entry in near] == ["Reorder", "Drop dead"]
    assert near[0].way_out == Split("total")
    assert near[0].way_text == "Split total first"
    assert [entry.title for entry in never] == ["As slice"]


def test_no_refusal_is_shown_for_kinds_that_have_a_legal_move_or_without_a_selection():
    assert declined(attention(), [], set()) == ([], [])
    near, never = declined(attention(), ["total"], {"split", "reorder", "fuse", "overlap", "dead", "as_slice"})
    assert (near, never) == ([], [])


def test_a_card_shows_only_the_costs_that_change_the_worse_ones_as_worse():
    before = costs.costs_of(attention())
    split = costs.costs_of(Schedule(attention()).split("total").program)
    assert [(c.label, c.text, c.tone) for c in costs.changes(before, split)] == [
        ("memory", "+24 MiB", "worse"), ("held", "+12 MiB", "worse"), ("launches", "+1", "worse")
    ]  # fmt: skip
    assert costs.changes(before, before) == ()
    assert costs.unchanged_text(()) == "bytes and launches unchanged"


def test_the_strip_counts_bytes_from_the_plan_and_shows_no_made_up_prediction():
    start = costs.costs_of(attention())
    cells = costs.strip(start, start, None, None, 4)
    assert [(cell.label, cell.value) for cell in cells] == [
        ("on the wire", "72 MiB"), ("through memory", "496.5 MiB"), ("held at once", cells[2].value),
        ("launches", "5"), ("measured, 4 ranks", "not run yet"), ("predicted", "–"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "note"), [(1000, "="), (1004, "+0.4 %"), (996, "−0.4 %"), (1500, "+50 %"), (505, "−50 %")]
)
def test_a_cost_that_changes_a_little_never_reads_as_unchanged(value, note):
    before, after = costs.Costs(1000, 1, 1, 1, 1), costs.Costs(value, 1, 1, 1, 1)
    assert costs.strip(after, before, None, None, 4)[0].note == note


def test_a_measured_time_is_set_against_the_start():
    start, fast = Measured((20.0,), 1, 4, "cpu"), Measured((10.0,), 1, 4, "cpu")
    cell = costs.strip(None, None, fast, start, 4)[4]
    assert (cell.value, cell.note, cell.tone) == ("10 µs", "2.00×", "better")


def test_the_history_draws_the_last_branch_straight_and_earlier_ones_aside():
    state = st.apply(st.start(Schedule(attention())), Fuse(("add_1", "out")))
    state = st.apply(st.apply(st.undo(state), Split("total")), Fuse(("add_1", "out")))
    assert [(node.id, depth) for node, depth in pages.tree_rows(state.nodes)] == [(0, 0), (1, 1), (2, 0), (3, 0)]


def test_the_papers_schedules_are_known_by_the_programs_form_not_its_sizes():
    assert "ol(MM,fuse(RS-C-AG))" in paper_schedules(workloads.self_attention(hidden=64).program)
    assert "fuse(RS-Opt-AG)" in paper_schedules(workloads.adam(dtype="fp16").program)
    g = cl.tensor("g", FP32, (8,), Local)
    assert paper_schedules(cl.program("adam", outputs=[cl.all_reduce(g, name="total")], ranks=4)) == {}


def test_a_selection_needs_no_new_drawing():
    drawn = graph.Graphs()
    first = drawn.draw(attention())
    assert drawn.draw(attention(), keep=("total",)).svg is first.svg


def test_a_program_of_505_operations_is_drawn_in_at_most_40_boxes_with_the_selection_visible():
    program = large()
    assert len(program) > 500
    found = graph.Graphs().draw(program, keep=("block9.attn.total",))
    assert len(found.boxes) <= 40
    assert found.names(found.ids["block9.attn.total"]) == ("block9.attn.total",)


def test_opening_a_folded_block_opens_its_own_scope():
    program = large(12)
    found = graph.Graphs().draw(program)
    box = next(box for box in found.boxes if box.shape == "fold")
    scope = graph.scope_of(box, program)
    opened = graph.Graphs().draw(program, opened=scope)
    assert any(box.names == ("block0.attn.total",) for box in opened.boxes), scope


def test_the_selected_operations_lines_of_code_are_marked_on_both_targets():
    plan = Schedule(attention()).fuse("add_1", "out").plan()
    for target in ("cpu", "cuda"):
        found = kernel_texts(plan, target)
        at = kernel_of(found, ["drop"])
        assert "drop" in found[at].ops
        html = highlighted(found[at], target, ["drop"])
        assert 'class="cl-line marked"' in html, target
        text = re.sub(r"<i>\d+</i>|<[^>]+>", "", html).replace("&gt;", ">").replace("&lt;", "<").replace("&amp;", "&")
        text = text.replace("&quot;", '"').replace("&#x27;", "'")
        assert text.split("\n")[: len(found[at].lines)] == list(found[at].lines)


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_of_a_user_becomes_html(name):
    g = cl.tensor("g", FP32, (8,), Local)
    total = cl.all_reduce(g, name=name)
    program = cl.program(name, outputs=[cl.mul(total, 2.0, name="out")], ranks=4)
    ex = cl.explore(program)
    ex.select(name)
    ex.rename(name)
    assert ex.wait(60)
    for tab in st.TABS:
        ex.change(tab=tab)
        view = ex._view()
        for pane in ("header", "moves", "history", "strip", "drawer", "tools"):
            assert "<script>alert" not in view[pane]
            assert "<table>\\l" not in view[pane]
            assert 'a"<b>' not in view[pane]


def test_the_pages_colours_are_the_palettes_in_both_themes():
    from coconet_lab.viz.explorer.widget import theme_css

    css = theme_css()
    light, dark = css.split("\n")[0], css.split("\n")[1]
    for palette, line in ((LIGHT, light), (DARK, dark)):
        assert f"--cl-sliced: {palette.sliced.fill};" in line
        assert f"--cl-changed: {palette.changed};" in line
    assert f'[fill="{LIGHT.local.fill}" i] {{ fill: var(--cl-local); }}' in css


def test_what_goes_to_another_group_is_counted_once():
    made = cl.workloads.pipeline(batch=4, sequence=8, hidden=16, ranks=4, groups=2).schedules["MegatronLM"]
    assert made.ledger().between_groups_bytes > 0
    assert costs.costs_of(made.program).wire_bytes == made.ledger().wire_bytes


# -- for those who do not look -----------------------------------------------------------------------------------------


def test_a_box_is_read_out_with_what_it_reads():
    drawn = graph.Graphs().draw(attention())
    labels = drawn.labels()
    assert labels[drawn.ids["add_1"]] == "add_1, Add, Replicated, reads total, b"
    assert labels[drawn.ids["b"]] == "b, input, Replicated, FP16 [3072]"


def test_what_is_said_aloud_is_where_one_is_what_can_be_done_and_how_the_run_goes():
    state = st.select(st.apply(st.start(Schedule(attention())), Split("total")), ["total"])
    state = st.measured(st.proved(state, 1, "proved", "equal"), 1, Measured((10.0,), 1, 4, "cpu"))
    assert said(state, [0], None, "") == {
        "schedule": "split total: equal to the start, 10 µs", "moves": "1 legal move for total", "run": ""
    }  # fmt: skip
    busy = pages.Busy("split total: run 19 of 30, slowest rank 2, 0.3 s left", 19, 30, True)
    heard = said(st.undo(state), None, busy, "")
    assert heard == {"schedule": "start", "moves": "", "run": "Running, 50 %"}


def test_what_is_said_of_a_run_changes_a_few_times_and_not_with_every_repeat():
    heard = {said_of_run(pages.Busy(f"start: run {done} of 30, slowest rank 0", done, 30)) for done in range(31)}
    assert heard == {f"Running, {share} %" for share in (0, 25, 50, 75, 100)}
    waits = {said_of_run(pages.Busy(f"Waiting for 2 ranks: job pending (Resources), {s} s")) for s in range(60)}
    assert waits == {"Waiting for 2 ranks: job pending (Resources)"}


def test_in_the_history_one_row_is_a_stop_of_tab_and_every_row_says_all_in_words():
    state = st.apply(st.start(Schedule(attention())), Split("total"))
    state = st.measured(st.proved(state, 1, "proved", "equal"), 1, Measured((10.0,), 1, 4, "cpu"))
    rows = re.findall(r'role="treeitem"[^>]*', pages.history(state, [], {1: "MM-RS-AG-C"}))
    assert [re.search('tabindex="([^"]*)"', row)[1] for row in rows] == ["-1", "0"]
    assert [re.search('aria-label="([^"]*)"', row)[1] for row in rows] == [
        "start: not checked", "split total = MM-RS-AG-C: equal to the start, 10 µs"
    ]  # fmt: skip


# -- the timeline ------------------------------------------------------------------------------------------------------


def test_a_timeline_has_a_lane_for_each_rank_and_stream_in_the_colours_of_the_layouts():
    spans = [
        Span(0, 0, "layer", "MatMul", 0.0, 60.0, "Local"), Span(0, 1, "total_rs", "Launch", 60.0, 90.0, "Sliced(0)", 2),
        Span(1, 1, "total_rs", "wait", 0.0, 100.0, "Sliced(0)"), Span(1, 0, "<b>", "Launch", 99.9, 100.0),
    ]  # fmt: skip
    html = timeline_html(spans)
    lanes = html.split('class="cl-lane"')[1:]
    assert [re.search(r'cl-lane-name[^>]*>([^<]*)', lane)[1] for lane in lanes] == [
        "rank 0", "link", "rank 1", "link", ""
    ]  # fmt: skip
    assert 'class="cl-span local" style="left:0.00%;width:60.00%"' in lanes[0]
    assert (
        'class="cl-span sliced" style="left:60.00%;width:30.00%" title="total_rs chunk 2 (Launch): 30 µs"' in lanes[1]
    )
    assert 'class="cl-span wait"' in lanes[3]
    assert "<b>" not in html
    assert 'title="&lt;b&gt; (Launch): 0.1 µs"></i>' in lanes[2], (
        "too narrow for its name, and never narrower than seen"
    )
