"""Plans and kernels of the paper's schedules as golden text."""

from __future__ import annotations

from dataclasses import replace

import pytest

import coconet_lab as cl
from coconet_lab import FP32, Replicated, Sliced
from coconet_lab.errors import ProgramError
from coconet_lab.ir.program import Fusion
from coconet_lab.kernels.lower import lower
from coconet_lab.kernels.plan_text import kernel_text, plan_text
from coconet_lab.workloads import adam, lamb, pipeline, self_attention

CASES = {
    "self_attention naive": (lambda: self_attention(), "naive"),
    "self_attention overlapped": (lambda: self_attention(), "ol(MM,fuse(RS-C-AG))"),
    "adam AR-Opt": (lambda: adam(1000, 4), "AR-Opt"),
    "adam mixed fused": (lambda: adam(1000, 4, "fp16"), "fuse(RS-Opt-AG)"),
    "lamb of a list fused": (lambda: lamb([(3, 4), (2000,), (5,)], 4, "fp16"), "fuse(RS-Opt-AG)"),
    "lamb of a list sliced": (lambda: lamb([(3, 4), (2000,), (5,)], 4), "RS-Opt-AG"),
    "pipeline split send": (lambda: pipeline(ranks=8), "AR-C-P2P-AG"),
    "pipeline overlapped": (lambda: pipeline(ranks=8), "ol(RS,fuse(C-P2P),AG)"),
}


@pytest.mark.parametrize("case", CASES)
def test_plan(case, golden):
    make, schedule = CASES[case]
    plan = lower(make().schedules[schedule].program)
    golden("\n\n".join([plan_text(plan), *map(kernel_text, plan.kernels())]) + "\n")


def test_every_entry_comes_after_what_it_needs():
    for make, schedule in CASES.values():
        for at, entry in enumerate(lower(make().schedules[schedule].program).entries):
            assert all(needed < at for needed in entry.after)


def test_no_users_name_is_a_buffers():
    x = cl.tensor("b1; rm -rf /", FP32, (4,), Replicated)
    plan = lower(cl.program("p", outputs=[cl.mul(x, 2, name='"\n')], ranks=2))
    assert list(plan.buffers) == ["b0", "b1"]


def test_groups_that_wait_for_each_other_have_no_order():
    x = cl.tensor("x", FP32, (4,), Sliced(0))
    a = cl.mul(x, 2, name="a")
    b = cl.sum(a, name="b")
    program = cl.program("p", outputs=[cl.add(a, b, name="c")], ranks=2)
    circular = replace(program, fusions=(Fusion("g", ("a", "c")),))
    with pytest.raises(ProgramError, match="no order runs"):
        lower(circular)
