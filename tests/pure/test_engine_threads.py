"""The engine on threads as ranks: whole Plans against the oracle, state that stays, and every way to be wrong."""

from __future__ import annotations

import threading

import numpy as np
import programs
import pytest
from engine_checks import check_on_threads, own_inputs

import coconet_lab as cl
from coconet_lab.errors import CodegenError, InputError, ProgramError, RankError
from coconet_lab.ir import oracle
from coconet_lab.ir.inputs import random_inputs
from coconet_lab.kernels.lower import lower
from coconet_lab.run.engine import Engine
from coconet_lab.run.world import ThreadWorld

LIST = [(3, 5), (1030, 2), (7,), (1,)]


def fused_adam(ranks=2, elements=1001):
    program = programs.adam(elements, ranks)
    return (
        cl.Schedule(program).split("total").reorder("total", "p1").as_slice("m", "v", "w").dead().fuse("total_rs", "p1")
    )


def fused_attention():
    s = cl.Schedule(programs.self_attention(4, 8, 16, ranks=2)).split("total").reorder("total", "out")
    return s.fuse("total_rs", "out", name="fused")


def on_threads(program, work, deadline_s=20.0):
    """``work(engine, inputs)`` on every rank, with a loaded engine."""
    plan, inputs = lower(program), random_inputs(program)

    def run(world):
        engine = Engine(plan, world, deadline_s=deadline_s)
        engine.load(own_inputs(program, plan, inputs, world.rank))
        return work(engine, inputs)

    return ThreadWorld.run(program.ranks, run)


def test_fused_adam_on_an_odd_size_is_the_oracle_to_the_bit_on_three_ranks():
    check_on_threads(fused_adam(ranks=3).program)


def test_lamb_of_a_list_runs_in_two_phases_in_one_kernel():
    s = cl.Schedule(programs.lamb(ranks=2, shape=LIST)).fuse("G", "w1").split("total").reorder("total", "fused")
    s = s.as_slice("m", "v").dead().fuse("total_rs", "fused", "w1")
    assert [type(e).__name__ for e in lower(s.program).entries] == ["HostScalars", "Launch"]
    check_on_threads(s.program, tolerance=1e-5)


def test_attention_with_libraries_and_plain_collectives_and_fused_and_overlapped():
    s = fused_attention()
    for program in (programs.self_attention(4, 8, 16, ranks=2), s.program, s.overlap("layer", "fused").program):
        check_on_threads(program, tolerance=5e-3)


def test_a_pipeline_of_two_groups_sends_by_library_and_from_inside_a_kernel():
    program = programs.pipeline(4, 8, 16, ranks=4, groups=2)
    check_on_threads(program, tolerance=5e-3)
    s = cl.Schedule(program).split("total").reorder("total", "sent")
    check_on_threads(s.program, tolerance=5e-3)
    s = s.fuse("add_1", "sent_part", name="cp").overlap("total_rs", "cp", "sent")
    assert "Arrive" in [type(entry).__name__ for entry in lower(s.program).entries]
    check_on_threads(s.program, tolerance=5e-3)


def test_state_stays_from_run_to_run_and_a_reset_brings_the_start_back():
    program = fused_adam().program

    def work(engine, inputs):
        found = []
        for reset in (False, False, True):
            if reset:
                engine.reset_state()
            engine.run()
            found.append((engine.read("m"), engine.read("p1")))
        return found

    inputs = random_inputs(program)
    once = oracle.run(program, inputs)
    twice = oracle.run(program, {**inputs, **once.state})
    for rank, (first, second, again) in enumerate(on_threads(program, work)):
        assert (first[1] == once.outputs["p1"]).all()
        assert (second[1] == twice.outputs["p1"]).all()
        assert (again[1] == once.outputs["p1"]).all()
        block = slice(rank * 501, rank * 501 + 501)
        assert (second[0] == twice.state["m"][block]).all()


def test_new_scalars_need_no_new_kernel_and_are_computed_on_the_host():
    program = fused_adam().program

    def work(engine, inputs):
        kernels = dict(engine._kernels)
        engine.set_scalars({"t": 7.0, "lr": 0.5})
        engine.run()
        assert engine._kernels == kernels
        return engine.read("p1"), float(engine.read("lr"))

    expected = oracle.run(program, {**random_inputs(program), "t": 7.0, "lr": 0.5}).outputs["p1"]
    for found, lr in on_threads(program, work):
        assert (found == expected).all()
        assert lr == 0.5


