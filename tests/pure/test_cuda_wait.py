"""Ranks that die or do not come while others are in a collective of NCCL's: each way ends, and says what it was."""

from __future__ import annotations

import shutil
import threading
import types

import cupy_on_host
import nccl_on_host
import numpy as np
import pytest

import coconet_lab as cl
import coconet_lab.workloads as workloads
from coconet_lab.errors import ClusterError, RankError
from coconet_lab.ir.exact import integer_inputs
from coconet_lab.ir.inputs import input_block, proof_inputs
from coconet_lab.kernels.lower import lower
from coconet_lab.run import cuda_nccl, cuda_wait
from coconet_lab.run.cuda_engine import CudaEngine
from coconet_lab.run.cuda_tuning import Tuning

World = cupy_on_host.World
TUNING = Tuning(ctas=2, unroll=2, threads=64)
LATE = r"rank 0 waited 0\.\d+ s for rank 1 in 'total', step 0"

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++, which is not installed")


@pytest.fixture(autouse=True)
def cupy(monkeypatch, pytestconfig):
    monkeypatch.setattr(cuda_wait, "LOOK_S", 0.02)
    monkeypatch.setattr(cuda_wait, "GRACE_S", 0.05)
    monkeypatch.setattr(cuda_wait, "SLACK_S", 0.05)
    return cupy_on_host.installed(monkeypatch, pytestconfig)


@pytest.fixture
def nccl(cupy):
    return cupy.cuda.nccl


def total(ranks=2):
    g = cl.tensor("g", cl.FP32, (6,), cl.Local)
    return cl.program("sum", outputs=[cl.all_reduce(g, name="total")], ranks=ranks)


def engine_of(world, program=None, deadline_s=0.1, **options):
    engine = CudaEngine(lower(program or total(world.size)), world, deadline_s=deadline_s, tuning=TUNING, **options)
    if program is None:
        engine.load({"g": np.full(6, world.rank + 1, np.float32)})
    return engine


def on_rank_0(action, ranks=2):
    """What `action` returns on rank 0, while the others have made their engines and then do nothing."""

    def work(world):
        engine = engine_of(world)
        world.barrier()
        return action(engine) if world.rank == 0 else None

    return World.run(ranks, work, deadline_s=10.0)[0]


def failure(engine, match=LATE, **options):
    with pytest.raises(RankError, match=match) as caught:
        engine.run(**options)
    return caught.value


HOW = {
    "call by call, in a call that returns": {"hangs": {0}},
    "in a call that does not return": {"blocks": {0}},
}


@pytest.mark.parametrize("trace", [False, True], ids=["plain", "traced"])
@pytest.mark.parametrize("how", HOW)
def test_a_collective_that_never_ends_is_an_error_at_the_deadline_and_is_aborted(how, trace, nccl):
    def act(engine):
        vars(nccl).update(HOW[how])
        error = failure(engine, trace=trace)
        assert str(error).splitlines()[1:] == [
            "  rule: every rank enters the same collectives in the same order",
            "  in:   plan of program 'sum' on rank 0",
            "  try:  a longer deadline_s, or plan_dot(plan) to see what the ranks wait for; then a new engine",
        ]

    on_rank_0(act)
    assert nccl.aborted == [0]


def test_a_graph_that_never_ends_is_an_error_at_the_deadline_and_is_let_go(nccl):
    def act(engine):
        engine.run()
        engine.run()
        assert engine._graph is not None
        nccl.hangs = {0}
        failure(engine)
        assert engine._graph is None, "NCCL's abort waits for the graphs that use it"

    def work(world):
        engine = engine_of(world)
        if world.rank == 0:
            return act(engine)
        engine.run()
        engine.run()
        return None

    World.run(2, work)
    assert nccl.aborted == [0]


def test_after_a_failure_runs_are_refused_and_close_waits_for_nobody(cupy, nccl):
    runtime, closed, freed = cupy.cuda.runtime, [], []
    runtime.ipcCloseMemHandle, runtime.free = closed.append, freed.append

    def act(engine):
        nccl.hangs = {0}
        failure(engine)
        arena = engine.memory.arena
        mine, theirs = arena.addresses
        values = {"g": np.ones(6, np.float32)}
        for again in (engine.run, engine.enqueue, engine.wait, engine.reset_state, engine.poison,
                      lambda: engine.run(trace=True), lambda: engine.read("total"), lambda: engine.load(values),
                      lambda: engine.set_scalars({}), lambda: engine.retune(TUNING)):  # fmt: skip
            with pytest.raises(RankError, match=rf"this engine runs no more, since {LATE}"):
                again()
        engine.close()  # a barrier would wait for rank 1, and fail
        engine.close()
        assert closed == [theirs]
        assert freed
        assert mine not in freed

    on_rank_0(act)


