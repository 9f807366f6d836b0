"""Steps and moves stay fast and linear on programs of ten thousand operations."""

import gc
import time
from functools import cache

import pytest

import coconet_lab as cl
from coconet_lab import FP32, Local, Replicated
from coconet_lab.ir.program import Fusion
from coconet_lab.transforms.fuse import Fuse
from coconet_lab.transforms.moves import legal_moves
from coconet_lab.transforms.reorder import Reorder
from coconet_lab.transforms.split import Split

SLOW_MACHINE = 4.0  # how much slower a loaded or old machine may be
GROWTH = 2.2  # how much more than four times as long four times the operations may take: caches, collection


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


def seconds(function, *arguments, repeats=2):
    """The best of some runs, in seconds of this process's own processor time."""
    best = float("inf")
    for _ in range(repeats):
        gc.collect()
        start = time.process_time()
        function(*arguments)
        best = min(best, time.process_time() - start)
    return best


def shown(**found):
    print(", ".join(f"{name} {value * 1e3:.1f} ms" for name, value in found.items()))


def test_a_step_that_changes_everything_takes_under_200_ms():
    program = Split("total")(chain(10_000))
    taken = seconds(Reorder("total", ("x9999",)), program)
    shown(reorder_all=taken)
    assert taken < 0.2 * SLOW_MACHINE


def test_a_group_of_everything_takes_under_200_ms():
    program = chain(10_000)
    taken = seconds(Fuse(("total", "x9999")), program)
    shown(fuse_all=taken)
    assert taken < 0.2 * SLOW_MACHINE


@pytest.mark.parametrize("step", [Reorder("total", ("x999",)), Fuse(("x0", "x999")), Split("again")])
def test_a_step_that_changes_a_tenth_takes_under_50_ms(step):
    program = Split("total")(chain(10_000))
    taken = seconds(step, program)
    shown(**{step.kind: taken})
    assert taken < 0.05 * SLOW_MACHINE


@pytest.mark.parametrize("build", [chain, layers, updates])
def test_all_legal_moves_of_ten_thousand_operations_take_under_a_second(build):
    program = build(10_000)
    taken = seconds(legal_moves, program)
    shown(moves=taken)
    assert taken < 1.0 * SLOW_MACHINE


@pytest.mark.parametrize("build", [chain, layers, updates])
def test_legal_moves_grow_with_the_program_and_not_with_its_square(build):
    small, large = build(1_000), build(4_000)
    few, many = seconds(legal_moves, small), seconds(legal_moves, large)
    shown(of_a_quarter=few, of_all=many)
    assert many < 4 * few * GROWTH


def test_steps_grow_with_the_program_and_not_with_its_square():
    def reorder(length):
        return seconds(Reorder("total", (f"x{length - 1}",)), Split("total")(chain(length)))

    few, many = reorder(1_000), reorder(4_000)
    shown(of_a_quarter=few, of_all=many)
    assert many < 4 * few * GROWTH


def test_moves_of_a_program_with_a_thousand_groups_stay_linear():
    def grouped(operations):
        program = layers(operations)
        fusions = tuple(Fusion(f"f{at}", (f"drop{at}", f"out{at}")) for at in range(operations // 8))
        return program.edit(fusions=fusions)

    few, many = seconds(legal_moves, grouped(1_000)), seconds(legal_moves, grouped(4_000))
    shown(of_a_quarter=few, of_all=many)
    assert many < 4 * few * GROWTH


def test_clipping_by_a_norm_of_all_gradients_keeps_reorders_local():
    def clipped(count):
        parts = [
            cl.all_gather(cl.reduce_scatter(cl.tensor(f"g{k}", FP32, (64,), Local)), name=f"a{k}") for k in range(count)
        ]
        total = cl.norm(parts[0])
        for part in parts[1:]:
            total = total + cl.norm(part)
        outputs = [cl.mul(part, total, name=f"y{k}") for k, part in enumerate(parts)]
        return cl.program("clip", outputs=outputs, ranks=4)

    program = clipped(250)
    moves = [step for step in Reorder.candidates(program) if step.why_not(program) is None]
    assert moves == [Reorder(f"a{k}", (f"y{k}",)) for k in range(250)]
    taken = seconds(lambda: list(Reorder.candidates(program)))
    shown(clip=taken)
    assert taken < 1.0 * SLOW_MACHINE


def test_reorders_across_a_thousand_groups_stay_linear():
    def grouped(operations):
        count, parts = operations // 8, []
        for at in range(count):
            g, r = cl.tensor(f"g{at}", FP32, (64,), Local), cl.tensor(f"r{at}", FP32, (64,), Replicated)
            total = cl.all_gather(cl.reduce_scatter(g, name=f"rs{at}"), name=f"total{at}")
            parts.append(cl.add(cl.mul(total, r, name=f"a{at}"), 1.0, name=f"b{at}"))
        program = cl.program("groups", outputs=parts, ranks=4)
        return program.edit(fusions=tuple(Fusion(f"f{at}", (f"a{at}", f"b{at}")) for at in range(count)))

    few, many = seconds(legal_moves, grouped(1_000)), seconds(legal_moves, grouped(4_000))
    shown(of_a_quarter=few, of_all=many)
    assert many < 4 * few * GROWTH
