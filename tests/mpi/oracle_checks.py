"""Runs on a cluster held to the oracle, and small questions that several files ask."""

from __future__ import annotations

from typing import Any

import numpy as np

import coconet_lab as cl
from coconet_lab.errors import CoconetError
from coconet_lab.ir import oracle
from coconet_lab.ir.exact import integer_inputs, within_tolerance
from coconet_lab.ir.inputs import proof_inputs
from coconet_lab.ir.rounding import allowance, mismatch
from coconet_lab.ir.updates import updated_inputs
from coconet_lab.workloads import Workload


def made(name: str, dtype: str) -> Workload:
    """A workload at an odd, small size: blocks of unequal length, extents that are no power of two."""
    make = getattr(cl.workloads, name)
    if name in ("sgd", "adam", "lamb"):
        return make(elements=1003, ranks=4, dtype=dtype)
    return make(batch=4, sequence=3, hidden=20, ranks=4, dtype=dtype)


def exact_inputs(program: cl.Program, seed: int = 3) -> dict[str, Any]:
    """Small whole numbers where they lead to sums across ranks: these are then equal to the last bit in any order."""
    return proof_inputs(program, integer_inputs(program), seed)


def assert_equal(found: np.ndarray, expected: np.ndarray, name: str, tolerance: float) -> None:
    assert found.dtype == expected.dtype, name
    assert found.shape == expected.shape, name
    at = mismatch(found, expected, tolerance)
    assert at is None, f"{name} at {at}: {found[at]}, not {expected[at]}"


def assert_equals_oracle(run: Any, program: cl.Program, inputs: dict[str, Any]) -> None:
    """Outputs and state of a run as the unscheduled program means them, within the tolerance that §4a allows."""
    expected = oracle.run(program, inputs)
    loose = within_tolerance(expected)
    last = updated_inputs(program)
    assert set(run.outputs) == set(program.outputs)
    assert set(run.state) == set(last)
    for values, wanted in ((run.outputs, {n: n for n in program.outputs}), (run.state, last)):
        for name, value in wanted.items():
            whole = expected.output(value)
            tolerance = allowance(whole, program.types[value].dtype) if value in loose else 0.0
            assert_equal(values[name], whole, name, tolerance)


def is_usable(cluster: cl.Cluster) -> bool:
    g = cl.tensor("g", cl.FP32, (5,), cl.Local)
    program = cl.program("sum", outputs=[cl.all_reduce(g, name="total")], ranks=4)
    return cluster.run(program, {"g": np.ones((4, 5), np.float32)})["total"].tolist() == [4.0] * 5


def has_four_lines(error: CoconetError) -> bool:
    labels = [line.split()[0] for line in str(error).splitlines()[1:]]
    return labels == ["rule:", "in:", "try:"]
