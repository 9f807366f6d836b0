"""On GPUs: bits of the arithmetic, every workload against the oracle under mpiexec, graphs, scalars, lost ranks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import cuda_samples as samples
import numpy as np
import pytest

import coconet_lab.workloads as workloads
from coconet_lab.errors import ToolError
from coconet_lab.ir import oracle
from coconet_lab.ir.dtypes import BF16, FP16, FP32, FP64, INT32, INT64
from coconet_lab.ir.elementwise import FUNCTIONS
from coconet_lab.ir.inputs import random_inputs
from coconet_lab.ir.rounding import cast, mismatch
from coconet_lab.kernels.cuda_compile import Variant, compile_kernel
from coconet_lab.kernels.cuda_launch import Team, arguments
from coconet_lab.kernels.cuda_printer import print_kernel
from coconet_lab.kernels.kernel import Apply, Convert
from coconet_lab.kernels.lower import lower
from coconet_lab.run.cuda_device import import_cupy, take_gpu
from coconet_lab.run.cuda_engine import CudaEngine
from coconet_lab.run.devices import gpu_count
from coconet_lab.run.world import ThreadWorld

ROOT = Path(__file__).parents[2]
ROOT_MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def mpiexec(ranks: int, *command: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    program = shutil.which("mpiexec")
    if program is None:
        pytest.skip("needs mpiexec, which is not installed")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
    options = ["--oversubscribe", "--bind-to", "none"] if "Open MPI" in version else []
    return subprocess.run(
        [program, *options, "-n", str(ranks), sys.executable, *command], cwd=ROOT, timeout=timeout_s, text=True,
        capture_output=True, check=False, env={**os.environ, **ROOT_MPI, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


@pytest.mark.parametrize("kind", [FP16, BF16, FP32, FP64, INT32, INT64], ids=repr)
def test_arithmetic_and_casts_have_the_oracle_s_bits(kind):
    count = 100_003
    cupy, gpu = import_cupy(), take_gpu(0, 1)
    kernel = samples.arithmetic(kind, count)
    source = print_kernel(kernel)
    module = cupy.cuda.function.Module()
    module.load(compile_kernel(source, Variant(gpu.arch)))
    random = np.random.default_rng(6)
    given = []
    for _ in range(2):
        array = random.integers(0, 256, count * kind.itemsize, np.uint8).view(kind.numpy)
        array[:2000] = random.integers(-50, 50, 2000).astype(kind.numpy)
        given.append(array)
    device = [cupy.asarray(a.view(np.uint8)) for a in given]
    device += [cupy.zeros(count * t.dtype.itemsize, cupy.uint8) for t in kernel.tensors[2:]]
    state = cupy.zeros(4096, cupy.uint8)
    packed = arguments(
        source, 0, tensors=[(a.data.ptr,) for a in device], scalars=(), team=Team((0,), state.data.ptr, 10**9)
    )
    module.get_function(source.name)((64,), (512,), (packed,))
    found = [a.get().view(t.dtype.numpy) for a, t in zip(device, kernel.tensors)]
    at = 2
    with np.errstate(all="ignore"):
        for statement in kernel.phases[0].body:
            if isinstance(statement, Apply):
                expected = FUNCTIONS[statement.fn](kind, *given[: len(statement.args)])
            elif isinstance(statement, Convert):
                expected = cast(given[0], kind, kernel.dtypes[statement.out])
            else:
                continue
            assert mismatch(found[at], expected) is None, statement
            at += 1


@pytest.mark.parametrize("symmetric", ["ipc", "nccl"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_workload_schedule_and_dtype_equals_the_oracle(ranks, symmetric, tmp_path):
    if gpu_count() < ranks:
        pytest.skip(f"needs {ranks} GPUs, {gpu_count()} found")
    command = ("benchmarks/gpu_check.py", "--quick", "--out", str(tmp_path), "--symmetric", symmetric)
    done = mpiexec(ranks, *command, timeout_s=280)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]


@pytest.mark.parametrize("form", ["turns", "push"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_peers_parts_may_come_in_any_form(ranks, form, tmp_path):
    if gpu_count() < ranks:
        pytest.skip(f"needs {ranks} GPUs, {gpu_count()} found")
    # Few CTAs: what is pushed comes in many rounds.
    options = ("--quick", "--only", "fp16", "--form", form, "--ctas", "3", "--out", str(tmp_path))
    done = mpiexec(ranks, "benchmarks/gpu_check.py", *options, timeout_s=280)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]


def test_a_link_is_measured_read_written_and_both():
    if gpu_count() < 2:
        pytest.skip(f"needs 2 GPUs, {gpu_count()} found")
    done = mpiexec(2, "benchmarks/gpu_link.py", "--mib", "64", timeout_s=120)
    assert done.returncode == 0, done.stderr[-2000:]
    rates = {line.split()[0]: float(line.split()[3]) for line in done.stdout.splitlines() if "GB/s" in line}
    assert rates.keys() == {"reads", "writes", "both"}
    assert min(rates.values()) > 1


def test_new_scalars_need_no_new_graph():
    workload = workloads.adam(5003, ranks=1, dtype="fp16")
    program = workload.schedules["fuse(RS-Opt-AG)"].program
    inputs = random_inputs(workload.program)

    def work(world):
        engine = CudaEngine(lower(program), world)
        engine.load(inputs | {"g": inputs["g"][0]})
        engine.run()
        graph = engine._graph
        for lr, t in ((0.5, 2.0), (0.25, 9.0)):
            engine.set_scalars({"lr": lr, "t": t})
            engine.reset_state()
            engine.run()
            expected = oracle.run(program, inputs | {"lr": np.float32(lr), "t": np.float32(t)})
            assert mismatch(engine.read("p1"), expected.outputs["p1"]) is None
        assert engine._graph is graph
        engine.close()

    ThreadWorld.run(1, work)


def test_more_ranks_than_gpus_is_an_error_with_the_numbers():
    with pytest.raises(ToolError, match=rf"{gpu_count()} GPUs? found, {gpu_count() + 1} needed"):
        take_gpu(0, gpu_count() + 1)


LOST = """
import sys
from coconet_lab.errors import RankError
from coconet_lab.kernels.lower import lower
from coconet_lab.run.cuda_engine import CudaEngine
from coconet_lab.run.world import MpiWorld
import coconet_lab.workloads as workloads
world = MpiWorld()
workload = workloads.adam(4096, ranks=2, dtype="fp16")
engine = CudaEngine(lower(workload.schedules["fuse(RS-Opt-AG)"].program), world, deadline_s=1.0)
engine.set_scalars({})
if world.rank == 0:
    try:
        engine.run()
    except RankError as error:
        print("NAMED", error)
world.barrier()
"""


def test_a_rank_that_does_not_run_is_named_before_the_deadline(tmp_path):
    if gpu_count() < 2:
        pytest.skip(f"needs 2 GPUs, {gpu_count()} found")
    script = tmp_path / "lost.py"
    script.write_text(LOST)
    done = mpiexec(2, str(script), timeout_s=120)
    assert "NAMED rank 0 waited 1 s for rank 1 in 'fused'" in done.stdout, done.stdout + done.stderr[-2000:]
