"""Folding: 500 operations in at most 40 boxes, nothing lost, and never what a person looks at."""

from __future__ import annotations

import pytest
import viz_programs as programs

import coconet_lab as cl
from coconet_lab.viz.fold import fold_program
from coconet_lab.viz.scene import program_scene


@pytest.fixture(scope="module")
def large():
    return programs.transformer()


def shown_in(scene) -> list[str]:
    return [name for box in scene.boxes() for name in box.names]


def test_a_large_program_fits_and_every_operation_is_in_one_box(large):
    scene = program_scene(large)
    assert len(large) > 500
    assert len(scene.boxes()) <= 40
    names = shown_in(scene)
    assert len(names) == len(set(names))
    assert set(names) == set(large.ops) - {"seed"} == set(scene.ids)


def test_equal_neighbouring_scopes_merge_and_say_what_they_hold(large):
    notes = {box.title: box.note for box in program_scene(large).boxes() if box.shape == "fold"}
    assert notes["block0 … block26"] == "27 equal blocks, 351 ops, 135 inputs, 54 ⇄ AllReduce"


def test_what_is_selected_changed_or_an_output_never_folds(large):
    keep = frozenset({"block9.attn.total", "block13.mlp.relu"})
    scene = program_scene(large, highlight=frozenset({"block9.attn.total"}), selected=frozenset({"block13.mlp.relu"}))
    alone = {box.names[0] for box in scene.boxes() if box.shape != "fold"}
    assert keep | set(large.outputs) <= alone
    assert len(scene.boxes()) <= 40


def test_neighbours_of_the_selection_do_not_fold(large):
    scene = program_scene(large, selected=frozenset({"block9.attn.layer"}))
    alone = {box.names[0] for box in scene.boxes() if box.shape != "fold"}
    assert {"block9.attn.slice", "block9.attn.w", "block9.attn.layer", "block9.attn.total"} <= alone


def test_where_most_has_changed_the_changed_fold_too_and_their_box_is_lit(large):
    changed = frozenset(name for name in large.ops if ".mlp." in name)
    scene = program_scene(large, highlight=changed)
    assert len(scene.boxes()) <= 40
    assert [box.is_changed for box in scene.boxes() if box.title == "block0 … block26"] == [True]


def test_an_opened_scope_stays_open_between_its_folded_neighbours(large):
    scene = program_scene(large, opened=frozenset({"block9"}))
    titles = [box.title for box in scene.boxes() if box.shape == "fold"]
    assert "block0 … block8" in titles
    assert "block10 … block26" in titles
    assert any(outline.title == "block9" for outline in scene.root.inner.values())
    inside = next(outline for outline in scene.root.inner.values() if outline.title == "block9")
    assert len(inside.boxes) == 18
    assert {box.title for box in inside.boxes} >= {"attn.total", "mlp.out"}


def test_a_small_program_is_not_folded():
    program = programs.attention()
    assert fold_program(program, list(program.ops)) == ()


def test_scopes_that_differ_do_not_merge():
    x = cl.tensor("x", cl.FP32, (8,), cl.Replicated)
    for block, power in enumerate((2.0, 2.0, 3.0, 2.0)):
        with cl.scope(f"b{block}"):
            for _ in range(6):
                x = x * power
    program = cl.program("p", outputs=[x], ranks=2)
    folds = fold_program(program, list(program.ops), keep=frozenset({"x"}), limit=8)
    assert [fold.title for fold in folds] == ["b0 … b1", "b2", "b3"]


def test_without_scopes_pointwise_chains_fold_and_forks_do_not():
    x = cl.tensor("x", cl.FP32, (8,), cl.Local)
    total = cl.all_reduce(x, name="total")
    for _ in range(30):
        total = total * 0.5
    fork = cl.add(total, total, name="fork")
    left, right = fork + 1, fork + 2
    for _ in range(10):
        left = left * 2
    program = cl.program("p", outputs=[cl.add(left, right, name="out")], ranks=2)
    scene = program_scene(program)
    assert len(scene.boxes()) <= 40
    assert [(box.title, box.note) for box in scene.boxes() if box.shape == "fold"] == [
        ("mul_1 … fork", "31 pointwise ops"),
        ("add_1 … mul_40", "11 pointwise ops"),
    ]


def test_what_neither_scopes_nor_chains_fold_is_cut_into_stretches_without_an_edge_backwards():
    names = [cl.tensor(f"t{k}", cl.FP32, (8,), cl.Local) for k in range(90)]
    sums = [cl.all_reduce(t, name=f"sum{k}") for k, t in enumerate(names)]
    out = sums[0]
    for other in sums[1:]:
        out = out + other
    program = cl.program("p", outputs=[out], ranks=2)
    scene = program_scene(program, limit=20)
    assert len(scene.boxes()) <= 20
    assert set(shown_in(scene)) == set(program.ops)


def test_an_odd_dotted_name_is_no_scope():
    x = cl.tensor("x", cl.FP32, (8,), cl.Replicated)
    for k in range(50):
        x = cl.mul(x, 2, name=f".odd..{k}.")
    scene = program_scene(cl.program("p", outputs=[x], ranks=2))
    assert len(scene.boxes()) <= 40
