"""How a launch is tuned: what is chosen from its size, the same on all ranks, and what there is room for."""

from __future__ import annotations

import shutil
from dataclasses import replace

import cupy_on_host
import pytest

import coconet_lab.workloads as workloads
from coconet_lab.kernels.cuda_printer import print_kernel
from coconet_lab.kernels.lower import lower
from coconet_lab.kernels.plan import Launch
from coconet_lab.run import cuda_kernels
from coconet_lab.run.cuda_device import Gpu
from coconet_lab.run.cuda_engine import CudaEngine
from coconet_lab.run.cuda_tuning import (
    RING_BYTES,
    Tuning,
    chosen_form,
    chosen_threads,
    chosen_unroll,
    reserved_staging_bytes,
    wanted_ctas,
)

World = cupy_on_host.World
PROCESSORS = 132
LONG, SHORT = 1 << 26, 1 << 16


def fused(make, elements, ranks=2, dtype="fp16"):
    plan = lower(make(elements=elements, ranks=ranks, dtype=dtype).schedules["fuse(RS-Opt-AG)"].program)
    return print_kernel(next(kernel for kernel in plan.kernels() if kernel.has_peers))


def chosen(source, tuning=None):
    tuning = tuning or Tuning()
    unroll = chosen_unroll(source, tuning, PROCESSORS)
    return (
        chosen_form(source, tuning, PROCESSORS),
        chosen_threads(source, tuning, PROCESSORS),
        unroll,
        wanted_ctas(source, tuning, unroll, PROCESSORS),
    )


@pytest.mark.parametrize(
    ("make", "elements", "ranks", "expected"),
    [
        (workloads.adam, LONG, 2, ("push", 512, 1, 264)),
        (workloads.adam, [(LONG // 4,)] * 4, 2, ("push", 384, 1, 264)),
        (workloads.adam, LONG, 4, ("turns", 512, 2, 264)),
        (workloads.adam, SHORT, 2, ("read", 128, 1, 32)),
        (workloads.lamb, LONG, 2, ("read", 512, 2, 264)),
    ],
)
def test_a_long_launch_of_two_ranks_pushes_one_of_more_takes_turns_and_a_short_one_reads(
    make, elements, ranks, expected
):
    assert chosen(fused(make, elements, ranks)) == expected


def test_what_is_asked_for_is_done_but_a_kernel_with_norms_is_never_pushed():
    asked = Tuning(ctas=7, unroll=4, threads=96, form="push")
    assert chosen(fused(workloads.adam, SHORT), asked) == ("push", 96, 4, 7)
    assert chosen(fused(workloads.lamb, LONG), asked) == ("read", 96, 4, 7)


def test_a_list_of_very_many_buffers_has_fewer_threads():
    source = fused(workloads.adam, [(LONG // 4,)] * 4, 4)
    wide = replace(source.kernel, tensors=source.kernel.tensors + source.kernel.tensors[:1] * 200)
    threads = chosen_threads(replace(source, kernel=wide), Tuning(), PROCESSORS)
    assert threads % 32 == 0
    assert 8 * 3 * (3 + 205) * threads // 32 <= RING_BYTES < 8 * 3 * (3 + 205) * (threads + 32) // 32


def test_staging_is_reserved_for_long_launches_alone_and_is_a_few_rounds_however_long_they_are():
    assert reserved_staging_bytes(fused(workloads.adam, SHORT), PROCESSORS) == 0
    assert reserved_staging_bytes(fused(workloads.lamb, LONG), PROCESSORS) == 0
    of_long = reserved_staging_bytes(fused(workloads.adam, LONG), PROCESSORS)
    assert of_long == 4 * 2 * 264 * 512 * 16, "slots, ranks, CTAs, threads, bytes of a vector"
    assert reserved_staging_bytes(fused(workloads.adam, 2 * LONG), PROCESSORS) == of_long


needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++, which is not installed")


@pytest.fixture
def cupy(monkeypatch, pytestconfig):
    return cupy_on_host.installed(monkeypatch, pytestconfig)


def push_argument(engine):
    """What the fused launch is told: whether to push."""
    index, launch = next((i, e) for i, e in enumerate(engine.plan.entries) if isinstance(e, Launch))
    loaded, at = engine.kernels.loaded[launch.kernel], 0
    packed = engine._steps.packed(index, launch, loaded)
    for field in loaded.source.layout:
        if field.name == "push":
            return int(packed["words"][0][at])
        at += field.words
    raise AssertionError("no such argument")


@needs_compiler
def test_a_launch_for_which_there_is_no_room_reads_instead(cupy):
    plan = lower(workloads.sgd(1024, ranks=2, dtype="fp16").schedules["fuse(RS-Opt-AG)"].program)

    def work(world):
        small = Tuning(ctas=1, unroll=1, threads=64, form="push")
        engine = CudaEngine(plan, world, deadline_s=20.0, tuning=small)
        found = [push_argument(engine)]
        for tuning in (replace(small, unroll=2), small, replace(small, form="read")):
            engine.retune(tuning)
            found.append(push_argument(engine))
        engine.close()
        return found

    assert World.run(2, work) == [[1, 0, 1, 0]] * 2


@needs_compiler
def test_ranks_of_different_gpus_choose_alike(cupy, monkeypatch):
    # What a rank pushes lies where a launch of as many threads takes it.
    plan = lower(workloads.sgd(1 << 17, ranks=2, dtype="fp16").schedules["fuse(RS-Opt-AG)"].program)
    variants, compiled = [], cuda_kernels.compile_kernel

    def kept(source, variant):
        variants.append(variant)
        return compiled(source, variant)

    monkeypatch.setattr(cuda_kernels, "compile_kernel", kept)

    def work(world):
        gpu = Gpu(world.rank, "host", "sm_90", 200 if world.rank else 2)
        cuda_kernels.Kernels(plan, world, world.rank, gpu, Tuning())

    World.run(2, work)
    first, second = sorted(variants, key=lambda variant: variant.rank)
    assert replace(first, rank=1) == second
    assert first.form == "push"
