"""The DOT text: stable golden files, what every box shows, and names that would break out of it."""

from __future__ import annotations

import re

import pytest
import viz_programs as programs

import coconet_lab as cl
from coconet_lab import ProgramError
from coconet_lab.ir.program import Fusion
from coconet_lab.viz.dot import label_text, program_dot
from coconet_lab.viz.palette import LIGHT
from coconet_lab.viz.plan import plan_dot, plan_scene
from coconet_lab.viz.scene import fused_form, program_scene

ALL = ["attention", "attention_sliced", "attention_fused", "adam", "pipeline", "transformer", "hostile"]


def stable(text: str) -> str:
    """Without line numbers of the helper file, so that editing it keeps the golden files."""
    return re.sub(r"viz_programs\.py:\d+", "viz_programs.py:LINE", text)


@pytest.mark.parametrize("name", ALL)
def test_dot_text_is_the_golden_one(name, golden):
    golden(stable(program_dot(getattr(programs, name)())), suffix=".dot")


def test_the_text_is_the_same_each_time():
    assert program_dot(programs.adam()) == program_dot(programs.adam())


def box(text: str, box_id: str) -> str:
    return next(line for line in text.splitlines() if line.strip().startswith(f"{box_id} ["))


def test_a_collective_has_its_sign_and_a_wide_border_and_others_do_not():
    program = programs.attention()
    text, ids = program_dot(program), program_scene(program).ids
    assert "⇄ AllReduce" in box(text, ids["total"])
    assert "penwidth=2.0" in box(text, ids["total"])
    assert 'class="op replicated comm"' in box(text, ids["total"])
    assert "penwidth=0.9" in box(text, ids["drop"])
    assert "⇄" not in box(text, ids["drop"])


def test_the_type_is_printed_where_it_is_new_or_everywhere():
    program = programs.transformer(1)
    ids = program_scene(program).ids
    short, full = program_dot(program), program_dot(program, types="all")
    for name, shown in {"block0.mlp.hidden": True, "block0.mlp.relu": False, "x": True}.items():
        assert ("FP16 [" in box(short, ids[name]).partition("label=")[2]) is shown
        assert "FP16 [" in box(full, ids[name]).partition("label=")[2]


def test_the_tooltip_has_the_full_type_the_bytes_a_rank_and_the_line_of_the_user():
    program = programs.attention()
    line = box(program_dot(program), program_scene(program).ids["layer"])
    assert "layer = MatMul(x, w)\\nFP16[8, 1024, 3072] Local, 4 ranks\\n48 MiB a rank\\nviz_programs.py:" in line


def test_highlight_and_selection_have_outlines_of_their_own():
    program = programs.attention()
    text = program_dot(program, highlight=frozenset({"drop"}), selected=frozenset({"total"}))
    ids = program_scene(program).ids
    assert f'color="{LIGHT.changed}", penwidth=2.6' in box(text, ids["drop"])
    assert 'class="op replicated changed"' in box(text, ids["drop"])
    assert f'color="{LIGHT.selected}", penwidth=3.0' in box(text, ids["total"])


def test_an_unknown_name_to_highlight_is_refused_with_a_close_one():
    with pytest.raises(ProgramError, match="'totl'") as refused:
        program_dot(programs.attention(), highlight=frozenset({"totl"}))
    assert "'total'" in refused.value.hint


def test_the_implicit_seed_is_hidden_and_a_seed_of_the_user_is_not():
    assert "seed" not in program_scene(programs.attention()).ids
    seed = cl.scalar("seed", cl.INT64)
    x = cl.tensor("x", cl.FP32, (8,), cl.Replicated)
    program = cl.program("p", inputs=[x, seed], outputs=[cl.dropout(x, 0.5) * cl.cast(seed, cl.FP32)], ranks=2)
    assert "seed" in program_scene(program).ids


def test_the_form_of_a_fused_group_follows_from_its_members():
    fused = programs.attention_fused()
    assert fused_form(fused, fused.fusions[0]) == "FusedAllReduce, one kernel"
    sent = programs.pipeline()
    assert fused_form(sent, sent.fusions[0]) == "FusedSend, one kernel"
    plain = programs.attention()
    assert fused_form(plain, Fusion("f", ("total", "add_1"))) == "one-shot FusedAllReduce, one kernel"
    assert fused_form(plain, Fusion("f", ("add_1", "drop"))) == "one kernel"


def test_an_overlap_across_process_groups_is_drawn_in_each_and_members_lie_in_one_group():
    scene = program_scene(programs.pipeline())
    groups = list(scene.root.inner.values())
    assert [group.title for group in groups] == ["group 0", "group 1"]
    assert [[inner.form for inner in group.inner.values()] for group in groups] == [["overlap"], ["overlap"]]
    kernel = next(iter(next(iter(groups[0].inner.values())).inner.values()))
    assert [b.names[0] for b in kernel.boxes] == ["add_1", "drop", "out", "sent_part"]


def test_no_name_of_a_user_is_an_identifier():
    text = program_dot(programs.hostile())
    identifiers = re.findall(r"^\s*(?:subgraph )?(\S+) (?:\[|\{|->)", text, flags=re.MULTILINE)
    assert identifiers
    assert all(re.fullmatch(r"(graph|node|edge|digraph|op\d+|cluster_\w+)", name) for name in identifiers), identifiers
    assert "<script" not in text


def test_a_label_shows_backslashes_entities_and_unprintable_characters_as_they_were_written():
    assert label_text("\\N") == "\\\\N"
    assert label_text("&amp;") == "&amp;amp;"
    assert label_text("a\nb\x00\u202e") == "a\\\\nb\\\\x00\\\\u202e"


def test_a_plan_is_drawn_by_stream_in_issue_order_with_the_bytes_it_sends():
    schedule = cl.Schedule(programs.attention()).split("total").reorder("total", past="out")
    plan = schedule.fuse("total_rs", "out", name="fused").overlap("layer", "fused").plan()
    scene = plan_scene(plan)
    assert [stream.title for stream in scene.root.inner.values()] == ["stream 0", "stream 1"]
    assert len(scene.boxes()) == len(plan.entries)
    for at, entry in enumerate(plan.entries):
        assert {(f"entry{other}", f"entry{at}") for other in entry.after} <= set(scene.edges)
    first = next(box for box in scene.boxes() if "fused" in box.title)
    assert "sends 18 MiB" in first.note
    assert first.is_collective
    assert "chunk 1 of 4" in plan_dot(plan)
