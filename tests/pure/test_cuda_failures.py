"""What may go wrong around GPUs, on all ranks or on one: every rank hears of it, nothing stays taken, nobody waits."""

from __future__ import annotations

import functools
import shutil
import threading
import types

import cuda_samples as samples
import cupy_on_host
import nccl_on_host
import numpy as np
import pytest

import coconet_lab as cl
import coconet_lab.workloads as workloads
from coconet_lab.errors import ClusterError, CoconetError, CodegenError, RankError, ToolError
from coconet_lab.ir.dtypes import FP16
from coconet_lab.ir.exact import integer_inputs
from coconet_lab.ir.inputs import input_block, proof_inputs
from coconet_lab.kernels.cuda_abi import MAX_CTAS, MAX_RANKS
from coconet_lab.kernels.cuda_meet import meet_arguments
from coconet_lab.kernels.cuda_printer import print_kernel
from coconet_lab.kernels.lower import lower
from coconet_lab.run import cublas, cuda_nccl, cuda_tuning
from coconet_lab.run.cuda_engine import CudaEngine
from coconet_lab.run.cuda_library import _gemm, _rows
from coconet_lab.run.cuda_tuning import Tuning

World = cupy_on_host.World
TUNING = Tuning(ctas=2, unroll=2, threads=64)
ODD = 300_001  # so that no buffer of one rank alone has the size of a shared one, which is a multiple of 2 MiB

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++, which is not installed")


@pytest.fixture(autouse=True)
def cupy(monkeypatch, pytestconfig):
    return cupy_on_host.installed(monkeypatch, pytestconfig)


def total(ranks=2, elements=6):
    g = cl.tensor("g", cl.FP32, (elements,), cl.Local)
    return cl.program("sum", outputs=[cl.all_reduce(g, name="total")], ranks=ranks)


def engine_of(program, world, **options):
    return CudaEngine(lower(program), world, tuning=TUNING, **options)


def raised(ranks, action):
    """What every rank of a world raised."""

    def work(world):
        cupy_on_host._HERE.rank = world.rank
        with pytest.raises(CoconetError) as caught:
            action(world)
        return caught.value

    return World.run(ranks, work, deadline_s=10.0)


class Books:
    """Memory that was taken and is not given back, by rank; `refuses(rank, bytes)` says where there is none."""

    def __init__(self, cupy, refuses) -> None:
        self.live, runtime = set(), cupy.cuda.runtime
        malloc, free = runtime.malloc, runtime.free

        def counted(nbytes):
            if refuses(cupy_on_host._HERE.rank, nbytes):
                error = runtime.CUDARuntimeError("out of memory")
                error.status = 2
                raise error
            place = malloc(nbytes)
            self.live.add(place)
            return place

        def given_back(place):
            self.live.remove(place)
            free(place)

        runtime.malloc, runtime.free = counted, given_back


def test_a_rank_that_reaches_all_hears_that_others_do_not_reach_each_other(cupy):
    cupy.cuda.runtime.deviceCanAccessPeer = lambda a, b: {a, b} != {0, 2}
    first, second, third = raised(3, lambda world: engine_of(total(3), world))
    assert isinstance(first, ToolError)
    assert "GPU 0 cannot reach the memory of GPU 2" in first.found
    assert "GPU 2 cannot reach the memory of GPU 0" in third.found
    assert isinstance(second, ClusterError)
    assert "rank 0 failed at taking its GPU: GPU 0 cannot reach" in second.found
    assert "backend='cpu'" in second.hint


def test_a_launcher_that_shows_each_rank_one_gpu_is_named(cupy, monkeypatch):
    cupy.cuda.runtime.gpus = 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    for error in raised(2, lambda world: engine_of(total(), world)):
        assert "1 GPU found, 2 needed" in error.found
        assert error.where.endswith("CUDA_VISIBLE_DEVICES=3")


@pytest.mark.parametrize("shared", [False, True], ids=["own memory", "shared memory"])
def test_memory_that_does_not_suffice_on_one_rank_is_an_error_on_all_and_all_is_given_back(shared, cupy):
    def refuses(rank, nbytes):
        return rank == 1 and nbytes > 1 << 20 and (nbytes % (2 << 20) == 0) == shared

    books = Books(cupy, refuses)
    first, second = raised(2, lambda world: engine_of(total(elements=ODD), world))
    assert "out of GPU memory" in second.found
    assert "1024 of 2048 MiB are free" in second.found
    assert "rank 1 failed at" in first.found
    assert not books.live


