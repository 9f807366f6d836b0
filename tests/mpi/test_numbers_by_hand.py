"""What ranks compute against NumPy written here, in float64: no oracle and no rule of the lab between them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import coconet_lab as cl
from coconet_lab import BF16, FP16, FP32, FP64, GROUP, Local, Replicated, Sliced
from coconet_lab.workloads.workload import Workload

NUMPY = {FP16: np.float16, BF16: ml_dtypes.bfloat16, FP32: np.float32, FP64: np.float64}
MIXES = [(FP32, FP32), (FP16, FP32), (BF16, FP32), (FP64, FP64)]


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[cl.Cluster]:
    with cl.Cluster(ranks=request.param, backend="cpu", deadline_s=120) as started:
        yield started


def optimizer(elements: int, ranks: int, wire: cl.DType, kept: cl.DType, lamb: bool) -> cl.Program:
    """Adam or LAMB with gradients of one dtype on the wire and state of another."""
    g = cl.tensor("g", wire, (elements,), Local)
    w, m, v = (cl.tensor(name, kept, (elements,), Replicated) for name in "wmv")
    lr, b1, b2, eps, t, decay = (cl.scalar(name, kept) for name in ("lr", "b1", "b2", "eps", "t", "decay"))
    total = cl.all_reduce(g, name="total")
    mean = cl.div(cl.cast(total, kept), GROUP.size, name="G")
    m1 = cl.update(m, b1 * m + (1 - b1) * mean, name="m1")
    v1 = cl.update(v, b2 * v + (1 - b2) * (mean * mean), name="v1")
    u = (m1 / (1 - b1**t)) / (cl.sqrt(v1 / (1 - b2**t)) + eps) + decay * w
    step = lr * (cl.norm(w) / cl.norm(u)) * u if lamb else lr * u
    w1 = cl.update(w, w - step, name="w1")
    return cl.program("optimizer", inputs=[g, w, m, v, lr, b1, b2, eps, t, decay], outputs=[w1], ranks=ranks)


def by_hand(given: dict[str, np.ndarray], total: np.ndarray, ranks: int, lamb: bool) -> dict[str, np.ndarray]:
    wide = {name: np.asarray(value, np.float64) for name, value in given.items() if name != "g"}
    mean = total / ranks
    m = wide["b1"] * wide["m"] + (1 - wide["b1"]) * mean
    v = wide["b2"] * wide["v"] + (1 - wide["b2"]) * mean**2
    u = (m / (1 - wide["b1"] ** wide["t"])) / (np.sqrt(v / (1 - wide["b2"] ** wide["t"])) + wide["eps"])
    u = u + wide["decay"] * wide["w"]
    trust = np.linalg.norm(wide["w"]) / np.linalg.norm(u) if lamb else 1.0
    return {"m": m, "v": v, "w": wide["w"] - wide["lr"] * trust * u}


def schedules(program: cl.Program) -> Iterator[cl.Schedule]:
    start = cl.Schedule(program)
    yield start
    sliced = start.fuse("G", "w1").split("total").reorder("total", past="fused").as_slice("m", "v").dead()
    yield sliced
    yield sliced.fuse("total_rs", "fused", "w1")


@pytest.mark.parametrize("cluster", [1, 3], indirect=True)
@pytest.mark.parametrize("lamb", [False, True], ids=["adam", "lamb"])
@pytest.mark.parametrize(("wire", "kept"), MIXES, ids=str)
def test_an_optimizer_has_the_values_of_numpy(cluster: cl.Cluster, wire: cl.DType, kept: cl.DType, lamb: bool) -> None:
    random, ranks = np.random.default_rng(3), cluster.ranks
    for elements in (1, 7, 4097):
        program = optimizer(elements, ranks, wire, kept, lamb)
        scalars = {"lr": 0.01, "b1": 0.9, "b2": 0.99, "eps": 1e-6, "t": 3.0, "decay": 0.01}
        given = {name: NUMPY[kept](value) for name, value in scalars.items()}
        # Small whole gradients: their sum is exact in every wire dtype, in whatever order a library adds.
        given["g"] = random.integers(-4, 5, (ranks, elements)).astype(NUMPY[wire])
        given |= {name: random.random(elements).astype(NUMPY[kept]) for name in ("w", "m", "v")}
        expected = by_hand(given, given["g"].astype(np.float64).sum(axis=0), ranks, lamb)
        for schedule in schedules(program):
            run = cluster.run(schedule, given)
            for name, value in expected.items():
                np.testing.assert_allclose(run.state[name], value, rtol=64 * kept.eps, atol=64 * kept.eps)


@pytest.mark.parametrize("cluster", [1, 3], indirect=True)
@pytest.mark.parametrize("dtype", [FP16, BF16, FP32, FP64], ids=str)
def test_an_epilogue_has_the_values_of_numpy_and_drops_a_quarter(cluster: cl.Cluster, dtype: cl.DType) -> None:
    ranks, random = cluster.ranks, np.random.default_rng(4)
    hidden, inner = 12 * ranks, 4 * ranks
    x, w = cl.tensor("x", dtype, (2, 12, inner), Sliced(2)), cl.tensor("w", dtype, (inner, hidden), Sliced(0))
    b, r = cl.tensor("b", dtype, (hidden,), Replicated), cl.tensor("r", dtype, (2, 12, hidden), Replicated)
    layer = cl.matmul(x, w, name="layer")
    drop = cl.dropout(cl.all_reduce(layer, name="total") + b, 0.25, name="drop")
    out = cl.add(drop, r, name="out")
    program = cl.program("epilogue", inputs=[x, w, b, r], outputs=[out, drop], ranks=ranks)
    given = {
        name: random.integers(-2, 3, program.types[name].shape).astype(NUMPY[dtype]) for name in ("x", "w", "b", "r")
    }
    wide = {name: value.astype(np.float64) for name, value in given.items()}
    summed = wide["x"] @ wide["w"] + wide["b"]
    fused = cl.Schedule(program).split("total", dim=1).reorder("total", past="out").fuse("total_rs", "out", name="f")
    kept = []
    for schedule in (cl.Schedule(program), fused, fused.overlap("layer", "f")):
        run = cluster.run(schedule, given)
        dropped, whole = run["drop"].astype(np.float64), run["out"].astype(np.float64)
        kept.append((dropped != 0) | (summed == 0))
        np.testing.assert_allclose(dropped, np.where(kept[-1], summed / 0.75, 0.0), rtol=4 * dtype.eps)
        np.testing.assert_allclose(whole, dropped + wide["r"], rtol=dtype.eps, atol=4 * dtype.eps)
    assert all(np.array_equal(kept[0], other) for other in kept)
    assert 0.6 < (kept[0] & (summed != 0)).sum() / (summed != 0).sum() < 0.9


@pytest.mark.parametrize("cluster", [1, 3], indirect=True)
def test_a_librarys_sum_of_half_precision_is_as_near_as_a_rounding_at_each_hop_allows(cluster: cl.Cluster) -> None:
    x = cl.tensor("x", FP16, (4097,), Local)
    program = cl.program("sum", outputs=[cl.all_reduce(x, name="total")], ranks=cluster.ranks)
    given = {"x": np.random.default_rng(5).normal(size=(cluster.ranks, 4097)).astype(np.float16)}
    run = cluster.run(program, given)
    wide = given["x"].astype(np.float64)
    allowed = cluster.ranks * FP16.eps * np.abs(wide).sum(axis=0)
    assert (np.abs(run["total"].astype(np.float64) - wide.sum(axis=0)) <= allowed).all()
    assert all(np.array_equal(run.on_rank(rank)["total"], run["total"]) for rank in range(cluster.ranks))


def drop_by_hand(name: str, p: float, shape: tuple[int, ...]) -> np.ndarray:
    """What a dropout keeps: Philox4x32-10 (Salmon et al., SC'11) of seed 0 in Python's integers."""
    stream = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
    size, words = int(np.prod(shape)), []
    for call in range(-(-size // 4)):
        a, b, c, d = call & 0xFFFFFFFF, call >> 32, stream & 0xFFFFFFFF, stream >> 32
        for turn in range(10):
            high, low = divmod(0xD2511F53 * a, 2**32), divmod(0xCD9E8D57 * c, 2**32)
            keys = (turn * 0x9E3779B9) & 0xFFFFFFFF, (turn * 0xBB67AE85) & 0xFFFFFFFF
            a, b, c, d = low[0] ^ b ^ keys[0], low[1], high[0] ^ d ^ keys[1], high[1]
        words += [a, b, c, d]
    return (np.array(words[:size]) >= int(p * 2**32)).reshape(shape)


@pytest.mark.parametrize("cluster", [2, 4], indirect=True)
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("elements", [7, 4097, [(3, 5), (1100,)]], ids=str)
def test_every_schedule_of_sgd_has_the_values_of_numpy(cluster: cl.Cluster, elements: Any, dtype: str) -> None:
    workload, random = cl.workloads.sgd(elements, cluster.ranks, dtype), np.random.default_rng(6)
    size = workload.program["w"].shape[0]
    wire = np.float16 if dtype == "fp16" else np.float32
    given = {"g": random.integers(-4, 5, (cluster.ranks, size)).astype(wire), "lr": np.float32(0.125)}
    given["w"] = random.random(size).astype(np.float32)
    if dtype == "fp16":
        given["p"] = np.zeros(size, np.float16)
    expected = given["w"] - 0.125 * given["g"].astype(np.float64).mean(axis=0)
    for schedule in workload.schedules.values():
        run = cluster.run(schedule, given)
        np.testing.assert_allclose(run.state["w"], expected, rtol=4 * FP32.eps, atol=4 * FP32.eps)
        if dtype == "fp16":
            np.testing.assert_allclose(run["p1"].astype(np.float64), expected, rtol=FP16.eps, atol=FP16.eps)
            assert np.array_equal(run.state["p"], run["p1"])


def layers(ranks: int, dtype: str) -> Iterator[Workload]:
    yield cl.workloads.self_attention(4, 4, 8 * ranks, ranks, dtype)
    yield cl.workloads.mlp(4, 4, 8 * ranks, ranks, dtype)
    yield cl.workloads.pipeline(4, 4, 8 * ranks, ranks, 2, dtype)


@pytest.mark.parametrize("cluster", [2, 4], indirect=True)
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_every_schedule_of_a_layer_has_the_values_of_numpy_whichever_group_it_ends_in(
    cluster: cl.Cluster, dtype: str
) -> None:
    random, wire = np.random.default_rng(7), np.float16 if dtype == "fp16" else np.float32
    for workload in layers(cluster.ranks, dtype):
        program, output = workload.program, workload.program.outputs[0]
        given = {n: random.integers(-2, 3, program[n].shape).astype(wire) for n in ("x", "w", "b", "r")}
        wide = {name: value.astype(np.float64) for name, value in given.items()}
        kept = drop_by_hand("drop", 0.1, program["drop"].shape)
        expected = np.where(kept, (wide["x"] @ wide["w"] + wide["b"]) / 0.9, 0.0) + wide["r"]
        for name, schedule in workload.schedules.items():
            found = cluster.run(schedule, given)[output].astype(np.float64)
            eps = FP16.eps if dtype == "fp16" else FP32.eps
            np.testing.assert_allclose(found, expected, rtol=4 * eps, atol=32 * eps, err_msg=name)
