"""The explorer in daily use: without a mouse, without eyes, with slow fingers, long names, a lost kernel, a twin."""

from __future__ import annotations

import json

import lab
import pytest

SMALL = """import coconet_lab as cl
from coconet_lab import workloads
small = workloads.self_attention(batch=4, sequence=32, hidden=64, ranks=2)
"""
LONG = """import coconet_lab as cl
x = cl.tensor("a very long name of an input " * 4, cl.FP32, (8,), cl.Local)
total = cl.all_reduce(x, name="total_gradient_of_the_last_layer_norm_of_block_seventeen_" * 2)
program = cl.program("a program of an exceedingly long name that fits no header at all " * 2,
                     outputs=[cl.add(total, total, name="<b>日本 out")], ranks=4)
cl.explore(program)"""
# Letters smaller than design says, and what is wider or higher than a place that cuts it off without an ellipsis.
FAULTS = """(smallest) => {
    const root = document.querySelector('.cl-explorer'), found = [];
    const walk = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) {
        const node = walk.currentNode, parent = node.parentElement, range = document.createRange();
        range.selectNodeContents(node);
        if (!node.textContent.trim() || parent.closest('style, title, .cl-live, .cl-canvas, [hidden]')) continue;
        if (!range.getBoundingClientRect().width) continue;
        const matrix = parent.closest('svg') ? parent.getScreenCTM() : { a: 1, b: 0 };
        const size = parseFloat(getComputedStyle(parent).fontSize) * Math.hypot(matrix.a, matrix.b);
        if (size < smallest) found.push(`${size.toFixed(1)} px: ${node.textContent.slice(0, 20)}`);
    }
    for (const node of root.querySelectorAll('.cl-grid *')) {
        const style = getComputedStyle(node);
        if (style.overflowX !== 'hidden' || node.closest('.cl-live, .cl-canvas, .cl-track, svg')) continue;
        const isWide = node.scrollWidth > node.clientWidth + 1 && style.textOverflow !== 'ellipsis';
        if (isWide || node.scrollHeight > node.clientHeight + 3) found.push(`cut: ${node.className}`);
    }
    const header = root.querySelector('.cl-header').getBoundingClientRect();
    for (const button of root.querySelectorAll('.cl-header button')) {
        const box = button.getBoundingClientRect();
        if (box.right > header.right || box.bottom > header.bottom) found.push(`outside: ${button.textContent}`);
    }
    return found;
}"""
FOCUS = (
    "() => [document.activeElement.dataset.key ?? document.activeElement.dataset.box ?? document.activeElement.tagName]"
)


# In one breath: between two questions a report of the run may have put another button in this one's place.
PLACE = """(what) => {
    const box = document.querySelector(what)?.getBoundingClientRect();
    return box && box.width ? {x: box.x, y: box.y} : null;
}"""


def test_a_slow_press_counts_although_the_progress_redraws_the_button(opened, page):
    ex = opened(SMALL + "cl.explore(small, repeats=200_000)")
    ex.act("run")
    ex.see("of 200000", "header")
    place = page.wait_for_function(PLACE, arg='[data-key="cancel"]').json_value()
    page.mouse.move(place["x"] + 8, place["y"] + 8)
    page.mouse.down()
    page.evaluate("""() => new Promise((done) => {  // held while several reports of the run arrive
        let left = 4;
        document.querySelector('.cl-explorer').parentElement.addEventListener('held', done);
        const wait = () => (left-- ? setTimeout(wait, 150) : done());
        wait();
    })""")
    page.mouse.up()
    ex.see("Cancelled after", "drawer")
    ex.see("kept", "drawer")
    assert ex.root.locator(".cl-drawer .cl-error").count() == 0, "a cancel is no error"
    ex.root.locator(".cl-header", has_text="Run on 2 ranks").wait_for()


def test_an_open_list_is_not_taken_away_by_what_arrives_meanwhile(opened, page):
    ex = opened(SMALL + "ex = cl.explore(small)\nex")
    choice = ex.root.locator('select[data-key="goto"]')
    place = choice.bounding_box()
    choice.evaluate("(node) => (node.mine = true)")
    page.mouse.click(place["x"] + 10, place["y"] + 10)
    page.evaluate("() => document.querySelector('[data-key=\"move 1\"]').click()")
    ex.see_op("total_rs")
    assert choice.evaluate("(node) => node.mine === true")
    assert ex.root.locator(".cl-row").count() == 1
    page.keyboard.press("Escape")
    ex.act("tab layout")
    ex.root.locator(".cl-row.here", has_text="split total").wait_for()
    assert choice.evaluate("(node) => node.mine === undefined")


