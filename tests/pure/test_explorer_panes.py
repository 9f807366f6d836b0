"""The explorer's panes: which moves they offer, in which words, at which costs; and that no name escapes into HTML."""

from __future__ import annotations

import re

import pytest
from explorer_programs import attention, large
from viz_programs import HOSTILE

import coconet_lab as cl
from coconet_lab import FP32, Local, workloads
from coconet_lab.schedule.schedule import Schedule
from coconet_lab.transforms.fuse import Fuse
from coconet_lab.transforms.split import Split
from coconet_lab.viz.explorer import costs, graph, pages
from coconet_lab.viz.explorer import state as st
from coconet_lab.viz.explorer.kernel_text import highlighted, kernel_of, kernel_texts
from coconet_lab.viz.explorer.moves_panel import cards, declined, for_selection
from coconet_lab.viz.explorer.paper import paper_schedules
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
