"""Legal moves: their order, that they are exactly the legal ones, that a search ends, and that values stay."""

import inspect
import random
from typing import ClassVar

import numpy as np
import programs
import pytest

import coconet_lab as cl
from coconet_lab import FP32, CoconetError, IllegalTransform, Local, Replicated
from coconet_lab.ir import oracle
from coconet_lab.ir.inputs import random_inputs
from coconet_lab.transforms.as_slice import AsSlice
from coconet_lab.transforms.base import Transform
from coconet_lab.transforms.dead import Dead
from coconet_lab.transforms.fuse import Fuse
from coconet_lab.transforms.moves import FAMILIES, candidates, legal_moves
from coconet_lab.transforms.overlap import Overlap
from coconet_lab.transforms.preview import Over
from coconet_lab.transforms.reorder import Reorder
from coconet_lab.transforms.split import Split

MAKERS = {
    "sgd": programs.sgd,
    "adam": programs.adam,
    "adam_fp32": lambda: programs.adam(mixed=False, shape=(8, 12)),
    "adam_list": lambda: programs.adam(shape=[(3, 5), (7,)]),
    "lamb": lambda: programs.lamb(shape=(8, 4)),
    "lamb_list": lambda: programs.lamb(shape=[(3, 5), (7,)]),
    "self_attention": lambda: programs.self_attention(outputs=("drop", "out")),
    "mlp": programs.mlp,
    "pipeline": programs.pipeline,
}


def scripts(program):
    return [move.script() for move in legal_moves(program)]


def test_moves_come_family_by_family_the_largest_first():
    assert scripts(programs.self_attention()) == [
        'split("total")',
        'fuse("total", "out")',
        'fuse("add_1", "out")',
        'overlap("layer", "total")',
    ]
    reordered = Reorder("total", ("p1",))(Split("total")(programs.adam()))
    assert scripts(reordered) == [
        'as_slice("p", "w", "m", "v")',
        'as_slice("w", "m", "v")',
        'as_slice("p")',
        'as_slice("w")',
        'as_slice("m")',
        'as_slice("v")',
        'fuse("total_rs", "m1", "v1", "w1", "p1")',
        'fuse("cast_1", "m1", "v1", "w1", "p1")',
        'fuse("total_rs", "p1_part")',
        'fuse("cast_1", "p1_part")',
    ]


def test_dead_is_a_move_once_something_is_unread():
    sliced = AsSlice(("m", "v", "w"))(Reorder("total", ("p1",))(Split("total")(programs.adam())))
    assert "dead()" in scripts(sliced)
    assert scripts(Dead()(sliced))[:2] == ['as_slice("p")', 'fuse("total_rs", "p1")']


def test_the_fused_group_and_the_matmul_that_feeds_it_are_one_move_away():
    program = Fuse(("total_rs", "out"))(Reorder("total", ("out",))(Split("total")(programs.self_attention())))
    assert scripts(program) == ['overlap("layer", "fused")']


def random_walk(maker, seed):
    """Programs met on a walk along legal moves until none is left, and the moves taken."""
    choose = random.Random(seed)
    met, taken = [MAKERS[maker]()], []
    while True:
        moves = legal_moves(met[-1])
        if not moves:
            return met, taken
        taken.append(choose.choice(moves))
        met.append(taken[-1](met[-1]))
        assert len(taken) < 25, f"a search that does not end: {taken}"


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("seed", range(3))
def test_every_walk_along_legal_moves_ends_and_keeps_the_values(maker, seed):
    met, _ = random_walk(maker, seed)
    inputs = random_inputs(met[0])
    wanted = oracle.run(met[0], inputs)
    for program in met[1:]:
        found = oracle.run(program, inputs)
        for name in wanted.outputs:
            close = np.allclose(
                np.asarray(found.outputs[name], np.float64), np.asarray(wanted.outputs[name], np.float64), 2e-2, 2e-2
            )
            assert close, name


@pytest.mark.parametrize("maker", MAKERS)
def test_a_candidate_is_a_legal_move_exactly_when_it_can_be_taken(maker):
    for program in random_walk(maker, 7)[0]:
        key, legal = program.key(), set(legal_moves(program))
        for step in candidates(program):
            if step in legal:
                assert step(program).key() != key
            else:
                with pytest.raises(IllegalTransform):
                    step(program)
        assert program.key() == key


