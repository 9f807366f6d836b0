"""The explorer in a real JupyterLab: what a person sees, clicks and types, and what stays after faults."""

from __future__ import annotations

import json

import lab
import pytest
from lab import run_cell

ATTENTION = """import coconet_lab as cl
from coconet_lab import workloads
attention = workloads.self_attention().program
ex = cl.explore(attention)
ex"""
SMALL = """import coconet_lab as cl
from coconet_lab import workloads
small = workloads.self_attention(batch=4, sequence=32, hidden=64, ranks=2)
cluster = cl.Cluster(ranks=2, backend="cpu", deadline_s=60)
ex = cl.explore(small, cluster=cluster, repeats=20, history="tries.json")
ex"""


def test_five_clicks_lead_from_the_naive_program_to_the_overlapped_schedule(opened, page):
    ex = opened(ATTENTION)
    ex.picture("start_light", whole_page=True)
    heights = {ex.height()}
    ex.click_op("total")
    ex.see("Moves for total")
    ex.picture("total_light")
    ex.take(1, "split total")
    ex.see_op("total_rs")
    heights.add(ex.height())
    ex.take(1, "reorder total past out")
    ex.picture("reordered_light")
    ex.take(1, "fuse total_rs … out")
    heights.add(ex.height())
    ex.take(1, "overlap layer, fused")
    ex.see("ol(MM,fuse(RS-C-AG))", "history")
    ex.see("✓ equal to the start", "header")
    heights.add(ex.height())
    assert len(heights) == 1
    assert ex.height() <= 850
    ex.picture("overlapped_light")
    page.keyboard.press("Control+b")  # the side bar gives its width to the notebook: three columns

    page.wait_for_function("document.querySelector('.cl-explorer').clientWidth >= 1180")
    lab.set_dark(page, True)
    ex.act("tab compare")
    ex.see("reorder total past out", "drawer")
    ex.picture("final_dark", whole_page=True)
    lab.set_dark(page, False)
    ex.picture("final_wide_light")
    page.keyboard.press("Control+b")


def test_an_illegal_move_says_why_on_hover_and_on_focus_and_offers_the_way_out(opened, page):
    ex = opened(ATTENTION)
    ex.click_op("total")
    reason = ex.root.locator(".cl-reason", has_text="not an AllGather")
    rule = ex.root.locator(".cl-tip")
    reason.scroll_into_view_if_needed()
    assert not rule.is_visible()
    reason.hover()
    rule.wait_for(state="visible")
    assert "[paper §3.2]" in rule.inner_text()
    ex.picture("refusal_light", rest=False)
    page.mouse.move(2, 500)
    rule.wait_for(state="hidden")
    reason.focus()
    rule.wait_for(state="visible")
    assert reason.get_attribute("aria-disabled") == "true"
    ex.root.get_by_text("Split total first").click()
    ex.see_op("total_rs")


def test_keys_walk_the_graph_and_never_reach_the_notebook(opened, page):
    ex = opened(ATTENTION)
    cells = page.locator(".jp-Notebook .jp-Cell").count()
    ex.click_op("total")
    ex.see("Moves for total")
    for key in ("d", "d", "x", "z", "a", "b", "m", "Enter", "Shift+M"):
        page.keyboard.press(key)
    page.keyboard.press("1")  # takes the first move; in the notebook it would make a heading
    ex.see_op("total_rs")
    assert page.locator(".jp-Notebook .jp-Cell").count() == cells
    assert page.locator(".jp-Notebook .jp-MarkdownCell").count() == 0
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Space")
    ex.see("Moves for add_1")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Shift+Space")
    ex.see("Moves for add_1, total")
    page.keyboard.press("Escape")
    ex.see("All legal moves")
    page.keyboard.press("u")
    ex.root.locator(".cl-row.here", has_text="start").wait_for()
    assert not ex.is_there("total_rs")
    page.keyboard.press("y")
    ex.see_op("total_rs")
    page.keyboard.press("?")
    ex.root.locator(".cl-keys").wait_for(state="visible")
    page.keyboard.press("Escape")
    ex.root.locator(".cl-keys").wait_for(state="hidden")
    assert page.locator(".jp-Notebook .jp-Cell").count() == cells


def test_keys_stay_inside_after_a_click_between_the_buttons(opened, page):
    ex = opened(ATTENTION)
    cells = page.locator(".jp-Notebook .jp-Cell").count()
    for pane in ("strip", "history", "legend"):
        shown = ex.root.locator(f".cl-{pane}").bounding_box()
        page.mouse.click(shown["x"] + shown["width"] - 30, shown["y"] + shown["height"] - 4)
        for key in ("d", "d", "x", "z"):
            page.keyboard.press(key)
    page.keyboard.press("1")
    ex.see_op("total_rs")
    assert page.locator(".jp-Notebook .jp-Cell").count() == cells