def test_a_peer_s_memory_that_cannot_be_opened_is_an_error_on_all_and_all_is_given_back(cupy):
    runtime = cupy.cuda.runtime
    opened = runtime.ipcOpenMemHandle

    def refuse(handle):
        if cupy_on_host._HERE.rank == 1:
            raise runtime.CUDARuntimeError("invalid argument")
        return opened(handle)

    runtime.ipcOpenMemHandle = refuse
    books = Books(cupy, lambda rank, nbytes: False)
    first, second = raised(2, lambda world: engine_of(total(), world))
    assert "opening the peers' memory by CUDA IPC failed: invalid argument" in second.found
    assert "rank 1 failed at opening" in first.found
    assert not books.live


def test_what_cupy_keeps_for_later_is_given_back_before_memory_is_said_not_to_suffice(cupy):
    books = Books(cupy, lambda rank, nbytes: nbytes > 1 << 20 and not cupy.pool.given_back)

    def work(world):
        cupy_on_host._HERE.rank = world.rank
        engine = engine_of(total(elements=ODD), world)
        engine.load({"g": np.ones(ODD, np.float32)})
        engine.run()
        assert engine.read("total")[-1] == 2
        engine.close()

    World.run(2, work)
    assert cupy.pool.given_back
    assert not books.live


def test_an_nccl_that_cannot_be_loaded_says_how_to_get_it(monkeypatch):
    monkeypatch.delattr(nccl_on_host.Nccl, "get_version")
    for error in raised(2, lambda world: engine_of(total(), world)):
        assert "NCCL cannot be loaded" in error.found
        assert "nvidia-nccl-cu13>=2.28.9" in error.hint


def test_an_nccl_that_is_too_old_for_windows_is_an_error_with_its_version(cupy):
    cupy.cuda.nccl.get_version = lambda: 22705
    for error in raised(2, lambda world: engine_of(total(), world, symmetric="nccl")):
        assert "NCCL 2.27.5 has no symmetric windows" in error.found
        assert "symmetric='ipc'" in error.hint


def test_ranks_that_do_not_come_to_nccl_s_set_up_are_given_up(cupy, monkeypatch):
    never = threading.Event()
    monkeypatch.setattr(cuda_nccl, "with_deadline", functools.partial(cuda_nccl.with_deadline, seconds=0.05))
    cupy.cuda.nccl.NcclCommunicator = lambda count, number, rank: never.wait()
    for error in raised(2, lambda world: engine_of(total(), world)):
        assert "NCCL's set-up among 2 ranks did not finish on GPU" in error.found
    never.set()


def test_a_partner_of_another_group_that_does_not_come_is_the_one_named():
    workload = workloads.pipeline(2, 4, 32, ranks=4, groups=2)
    program = workload.schedules["ol(RS,fuse(C-P2P),AG)"].program
    inputs = proof_inputs(workload.program, integer_inputs(workload.program))

    def part(name, rank):
        return inputs[name] if program.types[name].shape == () else input_block(program, inputs, name, rank)

    def work(world):
        engine = CudaEngine(lower(program), world, deadline_s=0.2, tuning=TUNING)
        engine.load({n: part(n, world.rank) for n in program.inputs if program.types[n].group == world.rank // 2
                     or program.types[n].group is None})  # fmt: skip
        if world.rank < 2:
            with pytest.raises(RankError, match=rf"rank {world.rank} waited 0.2 s for rank {world.rank + 2} in "):
                engine.run()
        world.barrier()

    World.run(4, work)


def test_more_peers_than_a_meeting_has_room_for_are_refused():
    for posts, waits in ((MAX_RANKS + 1, 0), (0, MAX_RANKS + 1)):
        with pytest.raises(ValueError, match=f"{MAX_RANKS} words, not {MAX_RANKS + 1}"):
            meet_arguments(8, [8] * posts, [8] * waits, 8, 1, 0)