@pytest.mark.parametrize("maker", MAKERS)
def test_any_step_on_any_names_is_taken_or_refused_in_words_and_never_crashes(maker):
    choose = random.Random(maker)
    for program in random_walk(maker, 11)[0]:
        names = [*program.ops, *program.fusion_named, "nothing"]
        for _ in range(25):
            step = any_step(choose, names)
            refusal = step.why_not(program)
            if refusal is None:
                assert isinstance(step(program).key(), str)
                continue
            assert refusal.found
            assert refusal.rule
            with pytest.raises(IllegalTransform) as error:
                step(program)
            assert error.value.found == refusal.found
            if refusal.way_out is not None:
                assert isinstance(refusal.way_out, Transform)


def any_step(choose, names):
    some = tuple(choose.sample(names, 2))
    return choose.choice(
        [
            Split(some[0], choose.choice([None, 0, 1]), choose.choice(["rs_ag", "reduce_broadcast"])),
            Reorder(some[0], some[1:]),
            AsSlice(some[:1], choose.choice([None, 0])),
            Dead(some[0]),
            Fuse(some),
            Fuse(some[:1], "mine"),
            Overlap(some),
        ]
    )


def test_steps_are_json_able():
    assert Split("total").to_json() == {"kind": "split", "target": "total", "dim": None, "into": "rs_ag"}
    assert Reorder("total", ("out",)).to_json() == {"kind": "reorder", "gather": "total", "past": ["out"]}
    assert Fuse(("a", "b"), "f").to_json() == {"kind": "fuse", "names": ["a", "b"], "name": "f"}
    assert Dead().to_json() == {"kind": "dead", "name": None}
    assert [family.kind for family in FAMILIES] == ["split", "reorder", "as_slice", "dead", "fuse", "overlap"]


def test_a_step_prints_as_its_call():
    assert str(Split("total")) == 'split("total")'


def test_an_error_that_only_the_new_program_shows_becomes_a_refusal():
    class Breaks(Dead):
        kind: ClassVar[str] = "breaks"

        def needs_trial(self, program, plan):
            return True

        def carry_out(self, program, plan):
            raise CoconetError("no", rule="a rule")

    sliced = AsSlice(("m", "v", "w"))(Reorder("total", ("p1",))(Split("total")(programs.adam())))
    assert Breaks().why_not(sliced).found == "cannot dead(): no"


def test_two_updates_that_wait_for_each_other_are_no_program():
    a, b = cl.tensor("a", FP32, (8,), Replicated), cl.tensor("b", FP32, (8,), Replicated)
    early, late = cl.mul(a, 2.0), cl.mul(b, 2.0)
    a1, b1 = cl.update(a, late + 1.0, name="a1"), cl.update(b, early + 1.0, name="b1")
    assert cl.program("swap", outputs=[a1, b1], ranks=2).order.position
    old_a, old_b = cl.mul(a, 2.0, name="old_a"), cl.mul(b, 2.0, name="old_b")
    x = cl.tensor("x", FP32, (8,), Replicated)
    new_a, new_b = cl.update(a, x, name="new_a"), cl.update(b, x, name="new_b")
    with pytest.raises(CoconetError, match="wait for each other"):
        cl.program("p", outputs=[cl.add(old_a, new_b, name="c"), cl.add(a, new_b), cl.add(b, new_a), old_b], ranks=2)


def test_every_family_says_what_it_does():
    for family in FAMILIES:
        assert inspect.getdoc(family)


def test_a_program_of_collectives_alone_can_only_be_split():
    g = cl.tensor("g", FP32, (8,), Local)
    assert scripts(cl.program("p", outputs=[cl.all_reduce(g, name="total")], ranks=2)) == ['split("total")']


def test_a_region_that_its_first_and_last_values_do_not_span_is_named_by_all_its_ends():
    w, x = cl.tensor("w", FP32, (8,), Replicated), cl.tensor("x", FP32, (8,), Replicated)
    a = cl.add(x, 1.0, name="a")
    w1 = cl.update(w, x, name="w1")
    program = cl.program("p", outputs=[cl.mul(a, w1, name="out")], ranks=2)
    assert scripts(program)[-1] == 'fuse("a", "w1", "out")'


def test_a_mapping_with_changes_iterates_over_old_and_new_names():
    both = Over({"b": 3, "c": 4}, {"a": 1, "b": 2})
    assert dict(both) == {"a": 1, "b": 3, "c": 4}
    assert len(both) == 3