def test_a_page_that_is_loaded_again_shows_the_same_explorer_and_it_answers(opened, page):
    ex = opened(ATTENTION)
    ex.take(1, "split total")
    page.keyboard.press("Control+s")
    page.wait_for_selector("#jp-main-dock-panel .lm-TabBar-tab.lm-mod-current:not(.jp-mod-dirty)", state="attached")
    page.on("dialog", lambda dialog: dialog.accept())
    page.reload()
    ex.see_op("total_rs")
    ex.take(1, "reorder total past out")
    ex.see_op("out_part")


def test_a_schedule_is_named_while_proofs_arrive_and_escape_gives_up(opened, page):
    ex = opened(ATTENTION)
    ex.take(1, "split total")
    name = ex.root.locator('input[data-key="name"]')
    name.click()
    page.keyboard.type("mine")
    page.evaluate("() => document.querySelector('[data-key=\"node 0\"]').click()")  # a redraw while one types
    ex.root.locator(".cl-row.here", has_text="start").wait_for()
    assert name.input_value() == "mine"
    page.keyboard.press("Enter")
    ex.see("mine", "history")
    name.click()
    page.keyboard.type("other")
    page.keyboard.press("Escape")
    ex.act("tab script")
    ex.see("cl.Schedule(self_attention)", "drawer")
    assert ex.root.locator(".cl-history", has_text="other").count() == 0


def test_the_focus_survives_every_redraw_and_the_page_does_not_jump(opened, page):
    ex = opened(ATTENTION)
    top = ex.root.bounding_box()["y"]
    ex.click_op("total")
    ex.see("Moves for total")
    box = ex.focused()
    assert box.startswith("op")
    ex.act("tab code")
    ex.see("def k_", "drawer")
    assert ex.focused() == "tab code"
    page.keyboard.press("ArrowRight")
    ex.see("not run yet", "drawer")
    assert ex.focused() == "tab run"
    ex.take(1, "split total")
    ex.see("equal to the start", "header")
    assert ex.focused() == "move 1"
    assert ex.root.bounding_box()["y"] == pytest.approx(top, abs=1)


def test_the_script_is_copied_and_rebuilds_the_schedule_also_where_the_clipboard_is_refused(opened, page):
    ex = opened(ATTENTION)
    ex.take(1, "split total")
    ex.act("tab script")
    ex.see('.split("total")', "drawer")
    page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('refused')); }")
    ex.act("copy script")
    ex.see("press Ctrl+C", "drawer")
    script = page.evaluate("window.getSelection().toString()")
    answer = run_cell(page, f"self_attention = attention\n{script}\nprint('same', s == ex.schedule)")
    assert "same True" in answer


def test_a_run_is_timed_cancelled_and_survives_a_dead_rank(opened, page, folder):
    ex = opened(SMALL)
    ex.act("run")
    ex.see("Starting 2 ranks", "header")
    ex.picture("busy_light")
    ex.root.locator(".cl-timed", has_text="start").wait_for()
    ex.root.locator(".cl-timeline").wait_for()
    ex.root.locator('select[data-key="goto"]').select_option("ol(MM,fuse(RS-C-AG))")
    ex.root.locator(".cl-row.here", has_text="ol(MM,fuse(RS-C-AG))").wait_for()
    ex.act("run")
    ex.root.locator(".cl-timed.here", has_text="ol(MM,fuse(RS-C-AG))").wait_for()
    ex.picture("run_light")
    assert "×" in ex.root.locator(".cl-strip").inner_text()
    run_cell(page, "ex._repeats = 200_000\nprint('many')")
    ex.act("run")
    ex.see("of 200000", "header")
    ex.act("cancel")
    ex.see("Cancelled after", "drawer")
    ex.act("run")
    ex.see("of 200000", "header")
    pid = int(run_cell(page, "import os, signal\nprint(cluster._session.worlds[1].pid)"))
    assert pid > 1
    run_cell(page, f"os.kill({pid}, signal.SIGKILL); print('gone')")
    ex.see("The cluster stopped: rank 1", "drawer")
    ex.picture("dead_light")
    run_cell(page, "ex._repeats = 5\nprint('few')")
    ex.root.get_by_text("Start again").click()
    ex.root.locator(".cl-timed.here", has_text="ol(MM,fuse(RS-C-AG))").wait_for()
    ex.root.get_by_text("Start again").wait_for(state="hidden")
    kept = json.loads((folder / "tries.json").read_text())
    assert [node["name"] for node in kept["nodes"]][-1] == "ol(MM,fuse(RS-C-AG))"
    ex.act("undo")
    ex.root.locator(".cl-row.here", has_text="fuse").wait_for()


