"""Steps, moves and lowering stay fast and linear on programs of ten thousand operations."""

import gc
import math
import time
from functools import cache

import pytest

import coconet_lab as cl
from coconet_lab import FP32, Local, Replicated
from coconet_lab.ir.program import Fusion
from coconet_lab.kernels.lower import lower
from coconet_lab.transforms.fuse import Fuse
from coconet_lab.transforms.moves import legal_moves
from coconet_lab.transforms.reorder import Reorder
from coconet_lab.transforms.split import Split

SLOW_MACHINE = 4.0  # how much slower a loaded or old machine may be
GROWTH = 1.7  # how much more than ten times as long ten times the operations may take: a square takes 10, caches 1.3
TRIES = 6  # what else the machine does makes single runs slow, and not all of them


@cache
def chain(length):
    """One gradient, and `length` operations below its sum."""
    g = cl.tensor("g", FP32, (64,), Local)
    x = cl.all_reduce(g, name="total")
    r = cl.tensor("r", FP32, (64,), Replicated)
    for at in range(length):
        x = cl.add(x, r, name=f"x{at}")
    return cl.program("chain", outputs=[x, cl.all_reduce(g, name="again")], ranks=4)


@cache
def layers(operations, width=8):
    """Transformer-like layers with residuals, `width` operations each."""
    x = cl.tensor("x", FP32, (8, 16), Replicated)
    for at in range(operations // width):
        w = cl.tensor(f"w{at}", FP32, (16, 16), cl.Sliced(0))
        part = cl.matmul(cl.local_slice(x, 1), w, name=f"layer{at}")
        total = cl.all_reduce(part, name=f"total{at}")
        drop = cl.dropout(total + 1.0, 0.1, name=f"drop{at}")
        x = cl.add(drop, x, name=f"out{at}")
    return cl.program("layers", outputs=[x], ranks=4)


@cache
def updates(operations, width=8):
    """Parameters with an update each."""
    outputs, lr = [], cl.scalar("lr", FP32)
    for at in range(operations // width):
        g = cl.tensor(f"g{at}", FP32, (64,), Local)
        w = cl.tensor(f"w{at}", FP32, (64,), Replicated)
        total = cl.all_reduce(g, name=f"total{at}")
        outputs.append(cl.update(w, w - lr * (total / 4.0), name=f"w{at}_new"))
    return cl.program("updates", outputs=outputs, ranks=4)


@cache
def halved(length):
    """The chain with its sum in two halves."""
    return Split("total")(chain(length))


@pytest.fixture(autouse=True, scope="module")
def programs_end_with_the_module():
    """The collector walks them all, whenever it runs, in all the tests that follow."""
    yield
    for build in (chain, layers, updates, halved, clipped):
        build.cache_clear()


def seconds(function, *arguments):
    """What a call takes of this thread's own processor time, without the collector, which walks all that is alive."""
    gc.disable()
    try:
        start = time.thread_time()
        function(*arguments)
        return time.thread_time() - start
    finally:
        gc.enable()


def takes_under(limit, function, program):
    """The best of some runs is within a limit; the first that is, is the last."""
    best = math.inf
    for _ in range(TRIES):
        best = min(best, seconds(function, program))
        if best < limit * SLOW_MACHINE:
            break
    print(f"{best * 1e3:.1f} ms of {limit * 1e3:.0f} ms")
    assert best < limit * SLOW_MACHINE


def takes_ten_times_as_long(function, tenth, program):
    """The best of some runs on both grow as the programs do; the first that do are the last."""
    small = large = math.inf
    for _ in range(TRIES):
        small, large = min(small, seconds(function, tenth)), min(large, seconds(function, program))
        if large < 10 * small * GROWTH:
            break
    print(f"{small * 1e3:.1f} ms of a tenth, {large * 1e3:.1f} ms of all: {large / small:.1f} times as long")
    assert large < 10 * small * GROWTH
    assert large < 1.0 * SLOW_MACHINE


def test_a_step_that_changes_everything_takes_under_200_ms():
    takes_under(0.2, Reorder("total", ("x9999",)), halved(10_000))


def test_a_group_of_everything_takes_under_200_ms():
    takes_under(0.2, Fuse(("total", "x9999")), chain(10_000))


@pytest.mark.parametrize("step", [Reorder("total", ("x999",)), Fuse(("x0", "x999")), Split("again")])
def test_a_step_that_changes_a_tenth_takes_under_50_ms(step):
    takes_under(0.05, step, halved(10_000))


@pytest.mark.parametrize("build", [chain, layers, updates])
def test_all_legal_moves_of_ten_thousand_operations_take_under_a_second_and_grow_with_their_number(build):
    takes_ten_times_as_long(legal_moves, build(1_000), build(10_000))


def test_steps_grow_with_the_program_and_not_with_its_square():
    def reorder(program):
        return Reorder("total", (program.outputs[0],))(program)

    takes_ten_times_as_long(reorder, halved(1_000), halved(10_000))


def test_moves_of_a_program_with_a_thousand_groups_stay_linear():
    def grouped(operations):
        program = layers(operations)
        fusions = tuple(Fusion(f"f{at}", (f"drop{at}", f"out{at}")) for at in range(operations // 8))
        return program.edit(fusions=fusions)

    takes_ten_times_as_long(legal_moves, grouped(1_000), grouped(10_000))


@cache
def clipped(count):
    """Gradients, each gathered, and scaled by a norm of all of them."""
    parts = [
        cl.all_gather(cl.reduce_scatter(cl.tensor(f"g{k}", FP32, (64,), Local)), name=f"a{k}") for k in range(count)
    ]
    total = cl.norm(parts[0])
    for k, part in enumerate(parts[1:], 1):
        total = cl.add(total, cl.norm(part), name=f"total{k}")
    outputs = [cl.mul(part, total, name=f"y{k}") for k, part in enumerate(parts)]
    return cl.program("clip", outputs=outputs, ranks=4)


def test_clipping_by_a_norm_of_all_gradients_keeps_reorders_local():
    program = clipped(250)
    moves = [step for step in legal_moves(program) if isinstance(step, Reorder)]
    assert moves == [Reorder(f"a{k}", (f"y{k}",)) for k in range(250)]


def test_moves_under_clipping_by_a_norm_of_all_gradients_stay_linear():
    takes_ten_times_as_long(legal_moves, clipped(100), clipped(1_000))


def test_reorders_past_a_fused_sum_of_all_norms_stay_linear():
    def summed(count):
        return clipped(count).edit(fusions=(Fusion("sum", tuple(f"total{k}" for k in range(1, count))),))

    def reorders(program):
        return [step for step in Reorder.candidates(program) if step.why_not(program) is None]

    assert len(reorders(summed(10))) == 10
    takes_ten_times_as_long(reorders, summed(100), summed(1_000))


def test_reorders_across_a_thousand_groups_stay_linear():
    def grouped(operations):
        count, parts = operations // 5, []
        for at in range(count):
            g, r = cl.tensor(f"g{at}", FP32, (64,), Local), cl.tensor(f"r{at}", FP32, (64,), Replicated)
            total = cl.all_gather(cl.reduce_scatter(g, name=f"rs{at}"), name=f"total{at}")
            parts.append(cl.add(cl.mul(total, r, name=f"a{at}"), 1.0, name=f"b{at}"))
        program = cl.program("groups", outputs=parts, ranks=4)
        return program.edit(fusions=tuple(Fusion(f"f{at}", (f"a{at}", f"b{at}")) for at in range(count)))

    takes_ten_times_as_long(legal_moves, grouped(500), grouped(5_000))


def test_lowering_grows_with_the_program():
    takes_ten_times_as_long(lower, updates(1_000), updates(10_000))


def test_lowering_a_group_grows_with_its_depth():
    def fused(length):
        return Fuse(("total", f"x{length - 1}"))(chain(length))

    takes_ten_times_as_long(lower, fused(1_000), fused(10_000))