def test_everything_is_reached_and_done_without_a_mouse(opened, page):
    ex = opened(SMALL + "ex = cl.explore(small)\nex.apply(ex.moves[0])\nex.select('total')\nex")
    ex.root.locator('[data-key="name"]').focus()
    seen = []
    while (at := page.evaluate(FOCUS)[0]) not in ("code text", "LI", "BODY") and len(seen) < 80:
        seen.append(at)
        outline = page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid", f"{at} does not show that it has the focus"
        page.keyboard.press("Tab")
    order = [at for at in seen if not at.startswith(("way", "never", "near", "choice"))]
    assert order[:7] == ["name", "undo", "redo", "check", "run", "keys", "zoom out"]
    assert order[9].startswith("op")
    assert order.index("all") < order.index("move 1") < order.index("goto") < order.index("node 1")
    assert order.index("node 1") < order.index("tab layout")
    assert any(at.startswith("near") for at in seen), "refused moves have the focus too"
    page.locator('[data-key="node 1"]').focus()
    page.keyboard.press("ArrowUp")
    assert page.evaluate(FOCUS) == ["node 0"]
    page.keyboard.press("Enter")
    ex.root.locator(".cl-row.here", has_text="start").wait_for()
    assert page.evaluate(FOCUS) == ["node 0"]
    page.keyboard.press("End")
    assert page.evaluate(FOCUS) == ["node 1"]
    page.keyboard.press("?")
    assert page.evaluate("() => document.activeElement.getAttribute('role')") == "dialog"
    page.keyboard.press("Escape")
    assert page.evaluate(FOCUS) == ["node 1"]


def test_a_screen_reader_hears_where_one_is_and_how_a_run_goes(opened, page):
    ex = opened(SMALL + "ex = cl.explore(small, repeats=5)\nex")
    told = ex.root.locator('[aria-live="polite"]')
    assert told.inner_text().split("\n")[::2] == ["start", "4 legal moves"], told.inner_text()
    page.evaluate("""() => {
        window.heard = [];
        new MutationObserver((all) => all.forEach((one) => window.heard.push(one.target.textContent)))
            .observe(document.querySelector('.cl-live'), { childList: true, subtree: true, characterData: true });
    }""")
    ex.click_op("total")
    ex.see("Moves for total")
    ex.take(1, "split total")
    ex.see("equal to the start", "header")
    ex.act("run")
    ex.root.locator(".cl-timed.here").wait_for()
    heard = page.evaluate("window.heard")
    for words in ("3 legal moves for total", "split total: equal to the start", "Starting 2 ranks"):
        assert words in heard, heard
    assert len(heard) < 25, "progress is not read out number by number"
    region = ex.root
    assert region.get_attribute("aria-label") == "schedule explorer of self_attention"
    assert ex.root.get_by_role("tabpanel", name="Run").count() == 1
    assert ex.root.get_by_role("option", name="layer, MatMul, Local, reads x, w").count() == 1
    assert ex.root.get_by_role("treeitem", name="split total: equal to the start").count() == 1


@pytest.mark.parametrize("width", [968, 1220, 700])
def test_long_names_leave_every_button_where_it_is_and_no_letter_too_small(opened, page, width):
    ex = opened(LONG)
    if width == 1220:
        page.keyboard.press("Control+b")
    elif width == 700:
        page.set_viewport_size({"width": 1130, "height": 1400})
    page.wait_for_function(f"Math.abs(document.querySelector('.cl-explorer').clientWidth - {width}) < 12")
    ex.root.locator("g[data-box]").nth(1).click()
    ex.see("Moves for")
    ex.act("move 1")
    ex.root.locator(".cl-row.here", has_text="split").wait_for()
    for tab in ("layout", "code", "run", "compare", "script"):
        ex.act(f"tab {tab}")
        ex.root.locator(f'[data-key="tab {tab}"][aria-selected="true"]').wait_for()
        assert page.evaluate(FAULTS, 10.9) == [], tab
    ex.picture(f"long_{width}")


def test_two_explorers_of_one_file_show_each_others_schedules_and_share_no_id(opened, page, folder):
    opened(SMALL + "cl.explore(small, history='twins.json')", "cl.explore(small, history='twins.json')")
    page.wait_for_function("document.querySelectorAll('.cl-explorer .cl-canvas svg').length === 2")
    one, two = lab.Explorer(page), lab.Explorer(page, 1)
    for ex in (one, two):
        ex.click_op("total")
        ex.see("Not possible here")
    ids = page.evaluate("() => [...document.querySelectorAll('.cl-rule')].map((rule) => rule.id)")
    assert len(ids) == len(set(ids)) > 2
    described = page.evaluate(
        "() => [...document.querySelectorAll('.cl-reason')].map((r) => r.getAttribute('aria-describedby'))"
    )
    assert described == ids
    one.take(1, "split total")
    one.see("equal to the start", "header")
    two.take(2, "fuse total … out")
    two.see("split total", "history")
    two.see("equal to the start", "header")
    kept = json.loads((folder / "twins.json").read_text())
    assert [(node["step"] or {}).get("kind") for node in kept["nodes"]] == [None, "fuse", "split"]
    assert kept["nodes"][2]["proof"] == "proved"


def test_after_a_restart_of_the_kernel_the_page_says_so_and_the_history_goes_on(opened, page):
    ex = opened(SMALL + "cl.explore(small, history='restarted.json')")
    ex.take(1, "split total")
    ex.see("equal to the start", "header")
    lab.restart_kernel(page)
    gone = ex.root.locator(".cl-gone")
    ex.root.hover()
    gone.wait_for()
    assert gone.inner_text() == "No kernel is behind this page: run its cell again, the history is in restarted.json."
    ex.picture("restarted_light")
    ex.act("move 1")  # answers nothing, breaks nothing
    lab.run_all(page)
    page.wait_for_selector(".cl-gone", state="hidden")
    ex = lab.Explorer(page)
    ex.root.locator(".cl-row.here", has_text="split total").wait_for()
    ex.take(1, "reorder total past out")
