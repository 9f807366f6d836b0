"""Sentences of the contract (design §4a, §5a) that no other file holds."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import programs
import pytest
from engine_checks import check_on_threads, own_inputs

import coconet_lab as cl
from coconet_lab import FP32, FP64, Local, Replicated, Sliced
from coconet_lab.ir.oracle import run
from coconet_lab.ir.program import Fusion
from coconet_lab.ir.rng import random_words
from coconet_lab.ir.updates import is_effect
from coconet_lab.kernels import numba_compile
from coconet_lab.kernels.lower import lower
from coconet_lab.run.engine import Engine
from coconet_lab.run.provenance import provenance
from coconet_lab.run.results import assemble
from coconet_lab.run.world import ThreadWorld


def keyed(
    name="p", ranks=4, groups=1, w="w", dtype=FP32, shape=(8,), layout=Replicated, op=cl.add, by=1.0, more=(), **bounds
):
    value = cl.tensor(w, dtype, shape, layout, **bounds)
    out = op(value, by, name="out")
    outputs = [out, cl.mul(value, 3, name="second")]
    return cl.program(name, outputs=[outputs[i] for i in more] or outputs, ranks=ranks, groups=groups)


OTHERWISE = {
    "name": {"name": "q"},
    "ranks": {"ranks": 2},
    "groups": {"groups": 2},
    "input": {"w": "x"},
    "dtype": {"dtype": FP64},
    "shape": {"shape": (16,)},
    "layout": {"layout": Sliced(0)},
    "operation": {"op": cl.sub},
    "constant": {"by": 2.0},
    "low": {"low": 0.0},
    "high": {"high": 9.0},
    "outputs": {"more": (1, 0)},
    "fewer outputs": {"more": (0,)},
    "list": {"shape": [(8,)]},
    "tensors of a list": {"shape": [(3,), (5,)]},
    "order of a list's tensors": {"shape": [(5,), (3,)]},
    "bucket": {"shape": [(3,), (5,)], "bucket": 2},
    "group": {"groups": 2, "group": 1},
}


def test_keys_differ_wherever_programs_differ_in_more_than_made_up_names():
    keys = {what: keyed(**change).key() for what, change in {"as it was": {}, **OTHERWISE}.items()}
    same = [(a, b) for a in keys for b in keys if a < b and keys[a] == keys[b]]
    assert not same
    assert all(keyed(**change).key() == keys[what] for what, change in OTHERWISE.items())


def test_keys_differ_by_a_default_a_seed_a_reduction_a_root_and_an_expression():
    x = cl.tensor("x", FP32, (8,), Local)
    made = [
        cl.all_reduce(x, "max", name="y"),
        cl.all_reduce(x, "min", name="y"),
        cl.reduce(x, root=0, name="y"),
        cl.reduce(x, root=1, name="y"),
        cl.dropout(x, 0.1, name="y"),
        cl.dropout(x, 0.2, name="y"),
        *(cl.mul(x, cl.scalar("s", FP32, default=default), name="y") for default in (None, 1.0, 2.0)),
        *(cl.operator("f", meaning=_same, expression=text)(x, name="y") for text in ("{0}", "-{0}")),
    ]
    assert len({cl.program("p", outputs=[y], ranks=2).key() for y in made}) == len(made)


def _same(a, *, ranges):
    return a


def vector(name, layout=Replicated, elements=8, **more):
    return cl.tensor(name, FP32, (elements,), layout, **more)


def test_updates_and_sends_are_effects_and_what_only_computes_is_none():
    w1 = cl.update(vector("w"), vector("v"), name="w1")
    sent = cl.send(cl.mul(w1, 2, name="twice"), to=cl.GROUP + 1, name="sent")
    p = cl.program("p", outputs=[cl.add(sent, 1, name="out")], ranks=4, groups=2)
    assert [name for name in p if is_effect(p, name)] == ["w1", "sent"]


def test_groups_share_the_namespace_of_values():
    p = programs.self_attention()
    with pytest.raises(cl.ProgramError, match="two things are called 'out'"):
        p.edit(fusions=(Fusion("out", ("add_1", "drop")),))
    s = cl.Schedule(p).fuse("add_1", "out", name="total_rs").split("total")
    assert s.program.fusions[0].name == "total_rs"
    assert list(s["total"].op.sources) == ["total_rs_2"]


@pytest.mark.parametrize(("into", "made"), [("rs_ag", "total_rs"), ("reduce_broadcast", "total_reduce")])
def test_made_up_names_are_x_rs_x_reduce_and_x_part_and_count_from_2_where_taken(into, made):
    for taken, name in (("other", made), (made, made + "_2")):
        total = cl.all_reduce(cl.mul(vector("g", Local), 2, name=taken), name="total")
        p = cl.program("p", outputs=[cl.add(total, 1, name="out")], ranks=2)
        assert name in cl.Schedule(p).split("total", into=into)
    total = cl.all_gather(cl.mul(vector("x", Sliced(0)), 2, name="out_part"), name="total")
    p = cl.program("p", outputs=[cl.add(total, 1, name="out")], ranks=2)
    assert "out_part_2" in cl.Schedule(p).reorder("total", past="out")


def test_the_stream_of_a_dropout_is_the_hash_of_its_first_name_whatever_it_is_called_later():
    s = cl.Schedule(programs.self_attention(outputs=("drop", "out"))).split("total").reorder("total", past="out")
    digest = hashlib.blake2b(b"drop", digest_size=8).digest()
    assert s.program.ops["drop_part"].stream == int.from_bytes(digest, "little")


def test_an_element_is_kept_where_its_word_is_the_threshold_and_dropped_one_above():
    """On the ranks and in the oracle: p·2³² rounds down, and the word itself is kept."""
    x = vector("x", Sliced(0), 6)
    stream = cl.program("p", outputs=[cl.dropout(x, 0.5, name="drop")], ranks=2).ops["drop"].stream
    words = random_words(0, stream, np.arange(6)).astype(object)
    for index, above, is_kept in ((0, 0.0, True), (1, 0.75, True), (4, 1.0, False), (5, 0.0, True)):
        p = cl.program("p", outputs=[cl.dropout(x, float((words[index] + above) / 2**32), name="drop")], ranks=2)
        given = {"x": np.ones(6, np.float32)}
        assert (run(p, given)["drop"][index] != 0) == is_kept
        check_on_threads(p, given, runs=1)


def test_a_reduce_leaves_poison_off_the_root_at_every_run_and_so_in_what_is_computed_of_it():
    g = vector("g", Local)
    out = cl.mul(cl.reduce(g, root=1, name="r"), 3, name="out")
    p = cl.program("p", outputs=[out], ranks=2)
    plan, given = lower(p), cl.random_inputs(p)

    def twice(world):
        engine = Engine(plan, world, deadline_s=20)
        engine.load(own_inputs(p, plan, given, world.rank))
        found = []
        for _ in range(2):  # nothing else poisons: what the run before left would show
            engine.memory.arrays[plan.slots["r"].buffer].fill(7)
            engine.run()
            found.append(engine.read("out").copy())
        world.barrier()
        engine.close()
        return found

    others, root = ThreadWorld.run(2, twice)
    assert np.isnan(others).all()
    np.testing.assert_allclose(root, [3 * given["g"].sum(axis=0)] * 2, rtol=1e-6)


def test_a_plan_is_in_program_order_where_nothing_else_orders_it():
    x = vector("x")
    named = [cl.mul(x, 1 + n, name=name) for n, name in enumerate("dbac")]
    p = cl.program("p", outputs=[cl.add(x, 1, name="z"), *named], ranks=2)
    assert [name for entry in lower(p).entries for name in entry.ops] == ["z", "d", "b", "a", "c"]


def test_arithmetic_of_scalars_rounds_once_to_their_dtype_and_knows_the_size_of_the_group():
    s = cl.scalar("s", cl.FP16, default=2049)  # in FP16 it is 2048
    each = cl.mul(s - 2047, cl.GROUP.size, name="each")
    x = cl.tensor("x", cl.FP16, (4,), Replicated)
    p = cl.program("p", outputs=[cl.mul(x, each, name="out"), each], ranks=6, groups=2)
    given = {"x": np.ones(4, np.float16)}
    found = check_on_threads(p, given)
    assert all(ranks["each"] == 3 for ranks in found)
    assert all((ranks["out"] == 3).all() for ranks in found[:3])


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_a_sliced_value_is_put_together_along_its_dim(dim):
    x = cl.tensor("x", FP32, (4, 6, 2), Sliced(dim))
    p = cl.program("p", outputs=[cl.copy(x, name="y")], ranks=2)
    whole = np.arange(48, dtype=np.float32).reshape(4, 6, 2)
    parts = [{"y": part} for part in np.split(whole, 2, axis=dim)]
    assert (assemble(p, "y", parts) == whole).all()


def test_provenance_keeps_command_seed_program_schedule_ranks_and_backend(monkeypatch):
    monkeypatch.setattr("sys.argv", ["measure.py", "--quick"])
    made = provenance(ranks=2, backend="cpu", seed=5, program="adam", schedule="AR-Opt")
    assert (made.command, made.seed, made.program, made.schedule) == ("measure.py --quick", 5, "adam", "AR-Opt")
    assert (made.ranks, made.backend) == (2, "cpu")


def test_a_step_infers_types_only_where_an_operands_type_changed():
    asked = []

    def same_type(kind, *, ranks):
        asked.append(kind.layout)
        return kind

    op = cl.operator("seen", meaning=_same, infer=same_type, expression="{0}")
    total = cl.all_reduce(vector("g", Local), name="total")
    apart, below = op(vector("x"), name="apart"), op(total, name="below")
    s = cl.Schedule(cl.program("p", outputs=[apart, below], ranks=2))
    asked.clear()
    s = s.split("total")
    assert asked == []
    s.reorder("total", past="below")
    assert set(asked) == {Sliced(0)}


def moved(program, gather, past):
    after = cl.Schedule(program).reorder(gather, past=past).program
    return {name: f"{op.kind}({', '.join(op.sources)})" for name, op in after.ops.items() if op.kind != "Input"}


def test_a_moved_gather_stays_where_it_is_an_output():
    total = cl.all_gather(vector("x", Sliced(0)), name="total")
    p = cl.program("p", outputs=[total, cl.add(total, 1, name="out")], ranks=2)
    assert moved(p, "total", "out") == {
        "total": "AllGather(x)", "out_part": "Add(x)", "out": "AllGather(out_part)"
    }  # fmt: skip


def test_a_moved_gather_stays_where_it_writes_in_place_and_the_state_with_it():
    w, v = vector("w"), vector("v", Sliced(0))
    w1 = cl.all_gather(cl.update(w, v, name="w1_part"), name="w1")
    p = cl.program("p", outputs=[cl.mul(w1, 2, name="out")], ranks=2)
    found = moved(p, "w1", "out")
    assert found["w1"] == "AllGather(w1_part)"
    assert found["out_part"] == "Mul(w1_part)"
    given = cl.random_inputs(p)
    assert (run(cl.Schedule(p).reorder("w1", past="out").program, given).state["w"] == given["v"]).all()


def test_a_local_slice_of_another_dim_stays():
    x, r = cl.tensor("x", FP32, (4, 4), Sliced(0)), cl.tensor("r", FP32, (4, 4), Replicated)
    a = cl.add(cl.all_gather(x, name="total"), r, name="a")
    p = cl.program("p", outputs=[cl.mul(cl.local_slice(a, 1, name="cut"), 2, name="out")], ranks=2)
    assert moved(p, "total", "a") == {
        "a_part": "Add(x, r)", "a": "AllGather(a_part)", "cut": "LocalSlice(a)", "out": "Mul(cut)"
    }  # fmt: skip


def test_a_split_send_goes_where_the_whole_one_went_and_is_gathered_there():
    sent = cl.send(cl.add(vector("x", group=2), 1, name="a"), to=cl.GROUP - 2, name="sent")
    p = cl.program("p", outputs=[cl.mul(sent, 2, name="out")], ranks=6, groups=3)
    s = cl.Schedule(p).split("sent")
    assert [s[name].type.group for name in ("a_part", "sent_part", "sent", "out")] == [2, 0, 0, 0]
    assert s.check().exact


def test_another_number_of_ranks_keeps_the_groups():
    p = cl.program("p", outputs=[cl.add(vector("x", Sliced(0)), 1, name="y")], ranks=4, groups=2)
    again = p.with_ranks(8)
    assert (again.ranks, again.groups, again["y"].local_shape) == (8, 2, (2,))
    assert p.with_ranks(8, groups=1)["y"].local_shape == (1,)


def test_programs_and_schedules_complete_the_names_of_values():
    p = programs.sgd()
    assert set(p) <= set(p._ipython_key_completions_())
    assert {"total_rs", *p} <= set(cl.Schedule(p).split("total")._ipython_key_completions_())


def test_a_bound_is_as_the_dtype_holds_it():
    x = cl.tensor("x", cl.FP16, (1,), Replicated, low=0.1, high=0.3)
    p = cl.program("p", outputs=[cl.add(x, 0, name="y")], ranks=1)
    for bound in (0.1, 0.3):
        assert run(p, {"x": np.array([bound], np.float16)})["y"] == np.float16(bound)
    for beyond in (np.nextafter(np.float16(0.1), np.float16(0)), np.nextafter(np.float16(0.3), np.float16(1)), np.nan):
        with pytest.raises(cl.InputError):
            run(p, {"x": np.array([beyond], np.float16)})


def test_legal_moves_fuse_a_region_with_the_send_that_reads_it():
    s = cl.Schedule(programs.pipeline()).split("total").reorder("total", past="sent")
    moves = [step.script() for step in s.legal_moves() if step.kind == "fuse"]
    assert moves == [
        'fuse("total_rs", "sent_part")',
        'fuse("add_1", "sent_part")',
        'fuse("total_rs", "out")',
        'fuse("add_1", "out")',
    ]
    assert "sent_part" in s.fuse("total_rs", "sent_part").program.fusions[0].members


def test_of_two_merged_groups_the_name_that_the_user_gave_is_kept():
    s = cl.Schedule(programs.self_attention())
    for schedule in (s.fuse("total").fuse("out", name="mine"), s.fuse("total", name="mine").fuse("out")):
        assert {f.name for f in schedule.program.fusions} == {"fused", "mine"}
        assert [f.name for f in schedule.fuse("fused", "mine").program.fusions] == ["mine"]


def test_dead_keeps_inputs_also_where_nobody_reads_them_any_more():
    p = cl.program("p", outputs=[cl.mul(vector("w"), 2, name="out")], ranks=2)
    r = cl.program("q", outputs=[cl.mul(vector("r"), 3, name="loose")], ranks=2)
    with_loose = p.edit({"r": r.ops["r"], **p.ops, "loose": r.ops["loose"]}, touched=["r", "loose"])
    after = cl.Schedule(with_loose).dead().program
    assert list(after) == ["r", "w", "out"]
    assert after.inputs == ("r", "w")


SHOWN = """
import programs
import coconet_lab as cl
for program, ends in ((programs.adam(), "p1"), (programs.pipeline(), "sent")):
    start = cl.Schedule(program)
    moved = start.split("total").reorder("total", past=ends)
    for s in (start, moved, moved.fuse("total_rs", moved.program.outputs[0] if ends == "p1" else "sent_part")):
        print(s.key(), s.program, s.script(), [step.script() for step in s.legal_moves()], s.plan())
        print(s.code("cpu"), s.code("cuda"), cl.draw(s).source, cl.draw(s)._repr_svg_())