def test_scalars_go_the_way_of_the_launches_that_read_them(cupy):
    runtime, streams = cupy.cuda.runtime, []
    copy = runtime.memcpyAsync

    def watched(to, source, nbytes, kind, stream):
        streams.append(stream)
        copy(to, source, nbytes, kind, stream)

    runtime.memcpyAsync = watched
    x, by = cl.tensor("x", cl.FP32, (8,), cl.Replicated), cl.scalar("by", cl.FP32)
    program = cl.program("scaled", inputs=[x, by], outputs=[cl.mul(x, by, name="y")], ranks=1)

    def work(world):
        engine = engine_of(program, world)
        engine.load({"x": np.ones(8, np.float32), "by": 2.0})
        engine.set_scalars({"by": 3.0})
        assert streams == [engine.stream.ptr] * 2
        engine.run()
        assert engine.read("y")[0] == 3

    World.run(1, work)


def test_products_of_two_streams_have_workspaces_of_their_own():
    def work(world):
        memory = engine_of(total(1), world).memory
        first, second = memory.cublas(0), memory.cublas(1)
        assert memory.cublas(0) is first
        assert abs(first._workspace - second._workspace) >= cublas.WORKSPACE_BYTES

    World.run(1, work)


def test_a_product_of_more_rows_than_32_bits_count_is_refused():
    def matrix(rows, columns):
        return types.SimpleNamespace(shape=(rows, columns), strides=(2 * columns, 2), itemsize=2)

    entry = types.SimpleNamespace(name="layer", stream=0)
    a, b, c = matrix(2**31, 8), matrix(8, 8), matrix(2**31, 8)
    with pytest.raises(CodegenError, match=r"matmul 'layer' has 2147483648 rows of 8 elements"):
        _gemm(entry, (_rows(a, "layer"), _rows(c, "layer")), (a, b, c), FP16, None)


def test_a_launch_that_meets_has_no_more_ctas_than_a_pad_has_lines(monkeypatch):
    source = print_kernel(samples.sgd(1024, 2))
    monkeypatch.setattr(cuda_tuning, "_vectors", lambda source: 1 << 40)
    assert cuda_tuning.wanted_ctas(source, Tuning(), 1, 132) == 264
    assert cuda_tuning.wanted_ctas(source, Tuning(), 1, 600) == MAX_CTAS


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a collective"])
def test_a_launch_that_waits_leaves_room_for_a_collective_of_another_stream(beside):
    # All CTAs of a launch must be there for its ranks to meet: NCCL's, which wait too, must not be in their place.
    x, w = cl.tensor("x", cl.FP32, (4, 8), cl.Sliced(1)), cl.tensor("w", cl.FP32, (8, 4), cl.Sliced(0))
    total = cl.all_reduce(cl.matmul(x, w, name="layer"), name="total")
    out = cl.add(total, total, name="out")
    extra = [cl.all_reduce(cl.tensor("g", cl.FP32, (6,), cl.Local), name="other")] if beside else []
    program = cl.program("p", outputs=[out, *extra], ranks=2)
    schedule = cl.Schedule(program).split("total").reorder("total", past="out").fuse("total_rs", "out", name="fused")
    schedule = schedule.overlap("layer", "fused")

    def work(world):
        engine = engine_of(schedule.program, world)
        return [loaded.ctas for kernel, loaded in engine.kernels.loaded.items() if kernel.has_peers]

    for ctas in World.run(2, work):
        assert ctas == [1 if beside else 2]


def test_tuning_again_and_again_takes_no_more_memory():
    workload = workloads.lamb([(5,), (64, 33), (3,)], ranks=2, dtype="fp16")
    g = cl.tensor("g", cl.FP32, (50,), cl.Local)
    top = cl.program("top", outputs=[cl.all_reduce(g, "max", name="top")], ranks=2)
    for program in (workload.schedules["fuse(RS-Opt-AG)"].program, top):

        def work(world, program=program):
            engine = engine_of(program, world)
            sizes = []
            for unroll in (1, 2, 1):
                engine.retune(Tuning(ctas=1, unroll=unroll, threads=64))
                sizes.append(len(engine.memory._extra))
            return sizes

        for sizes in World.run(2, work):
            assert len(set(sizes)) == 1
