"""Plans for ranks on two hosts, on threads that see the memory of their own host alone, against the oracle."""

from __future__ import annotations

import programs
import pytest
from engine_checks import check_on_threads

import coconet_lab as cl
from coconet_lab.kernels.lower import lower


def kinds(program):
    return [getattr(entry, "kind", type(entry).__name__) for entry in lower(program, hosts=2).entries]


@pytest.mark.parametrize("elements", [1001, 3])
def test_fused_adam_combines_inside_hosts_and_then_along_the_rail(elements):
    s = cl.Schedule(programs.adam(elements, 4)).split("total").reorder("total", "p1").as_slice("m", "v", "w").dead()
    program = s.fuse("total_rs", "p1").program
    assert {"ReduceScatter", "AllGather", "Launch"} <= set(kinds(program))
    check_on_threads(program, hosts=2, tolerance=1e-3)


def test_norms_that_cross_hosts_end_their_kernel():
    program = programs.lamb(ranks=4, shape=[(3, 5), (1030, 2), (7,)])
    s = cl.Schedule(program).fuse("G", "w1").split("total").reorder("total", "fused").as_slice("m", "v").dead()
    program = s.fuse("total_rs", "fused", "w1").program
    assert "Reduction" in kinds(program)
    check_on_threads(program, hosts=2, tolerance=1e-5)


def test_attention_along_an_inner_dim_spans_hosts():
    s = cl.Schedule(programs.self_attention(4, 8, 16, ranks=4)).split("total", dim=1).reorder("total", "out")
    check_on_threads(s.fuse("total_rs", "out", name="fused").program, hosts=2, tolerance=5e-3)


def test_groups_on_hosts_of_their_own_send_by_library():
    program = programs.pipeline(4, 8, 16, ranks=4, groups=2)
    s = cl.Schedule(program).split("total").reorder("total", "sent").fuse("add_1", "sent_part", name="cp")
    check_on_threads(s.program, hosts=2, tolerance=5e-3)