def test_memory_stays_where_it_is_while_the_gpu_still_works_on_it(cupy, nccl, monkeypatch):
    freed = []
    cupy.cuda.runtime.free = freed.append
    nccl.released = threading.Event()

    def act(engine):
        nccl.hangs = {0}
        error = failure(engine)
        assert error.where.endswith("NCCL's abort did not return in 0.05 s: end this process")
        engine.close()
        assert not freed
        nccl.released.set()

    for user in (cuda_nccl, cuda_wait):
        monkeypatch.setattr(user, "ABORT_S", 0.05)
    on_rank_0(act)


def test_every_communicator_of_a_rank_is_aborted_at_once_since_each_may_wait_for_the_other(nccl, monkeypatch):
    workload = workloads.pipeline(2, 4, 32, ranks=4, groups=2)
    program = workload.schedules["AR-C-P2P-AG"].program
    inputs = proof_inputs(workload.program, integer_inputs(workload.program))
    both = threading.Barrier(2, timeout=10)
    ended = nccl_on_host.Communicator.abort

    def abort(comm):
        both.wait()
        ended(comm)

    def work(world):
        engine = engine_of(world, program)
        mine = {n for n in program.inputs if program.types[n].group in (None, world.rank // 2)}
        engine.load({n: input_block(program, inputs, n, world.rank) for n in mine})
        world.barrier()
        if world.rank == 0:
            nccl.hangs = {0}
            failure(engine, r"rank 0 waited 0\.\d+ s for rank 1 in 'total', step 1")

    monkeypatch.setattr(nccl_on_host.Communicator, "abort", abort)
    World.run(4, work)
    assert nccl.aborted == [0, 0]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (nccl_on_host.NcclError("unhandled system error"), "unhandled system error"),
        (KeyError(8), "result 8"),
    ],
    ids=["of CuPy's words", "that CuPy has no words for"],
)
def test_an_error_that_nccl_reports_ends_the_wait_before_the_deadline(error, text, nccl):
    def work(world):
        engine = engine_of(world, deadline_s=60.0)
        world.barrier()
        if world.rank == 0:
            nccl.hangs, nccl.errors = {0}, {0: error}
            found = failure(engine, rf"NCCL reports '{text}' on rank 0 in 'total', step 0")
            assert found.rule == "communicators with an error finish nothing more"

    World.run(2, work)
    assert nccl.aborted == [0]


def test_an_error_in_a_call_of_nccl_s_is_told_in_the_same_words(nccl):
    def refuse(*call):
        raise nccl_on_host.NcclError("unhandled cuda error")

    def act(engine):
        engine._group.allReduce = refuse
        failure(engine, "NCCL reports 'unhandled cuda error' on rank 0 in 'total', step 0")

    on_rank_0(act)
    assert nccl.aborted == [0]


def test_nccl_that_only_says_to_wait_has_no_error(nccl):
    nccl.errors = {0: KeyError(cuda_nccl.IN_PROGRESS)}

    def act(engine):
        nccl.hangs = {0}
        failure(engine)

    on_rank_0(act)
    assert nccl.asked


def test_a_rank_that_died_is_named_before_the_deadline(nccl):
    def work(world):
        engine = engine_of(world, deadline_s=60.0)
        world.barrier()
        if world.rank == 0:
            nccl.hangs = {0}
            engine._communicators.deaths = types.SimpleNamespace(order=[1])
            error = failure(engine, "rank 1 died while rank 0 was in 'total', step 0")
            assert "cluster.log(1)" in error.hint

    World.run(2, work)
    assert nccl.aborted == [0]