def test_inputs_may_be_made_where_they_are_used():
    x = cl.tensor("x", cl.FP32, (4, 6), cl.Sliced(1))
    program = cl.program("double", outputs=[cl.mul(x, 2, name="y")], ranks=2)

    def work(world):
        engine = Engine(lower(program), world)
        engine.load(
            {"x": lambda rank, ranges: np.full([b - a for a, b in ranges], 10 * rank + ranges[1][0], np.float32)}
        )
        engine.run()
        return engine.read("y")

    first, second = ThreadWorld.run(2, work)
    assert first.shape == (4, 3)
    assert (first == 0).all()
    assert (second == 26).all()


def test_outputs_and_temporaries_are_poisoned_but_no_input():
    def work(engine, inputs):
        engine.run()
        engine.poison()
        return engine.read("out"), engine.read("b")

    for out, b in on_threads(fused_attention().program, work):
        assert np.isnan(out).all()
        assert not np.isnan(b).any()


def test_a_trace_has_one_span_an_entry_in_issue_order():
    program = fused_attention().overlap("layer", "fused").program

    def work(engine, inputs):
        assert engine.trace() == ()
        engine.run(trace=True)
        return engine.trace(), engine.plan

    for spans, plan in on_threads(program, work):
        assert [(s.name, s.index, s.stream) for s in spans] == [
            (e.name, i, e.stream) for i, e in enumerate(plan.entries)
        ]
        assert {s.kind for s in spans} == {"MatMul", "Launch"}
        assert [s.chunk for s in spans if s.kind == "MatMul"] == list(range(len(spans) // 2))
        times = [time for s in spans for time in (s.start_us, s.end_us)]
        assert times == sorted(times)
        assert times[0] >= 0


def test_a_peer_that_does_not_come_is_named_with_the_step():
    entered = threading.Event()

    def work(engine, inputs):
        if engine.place.rank == 0:
            entered.set()
            engine.run()
        assert entered.wait(10)

    with pytest.raises(RankError, match=r"rank 0 waited 0\.05 s for rank 1 in 'fused', step 1"):
        on_threads(fused_adam().program, work, deadline_s=0.05)


def test_a_send_that_nobody_receives_names_the_partner():
    s = cl.Schedule(programs.pipeline(4, 8, 16, ranks=4, groups=2)).split("total").reorder("total", "sent")
    program = s.fuse("add_1", "sent_part", name="cp").overlap("total_rs", "cp", "sent").program
    with pytest.raises(RankError, match=r"rank [01] waited 0\.05 s for rank [23] in 'cp'"):
        on_threads(program, lambda engine, inputs: engine.place.group == 0 and engine.run(), deadline_s=0.05)


def test_one_ranks_error_ends_all_and_is_the_one_that_is_raised():
    def work(world):
        if world.rank == 1:
            raise KeyError("mine")
        world.barrier()

    with pytest.raises(KeyError, match="mine"):
        ThreadWorld.run(3, work)
    with pytest.raises(RankError, match="1 of 2 ranks waited"):
        ThreadWorld.run(2, lambda world: world.rank or world.barrier(), deadline_s=0.05)


WRONG_INPUTS = {
    "unknown": (lambda given: given | {"nope": 1}, "'nope' is no input"),
    "missing": (lambda given: {k: v for k, v in given.items() if k != "g"}, "input 'g' is missing"),
    "shape": (lambda given: given | {"g": given["g"][1:]}, r"input 'g' is float16\[1000\] on rank 0"),
    "dtype": (lambda given: given | {"m": given["m"].astype(np.float64)}, "input 'm' is float64"),
}


@pytest.mark.parametrize("fault", WRONG_INPUTS)
def test_wrong_inputs_are_refused_before_anything_runs(fault):
    change, message = WRONG_INPUTS[fault]
    program = fused_adam(ranks=1).program
    plan, inputs = lower(program), random_inputs(program)

    def work(world):
        Engine(plan, world).load(change(own_inputs(program, plan, inputs, 0)))

    with pytest.raises(InputError, match=message):
        ThreadWorld.run(1, work)


def test_a_scalar_without_value_is_asked_for():
    x, a = cl.tensor("x", cl.FP32, (3,), cl.Replicated), cl.scalar("a", cl.FP32)
    plan = lower(cl.program("scale", outputs=[cl.mul(x, a, name="y")], ranks=1))

    def work(world):
        engine = Engine(plan, world)
        engine.load({"x": np.ones(3, np.float32)})
        with pytest.raises(InputError, match="scalar 'a' has no value"):
            engine.run()
        with pytest.raises(InputError, match="has no scalar 'b'"):
            engine.set_scalars({"b": 1})
        engine.set_scalars({"a": 3})
        engine.run()
        with pytest.raises(InputError, match="rank 0 holds no 'z'"):
            engine.read("z")
        return engine.read("y").tolist()

    assert ThreadWorld.run(1, work) == [[3, 3, 3]]


def test_another_number_of_ranks_or_another_backend_is_refused():
    plan = lower(fused_adam().program)
    with pytest.raises(InputError, match="is for 2 ranks, the world has 1"):
        ThreadWorld.run(1, lambda world: Engine(plan, world))
    with pytest.raises(CodegenError, match="no backend 'tpu'"):
        ThreadWorld.run(2, lambda world: Engine(plan, world, backend="tpu"))


def test_every_plain_collective_moves_what_the_oracle_says():
    x = cl.tensor("x", cl.FP16, (7,), cl.Local)
    y = cl.tensor("y", cl.BF16, (4, 6), cl.Local)
    z = cl.tensor("z", cl.INT32, (4, 6, 2), cl.Sliced(1))
    outputs = [
        cl.all_gather(cl.reduce_scatter(x, dim=0, name="part"), name="gathered"),
        cl.broadcast(cl.reduce(y, root=1, name="rooted"), root=1, name="spread"),
        cl.all_reduce(x, reduction="max", name="largest"),
        cl.all_to_all(z, 0, 1, name="turned"),
        cl.all_to_all(z, 2, 1, name="turned_inside"),
    ]
    check_on_threads(cl.program("collectives", outputs=outputs, ranks=2))


def test_products_convolutions_and_operators_of_the_user_run_as_libraries():
    a, b = cl.tensor("a", cl.INT64, (5, 4), cl.Replicated), cl.tensor("b", cl.INT64, (4, 6), cl.Sliced(1))
    x, w = cl.tensor("x", cl.FP32, (4, 3, 8, 7), cl.Sliced(0)), cl.tensor("w", cl.FP32, (5, 3, 3, 2), cl.Replicated)
    flip = cl.operator("flip", meaning=lambda v, ranges: v[..., ::-1].copy() + ranges[0][0])
    conv = cl.conv(x, w, stride=2, padding=1, name="conv")
    c, d = cl.cast(a, cl.INT32), cl.tensor("d", cl.INT32, (4, 0), cl.Replicated)
    products = [cl.matmul(a, b, name="ab"), cl.matmul(c, cl.cast(b, cl.INT32), name="cb"), cl.matmul(c, d, name="none")]
    program = cl.program("libraries", outputs=[*products, conv, flip(conv, name="flipped")], ranks=2)
    check_on_threads(program, tolerance=1e-5)


@pytest.mark.parametrize("dtype", [cl.FP16, cl.BF16, cl.FP32, cl.FP64], ids=str)
def test_products_by_chunks_of_rows_and_columns_are_those_of_whole_matrices(dtype):
    w = cl.tensor("w", dtype, (8, 12), cl.Sliced(0))
    for shape, cut in (((4, 6, 8), 0), ((3, 6, 8), 1), ((2, 2, 8), 2)):
        x = cl.tensor("x", dtype, shape, cl.Sliced(2))
        layer = cl.matmul(x, w, name="layer")
        program = cl.program("chunks", outputs=[cl.add(cl.all_reduce(layer, name="total"), 1, name="out")], ranks=2)
        rng = np.random.default_rng(0)
        inputs = {name: rng.integers(-4, 5, program.types[name].shape).astype(dtype.numpy) for name in ("x", "w")}
        s = cl.Schedule(program).fuse("total", "out", name="fused").overlap("layer", "fused")
        assert {entry.chunk.dim for entry in lower(s.program).entries} == {cut}
        check_on_threads(s.program, inputs)


def test_a_result_of_another_shape_than_the_operator_said_is_refused():
    x = cl.tensor("x", cl.FP32, (4,), cl.Replicated)
    wrong = cl.operator("wrong", meaning=lambda v, ranges: v[1:])
    program = cl.program("wrong", outputs=[wrong(x, name="y")], ranks=1)
    with pytest.raises(ProgramError, match=r"operator 'wrong' made float32\[3\] for 'y'"):
        on_threads(program, lambda engine, inputs: engine.run())