"""


def test_keys_moves_plans_code_and_pictures_do_not_depend_on_the_process_that_makes_them():
    path = os.pathsep.join([str(Path(programs.__file__).parent), *sys.path])
    said = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        said.append(subprocess.run([sys.executable, "-c", SHOWN], env=environment, capture_output=True, check=True))
    assert said[0].stdout == said[1].stdout
    assert said[0].stdout.count(b"<svg") >= 6


@pytest.mark.parametrize(("target", "mark"), [("cpu", "#"), ("cuda", "//")])
def test_generated_code_says_which_line_of_the_users_made_what_each_kernel_computes(target, mark):
    total = cl.all_reduce(vector("g", Local), name="total")
    out = cl.mul(total, 2, name="o\nut")
    s = cl.Schedule(cl.program("p", outputs=[out], ranks=2)).split("total").reorder("total", past=out)
    lines = s.fuse("total_rs", out).code(target).splitlines()
    here = Path(__file__).name
    assert f"{mark} {here}:{total.op.site.line}: 'total_rs'" in lines
    assert f"{mark} {here}:{out.op.site.line}: 'o\\nut_part', 'o\\nut'" in lines
    compile("\n".join(lines), "kernels", "exec") if target == "cpu" else None


def test_machine_code_of_other_options_is_not_taken_from_the_cache(monkeypatch):
    """Compiled with contraction, a kernel would have other bits than the oracle, from the disk of whoever upgraded."""
    numba_compile._runtime_digest.cache_clear()
    before = numba_compile._runtime_digest()
    monkeypatch.setitem(numba_compile._OPTIONS, "fastmath", {"contract"})
    numba_compile._runtime_digest.cache_clear()
    after = numba_compile._runtime_digest()
    numba_compile._runtime_digest.cache_clear()
    assert before != after