def test_a_kernel_of_the_lab_that_waits_for_a_rank_ends_when_the_rank_is_given_up():
    workload = workloads.sgd(256, ranks=2, dtype="fp16")
    program = workload.schedules["fuse(RS-Opt-AG)"].program
    inputs = proof_inputs(workload.program, integer_inputs(workload.program))

    def work(world):
        engine = engine_of(world, program, deadline_s=60.0)
        scalars = {n for n in program.inputs if program.types[n].shape == ()}
        engine.load({n: inputs[n] if n in scalars else input_block(program, inputs, n, world.rank)
                     for n in program.inputs})  # fmt: skip
        if world.rank == 0:
            running = threading.Thread(target=engine.enqueue)
            running.start()
            engine._watch._give_up()
            running.join(10)
            assert not running.is_alive()
            places, peers = engine._watch._stuck(kernels=True)
            assert (places.split(",")[0], peers) == ("'fused'", [1])
        world.barrier()

    World.run(2, work)


def test_the_way_things_go_aborts_nothing_and_asks_nccl_at_most_once_a_wait(nccl, monkeypatch):
    monkeypatch.setattr(cuda_wait, "LOOK_S", 0.25)

    def work(world):
        engine = engine_of(world, deadline_s=20.0)
        for trace in (False, True, False, False):
            before = nccl.asked.count(world.rank)
            engine.run(trace=trace)
            assert nccl.asked.count(world.rank) <= before + 1
            assert engine.read("total").tolist() == [3.0] * 6
        engine.close()

    World.run(2, work)
    assert nccl.aborted == []


def test_every_run_that_was_started_has_the_deadline():
    def act(engine):
        assert engine._watch._limit_s(3) == pytest.approx(0.35)

    on_rank_0(act)


def test_an_operator_of_the_user_s_takes_as_long_as_it_likes():
    never = threading.Event()

    def slowly(x, ranges):
        never.wait(0.4)
        return x + 1

    g = cl.tensor("g", cl.FP32, (6,), cl.Local)
    slow = cl.operator(name="slow", meaning=slowly)
    program = cl.program("p", outputs=[slow(cl.all_reduce(g, name="total"), name="out")], ranks=2)

    def work(world):
        engine = engine_of(world, program)
        engine.load({"g": np.ones(6, np.float32)})
        for _ in range(2):
            engine.run()
            assert engine.read("out").tolist() == [3.0] * 6

    World.run(2, work)


def test_engines_that_share_the_communicators_stop_with_the_one_that_gave_a_rank_up(nccl):
    def act(engine):
        nccl.hangs = {0}
        failure(engine)

    def work(world):
        first, second = engine_of(world), engine_of(world)
        world.barrier()
        if world.rank == 0:
            act(first)
            with pytest.raises(RankError, match="another engine of these ranks gave a rank up"):
                second.run()

    World.run(2, work)


def test_ranks_that_all_gave_up_and_live_make_new_communicators_and_go_on(nccl):
    def work(world):
        engine = engine_of(world)
        world.barrier()
        nccl.hangs = {world.rank} | nccl.hangs
        other = 1 - world.rank
        failure(engine, rf"rank {world.rank} waited 0\.\d+ s for rank {other} in 'total', step 0")
        engine.close()
        world.barrier()
        nccl.hangs = set()
        engine = engine_of(world, deadline_s=20.0)
        engine.run()
        assert engine.read("total").tolist() == [3.0] * 6
        engine.close()

    World.run(2, work)
    assert sorted(nccl.aborted) == [0, 1]


def test_one_rank_that_gave_up_is_enough_for_new_communicators_on_all(nccl):
    def work(world):
        engine = engine_of(world, deadline_s=20.0)
        engine.run()
        world.barrier()
        if world.rank == 0:
            nccl.hangs = {0}
            engine.deadline_s = engine._watch.deadline_s = 0.1
            failure(engine)
            nccl.hangs = set()
        world.barrier()
        again = engine_of(world, deadline_s=20.0)
        again.run()
        assert again.read("total").tolist() == [3.0] * 6
        if world.rank == 1:
            with pytest.raises(RankError, match="another engine of these ranks"):
                engine.run()

    World.run(2, work)
    assert sorted(nccl.aborted) == [0, 1]


def test_an_error_of_the_driver_s_keeps_its_words_and_ends_the_engine(cupy):
    def work(world):
        engine = engine_of(world)
        engine.run()
        cupy.cuda.runtime.broken = 700
        with pytest.raises(ClusterError, match="plan of program 'sum' on rank 0 failed: an illegal memory access"):
            engine.run()
        with pytest.raises(RankError, match="runs no more, since plan of program 'sum' on rank 0 failed"):
            engine.run()
        engine.close()

    World.run(1, work)