def test_an_error_on_one_rank_reaches_the_panel_and_the_widget_stays_usable(opened, page):
    broken = """import coconet_lab as cl
import numpy as np

def fail(rank, ranges):
    if rank == 1:
        raise ZeroDivisionError("no <b>gradient</b> here")
    return np.ones(64, np.float32)

g = cl.tensor("g", cl.FP32, (64,), cl.Local)
total = cl.all_reduce(g, name="total")
program = cl.program("sum", inputs=[g], outputs=[cl.mul(total, 0.5, name="out")], ranks=2)
cluster = cl.Cluster(ranks=2, backend="cpu", deadline_s=60)
cl.explore(program, cluster=cluster, inputs={"g": fail})"""
    ex = opened(broken)
    ex.act("run")
    ex.see("raised ZeroDivisionError: no <b>gradient</b> here", "drawer")
    ex.root.get_by_text("traceback of rank 1").click()
    ex.picture("error_light")
    ex.click_op("total")
    ex.take(1, "split total")
    ex.see_op("total_rs")


def test_adam_is_explored_alike(opened):
    ex = opened("import coconet_lab as cl\nfrom coconet_lab import workloads\ncl.explore(workloads.adam(dtype='fp16'))")
    ex.click_op("total")
    ex.take(1, "split total")
    ex.take(1, "reorder total past p1")
    ex.see("As slice")
    ex.picture("adam_light")
    ex.root.locator('select[data-key="goto"]').select_option("fuse(RS-Opt-AG)")
    ex.root.locator(".cl-row.here", has_text="fuse(RS-Opt-AG)").wait_for()
    ex.click_op("total_rs")
    ex.act("tab code")
    ex.root.locator(".cl-line.marked").first.wait_for()
    ex.act("target cuda")
    ex.see("extern", "drawer")
    ex.picture("adam_code_light")


def test_a_program_of_500_operations_is_readable_and_answers_a_click_in_under_200_ms(opened, page):
    large = """import coconet_lab as cl
from coconet_lab import FP16, Replicated, Sliced
h = x = cl.tensor("x", FP16, (8, 1024, 3072), Replicated)
for number in range(63):
    with cl.scope(f"block{number}.attn"):
        w, b = cl.tensor("w", FP16, (3072, 3072), Sliced(0)), cl.tensor("b", FP16, (3072,), Replicated)
        total = cl.all_reduce(cl.matmul(cl.local_slice(h, 2, name="cut"), w, name="layer"), name="total")
        h = cl.add(cl.dropout(cl.add(total, b, name="biased"), 0.1, name="drop"), h, name="out")
ex = cl.explore(cl.program("gpt", outputs=[h], ranks=4))
ex"""
    ex = opened(large)
    page.keyboard.press("Escape")
    find = ex.root.locator('input[data-key="find"]')
    find.fill("block9.attn.total")
    find.press("Enter")
    ex.see("Moves for block9.attn.total")
    ex.see("Split")
    page.wait_for_function("document.activeElement.dataset.name === 'block9.attn.total'")
    letters = ex.root.locator("g[data-box]:focus text").first.bounding_box()["height"]
    assert letters > 11, "what was looked for can be read"
    ex.act("zoom fit")
    assert ex.root.locator("g[data-box]").count() <= 40
    ex.picture("large_light")
    waited = [answer_ms(page, ex, name) for name in ("attn.drop", "attn.total", "attn.drop", "attn.total")]
    assert sorted(waited)[1] < 200, waited
    fold = ex.root.locator("g[data-box].fold").first
    fold.dblclick()
    ex.root.locator(".cl-tools", has_text="block0").wait_for()


def answer_ms(page, ex, name: str) -> float:
    """Milliseconds from a click on an operation until the panel is about it."""
    box = ex.root.locator(f'g[data-box][aria-label^="{name}, "]').first.get_attribute("data-box")
    return float(page.evaluate("""(box) => new Promise((done) => {
        const root = document.querySelector('.cl-explorer');
        const before = root.dataset.n, start = performance.now();
        new MutationObserver((_, watcher) => {
            if (root.dataset.n === before) return;
            watcher.disconnect();
            done(performance.now() - start);
        }).observe(root, { attributes: true });
        root.querySelector(`g[data-box="${box}"]`).dispatchEvent(new MouseEvent('click', { bubbles: true }));
    })""", box))  # fmt: skip


def test_the_notebook_of_the_explorer_runs_and_its_static_pictures_are_hidden_while_it_lives(page, address):
    lab.open_notebook(page, address, "02_explorer.ipynb")
    lab.run_all(page)
    page.wait_for_selector("text=again.history >> nth=0")
    page.wait_for_selector('.jp-OutputArea-output:has-text("fuse(RS-C-AG)")', timeout=90_000)
    page.wait_for_function("document.querySelectorAll('.cl-explorer').length === 2", timeout=90_000)
    hidden = page.locator('[class^="cl-static-"]')
    hidden.nth(1).wait_for(state="attached")
    assert not any(hidden.nth(at).is_visible() for at in range(2))
    lab.end_kernels(address)
