"""The CUDA engine without a GPU: CuPy and NCCL over NumPy and threads, kernels on the CPU; every error it can name."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace

import cupy_on_host
import numpy as np
import pytest

import coconet_lab as cl
import coconet_lab.workloads as workloads
from coconet_lab.errors import ClusterError, CodegenError, InputError, RankError, ToolError
from coconet_lab.ir import oracle
from coconet_lab.ir.exact import integer_inputs, within_tolerance
from coconet_lab.ir.inputs import input_block, proof_inputs
from coconet_lab.ir.rounding import mismatch
from coconet_lab.ir.types import block_range
from coconet_lab.ir.updates import updated_inputs
from coconet_lab.kernels.lower import lower
from coconet_lab.kernels.plan import HostScalars, Launch
from coconet_lab.run import cuda_kernels
from coconet_lab.run.cuda_device import Gpu, explained, with_deadline
from coconet_lab.run.cuda_engine import CudaEngine
from coconet_lab.run.cuda_tuning import Tuning

World = cupy_on_host.World
TUNING = Tuning(ctas=2, unroll=2, threads=64, form="turns")

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++, which is not installed")


@pytest.fixture(autouse=True)
def cupy(monkeypatch, pytestconfig):
    return cupy_on_host.installed(monkeypatch, pytestconfig)


def held(program, name, rank):
    group = program.types[name].group
    return group is None or rank // program.group_ranks == group


def parts(program, inputs, rank):
    found = {}
    for name in program.inputs:
        if held(program, name, rank):
            is_scalar = program.types[name].shape == () and not program.types[name].pieces
            found[name] = inputs[name] if is_scalar else input_block(program, inputs, name, rank)
    return found


def made(plan, world, **options):
    only = all(isinstance(e, Launch | HostScalars) for e in plan.entries)
    return CudaEngine(plan, world, deadline_s=20.0, graph=only, **{"tuning": TUNING, **options})


def assert_equals_oracle(program, inputs, rank, engine):
    expected = oracle.run(program, inputs)
    loose = within_tolerance(expected, device=True)
    for name in (*engine.plan.outputs, *engine.plan.state):
        last = name if name in engine.plan.outputs else updated_inputs(program)[name]
        if held(program, last, rank):
            tolerance = 16 * program.types[last].dtype.eps if last in loose else 0.0
            assert mismatch(engine.read(name), expected.values[last][rank], tolerance) is None, name


LIST = [(5,), (1,), (0,), (1023,), (1024,), (1025,)]
CASES = {
    "adam fuse": (lambda: workloads.adam(1003, ranks=2, dtype="fp16"), "fuse(RS-Opt-AG)"),
    "adam rounds": (lambda: workloads.adam(16_384, ranks=2, dtype="fp16"), "fuse(RS-Opt-AG)"),
    "adam list": (lambda: workloads.adam([(5,), (64, 33), (3,)], ranks=2, dtype="fp16"), "fuse(RS-Opt-AG)"),
    "adam list all-reduced": (lambda: workloads.adam(LIST, ranks=2, dtype="fp16"), "AR-Opt"),
    "lamb list": (lambda: workloads.lamb(LIST, ranks=2, dtype="fp16"), "fuse(RS-Opt-AG)"),
    "sgd list naive": (lambda: workloads.sgd(LIST, ranks=2), "naive"),
    "adam libraries": (lambda: workloads.adam(1003, ranks=2), "RS-Opt-AG"),
    "lamb fuse": (lambda: workloads.lamb(512, ranks=2), "fuse(RS-Opt-AG)"),
    "attention": (lambda: workloads.self_attention(2, 4, 32, ranks=2), "MM-RS-C-AG"),
    "attention overlapped": (lambda: workloads.self_attention(2, 4, 32, ranks=2), "ol(MM,fuse(RS-C-AG))"),
    "pipeline": (lambda: workloads.pipeline(2, 4, 32, ranks=4, groups=2), "AR-C-P2P-AG"),
    "pipeline overlapped": (lambda: workloads.pipeline(2, 4, 32, ranks=4, groups=2), "ol(RS,fuse(C-P2P),AG)"),
}


FUSED = [name for name in CASES if "libraries" not in name and "naive" not in name and "MM-RS" not in CASES[name][1]]


@pytest.mark.parametrize(("case", "form"), [*((c, "turns") for c in CASES), *((c, "push") for c in FUSED)])
def test_a_plan_gives_the_oracle_s_values_run_traced_and_replayed(case, form):
    make, schedule = CASES[case]
    workload = make()
    program = workload.schedules[schedule].program
    plan, inputs = lower(program), proof_inputs(workload.program, integer_inputs(workload.program))

    def work(world):
        engine = made(plan, world, tuning=replace(TUNING, form=form))
        engine.load(parts(program, inputs, world.rank))
        for trace in (False, True, False, False):
            engine.reset_state()
            engine.poison()
            engine.run(trace=trace)
            assert_equals_oracle(program, inputs, world.rank, engine)
        engine.close()
        return [span.index for span in engine.trace()]

    for spans in World.run(plan.ranks, work):
        assert spans
        assert spans == sorted(spans)


def test_new_scalars_are_read_by_the_graph_that_is_there_and_state_stays_from_run_to_run():
    workload = workloads.adam(256, ranks=2, dtype="fp16")
    program = workload.schedules["fuse(RS-Opt-AG)"].program
    inputs = proof_inputs(workload.program, integer_inputs(workload.program))

    def work(world):
        engine = made(lower(program), world)
        engine.load(parts(program, inputs, world.rank))
        engine.run()
        graph, once = engine._graph, engine.read("w")
        engine.run()
        assert not np.array_equal(engine.read("w"), once)
        engine.set_scalars({"lr": 0.25, "t": 7.0})
        engine.reset_state()
        engine.run()
        assert engine._graph is graph
        assert_equals_oracle(program, inputs | {"lr": np.float32(0.25), "t": np.float32(7)}, world.rank, engine)
        engine.retune(Tuning(ctas=1, unroll=2, threads=64))
        engine.reset_state()
        engine.enqueue(times=1)
        engine.wait()
        assert_equals_oracle(program, inputs | {"lr": np.float32(0.25), "t": np.float32(7)}, world.rank, engine)

    World.run(2, work)


@pytest.mark.parametrize("kind", [cl.FP32, cl.BF16], ids=repr)
@pytest.mark.parametrize("call", ["all_reduce", "reduce_scatter"])
def test_maxima_across_ranks_keep_nan(call, kind):
    g = cl.tensor("g", kind, (5,), cl.Local)
    made_value = getattr(cl, call)(g, reduction="max", name="top")
    program = cl.program("top", outputs=[made_value], ranks=2)
    given = np.array([[1, np.nan, -3, 4, 5], [2, 0, -4, np.nan, 1]], np.float32).astype(kind.numpy)
    expected = np.maximum(given[0].astype(np.float32), given[1].astype(np.float32)).astype(kind.numpy)

    def work(world):
        engine = engine_of(program, world)
        engine.load({"g": given[world.rank]})
        for _ in range(2):
            engine.run()
            block = slice(*block_range(5, world.rank, 2)) if call == "reduce_scatter" else slice(None)
            assert mismatch(engine.read("top"), expected[block]) is None

    World.run(2, work)


def run_once(program, inputs):
    def work(world):
        engine = made(lower(program), world)
        engine.load(parts(program, inputs, world.rank))
        engine.poison()
        engine.run()
        assert_equals_oracle(program, inputs, world.rank, engine)
        for name in lower(program).inputs:
            if held(program, name, world.rank):
                arrays = engine.arrays(name)
                assert sum(array.size for array in arrays) == engine.read(name).size
                assert len(arrays) == 5, "one a tensor that has elements"

    World.run(program.ranks, work)


@pytest.mark.parametrize(("reduction", "kind"), [("+", cl.FP16), ("max", cl.FP16), ("max", cl.BF16)], ids=repr)
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_library_s_collectives_of_a_list_go_tensor_by_tensor(ranks, reduction, kind):
    g = cl.tensor("g", kind, LIST, cl.Local)
    outputs = [cl.all_reduce(g, reduction, name="a"), cl.reduce(g, root=0, reduction=reduction, name="r")]
    program = cl.program("p", outputs=[*outputs, cl.broadcast(g, root=ranks - 1, name="b")], ranks=ranks)
    run_once(program, proof_inputs(program, integer_inputs(program)))


def test_a_list_is_sent_by_the_library_tensor_by_tensor():
    x = cl.tensor("x", cl.FP32, LIST, cl.Local)
    program = cl.program("p", outputs=[cl.send(x, to=cl.GROUP + 1, name="y")], ranks=4, groups=2)
    run_once(program, proof_inputs(program, integer_inputs(program)))


def total(ranks=2, elements=6):
    g = cl.tensor("g", cl.FP32, (elements,), cl.Local)
    return cl.program("sum", outputs=[cl.all_reduce(g, name="total")], ranks=ranks)


def engine_of(program, world):
    return CudaEngine(lower(program), world, tuning=TUNING)


def test_no_gpu_and_too_few_are_errors_with_the_numbers(cupy):
    cupy.cuda.runtime.gpus = 1
    with pytest.raises(ToolError, match="1 GPU found, 2 needed"):
        World.run(2, lambda world: engine_of(total(), world))

    def none():
        raise cupy.cuda.runtime.CUDARuntimeError("no CUDA-capable device is detected")

    cupy.cuda.runtime.getDeviceCount = none
    with pytest.raises(ToolError, match="no GPU: no CUDA-capable device"):
        World.run(2, lambda world: engine_of(total(), world))


def test_gpus_that_cannot_reach_each_other_are_named(cupy):
    cupy.cuda.runtime.reachable = False
    with pytest.raises(ToolError, match=r"GPU \d cannot reach the memory of GPU \d"):
        World.run(2, lambda world: engine_of(total(), world))


def test_a_missing_cupy_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ToolError, match="CuPy cannot be imported"):
        World.run(1, lambda world: engine_of(total(1), world))


def test_memory_that_does_not_suffice_on_one_rank_is_an_error_on_all(cupy):
    runtime = cupy.cuda.runtime
    malloc = runtime.malloc

    def short(nbytes):
        error = runtime.CUDARuntimeError("out of memory")
        error.status = 2
        raise error

    def work(world):
        if world.rank == 1:
            runtime.malloc = short
        world.barrier()
        try:
            engine_of(total(), world)
        except (ToolError, ClusterError) as error:
            return error
        finally:
            runtime.malloc = malloc
        return None

    first, second = World.run(2, work)
    assert "out of GPU memory" in str(first)
    assert "out of GPU memory" in str(second)
    assert "1024 of 2048 MiB are free" in str(second)


def test_a_kernel_that_does_not_compile_on_one_rank_is_an_error_on_all(monkeypatch):
    def refuse(source, variant):
        raise CodegenError(f"the CUDA compiler refused the kernel of {source.kernel.name!r}")

    monkeypatch.setattr(cuda_kernels, "compile_kernel", refuse)
    g = cl.tensor("g", cl.FP32, (8,), cl.Local)
    program = cl.program("double", outputs=[cl.add(g, g, name="twice")], ranks=2)
    with pytest.raises(CodegenError, match="refused the kernel of 'twice'"):
        World.run(2, lambda world: engine_of(program, world))


def test_a_rank_that_does_not_run_is_named_with_the_step():
    workload = workloads.sgd(256, ranks=2, dtype="fp16")
    program = workload.schedules["fuse(RS-Opt-AG)"].program
    inputs = proof_inputs(workload.program, integer_inputs(workload.program))

    def work(world):
        engine = CudaEngine(lower(program), world, deadline_s=0.2, tuning=TUNING)
        engine.load(parts(program, inputs, world.rank))
        if world.rank == 0:
            with pytest.raises(RankError, match=r"rank 0 waited 0.2 s for rank 1 in 'fused', step \d"):
                engine.run()
        world.barrier()

    World.run(2, work)


def test_a_set_up_step_that_does_not_end_is_left_behind():
    import threading

    never = threading.Event()
    with pytest.raises(ClusterError, match=r"NCCL's set-up did not finish on GPU 3 in 0.05 s"):
        with_deadline(never.wait, "NCCL's set-up", Gpu(3, "host", "sm_90", 1), seconds=0.05)
    never.set()


def test_another_cuda_error_keeps_its_words():
    assert "invalid argument" in str(explained(RuntimeError("invalid argument"), "opening memory"))


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({}, "input 'g' is missing"),
        ({"g": np.zeros(6, np.float64)}, r"input 'g' is float64\[6\] on rank 0"),
        ({"g": np.zeros(6, np.float32), "h": 1}, "'h' is no input"),
    ],
)
def test_inputs_of_a_wrong_name_shape_or_dtype_are_refused(given, match):
    def work(world):
        with pytest.raises(InputError, match=match):
            engine_of(total(1), world).load(given)

    World.run(1, work)


def test_a_world_of_another_size_and_another_backend_are_refused():
    with pytest.raises(InputError, match="is for 2 ranks, the world has 1"):
        World.run(1, lambda world: engine_of(total(2), world))
    with pytest.raises(CodegenError, match="no backend 'cpu'"):
        World.run(1, lambda world: CudaEngine(lower(total(1)), world, "cpu"))


def test_ranks_that_are_threads_without_an_exchange_are_refused():
    from coconet_lab.run.world import ThreadWorld

    with pytest.raises(ClusterError, match="needs its ranks as processes"):
        ThreadWorld.run(2, lambda world: engine_of(total(), world))
