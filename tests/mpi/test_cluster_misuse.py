"""Clusters used wrongly or by several at once: the right numbers or one error of four lines, and usable afterwards."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from oracle_checks import has_four_lines

import coconet_lab as cl
from coconet_lab.errors import ClusterError, CoconetError, RankError

STRANGE = [3.5, "x", [], {}, object(), np.ones(3), float("nan"), -1, b"x", 10**400]


@pytest.fixture(scope="module")
def cluster() -> Iterator[cl.Cluster]:
    with cl.Cluster(ranks=2, backend="cpu", deadline_s=60) as started:
        yield started


def summed(elements: int, ranks: int = 2) -> tuple[cl.Schedule, dict[str, np.ndarray], np.ndarray]:
    """A fused sum across ranks of so many elements, its inputs, and what NumPy makes of them."""
    x = cl.tensor("x", cl.FP32, (elements,), cl.Local)
    r = cl.tensor("r", cl.FP32, (elements,), cl.Replicated)
    out = cl.add(cl.all_reduce(x, name="total"), r, name="out")
    program = cl.program("summed", inputs=[x, r], outputs=[out], ranks=ranks)
    schedule = cl.Schedule(program).split("total").reorder("total", past="out").fuse("total_rs", "out")
    given = {
        "x": np.arange(ranks * elements, dtype=np.float32).reshape(ranks, elements),
        "r": np.ones(elements, np.float32),
    }
    return schedule, given, given["x"].sum(axis=0) + 1


def is_right(cluster: cl.Cluster, elements: int = 8) -> bool:
    schedule, given, expected = summed(elements)
    return np.array_equal(cluster.run(schedule, given)["out"], expected)


def test_a_program_runs_again_with_other_shapes_none_and_one_element_included(cluster: cl.Cluster) -> None:
    assert all(is_right(cluster, elements) for elements in (8, 0, 1, 5, 1000003, 8))


def test_threads_that_share_a_cluster_each_get_their_own_values(cluster: cl.Cluster) -> None:
    wrong: list[Any] = []

    def user(elements: int) -> None:
        try:
            wrong.extend(elements for _ in range(5) if not is_right(cluster, elements))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=user, args=(elements,)) for elements in (8, 9, 10, 11)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not wrong


def test_a_fork_is_refused_the_ranks_and_leaves_them_to_their_process(cluster: cl.Cluster) -> None:
    assert is_right(cluster)
    context = multiprocessing.get_context("fork")
    said = context.Queue()

    def child() -> None:
        for use in (lambda: is_right(cluster), cluster.restart, lambda: cluster.client):
            try:
                use()
                said.put("used")
            except ClusterError as error:
                said.put(str(error))
        cluster.stop()
        said.put("stopped")

    process = context.Process(target=child)
    process.start()
    answers = [said.get(timeout=30) for _ in range(4)]
    process.join(timeout=30)
    assert all("forked from it" in answer and len(answer.splitlines()) == 4 for answer in answers[:3]), answers
    assert answers[3] == "stopped"
    assert is_right(cluster)


@pytest.mark.parametrize("argument", ["repeats", "warmup", "seed", "name", "deadline_s", "inputs", "x", "per_rank"])
def test_a_strange_argument_of_a_run_is_refused_before_the_ranks_see_it(cluster: cl.Cluster, argument: str) -> None:
    schedule, given, _ = summed(8)
    refused = []
    for value in STRANGE:
        try:
            if argument == "x":
                cluster.run(schedule, {**given, "x": value})
            elif argument == "per_rank":
                cluster.call(len, per_rank=value)
            elif argument == "inputs":
                cluster.run(schedule, value)
            else:
                cluster.run(schedule, given, **{argument: value})
        except CoconetError as error:
            refused.append(error)
    assert refused
    for error in refused:
        assert not isinstance(error, RankError), str(error)
        assert has_four_lines(error)
    assert is_right(cluster)


def test_strange_comparisons_steps_and_calls_are_refused(cluster: cl.Cluster) -> None:
    schedule, given, _ = summed(8)
    resident = cluster.load(schedule, given)
    for use in (
        lambda: cluster.compare({3: schedule}),
        lambda: cluster.compare({"a": schedule}, baseline=np.ones(3)),
        lambda: cluster.compare({"a": schedule}, repeats="x"),
        lambda: resident.step(times=2.5),
        lambda: resident.read(object()),
        lambda: cluster.call(None),
        lambda: cluster.log(2),
        lambda: cluster.run(schedule, given).on_rank("x"),
    ):
        with pytest.raises(CoconetError) as caught:
            use()
        assert not isinstance(caught.value, RankError)
        assert has_four_lines(caught.value)
    resident.close()
    assert is_right(cluster)


@pytest.mark.parametrize("arguments", [{"nodes": 3}, {"options": {"partition": "gpu"}}])
def test_what_only_a_profile_can_do_is_refused_without_one(arguments: dict[str, Any]) -> None:
    with pytest.raises(ClusterError, match=r"without a profile|no option") as caught:
        cl.Cluster(ranks=2, backend="cpu", **arguments)
    assert has_four_lines(caught.value)
