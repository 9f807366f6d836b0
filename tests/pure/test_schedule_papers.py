"""The paper's schedules, step by step as in design §4a: each is proven, and equal ways have equal keys."""

from __future__ import annotations

import pytest
from programs import adam, lamb, pipeline, self_attention

import coconet_lab as cl
from coconet_lab.errors import IllegalTransform


def epilogues():
    base = cl.Schedule(self_attention())
    sliced = base.split("total").reorder("total", past="out")
    fused = sliced.fuse("total_rs", "out", name="fused")
    return {
        "MM-AR-C": base.fuse("add_1", "out"),
        "one-shot": base.fuse("total", "out"),
        "MM-RS-C-AG": sliced,
        "reduce and broadcast": base.split("total", into="reduce_broadcast"),
        "columns": base.split("total", dim=2).reorder("total", past="out"),
        "fuse(RS-C-AG)": fused,
        "ol(MM,fuse(RS-C-AG))": fused.overlap("layer", "fused"),
    }


def optimizers(make):
    def build():
        program = make()
        out = program.outputs[0]
        state = ("m", "v", "w") if make is adam else ("m", "v")
        start = cl.Schedule(program).split("total")
        sliced = start.reorder("total", past=out).as_slice(*state).dead()
        return {
            "AR-Opt": cl.Schedule(program).fuse("G", out),
            "RS-Opt-AG": sliced,
            "fuse(RS-Opt-AG)": sliced.fuse("total_rs", out),
            "whole state": start.reorder("total", past=out).fuse("total_rs", out),
        }

    return build


def pipelines():
    base = cl.Schedule(pipeline())
    sent = base.split("sent")
    sliced = base.split("total").reorder("total", past="sent")
    return {
        "MegatronLM": base.fuse("add_1", "out"),
        "AR-C-P2P-AG": sent,
        "RS-C-P2P-AG": sliced,
        "from AR-C-P2P-AG": sent.split("total").reorder("total", past="sent_part"),
        "ol(RS,fuse(C-P2P),AG)": sliced.fuse("add_1", "sent_part", name="cp").overlap("total_rs", "cp", "sent"),
    }


SCHEDULES = {
    "epilogue": epilogues, "adam": optimizers(adam), "lamb": optimizers(lamb), "pipeline": pipelines,
}  # fmt: skip


@pytest.mark.parametrize("family", SCHEDULES)
@pytest.mark.parametrize("full", [False, True], ids=["small", "full"])
def test_every_schedule_of_the_paper_is_proven(family, full):
    for name, schedule in SCHEDULES[family]().items():
        proof = schedule.check(full=full)
        assert set(proof.inexact) <= {"u_norm", "w_norm"}, name
        assert cl.Schedule.from_json(schedule.to_json()) == schedule


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_a_schedule_written_for_4_ranks_is_proven_on_others(ranks):
    for schedule in epilogues().values():
        schedule.with_ranks(ranks).check()


def test_two_ways_to_the_pipelines_slices_have_one_key():
    found = pipelines()
    assert found["RS-C-P2P-AG"].key() == found["from AR-C-P2P-AG"].key()


def test_optimizer_state_is_sliced_only_after_the_gather_has_moved():
    with pytest.raises(IllegalTransform):
        cl.Schedule(adam()).split("total").as_slice("m", "v", "w")


def test_lists_of_tensors_are_proven_with_their_norms():
    shapes = [(64, 3), (5,), (2000,)]
    g = cl.tensor("g", cl.FP32, shapes, cl.Local)
    w = cl.tensor("w", cl.FP32, shapes, cl.Replicated)
    mean = cl.div(cl.all_reduce(g, name="total"), cl.GROUP.size, name="G")
    w1 = cl.update(w, w - cl.norm(w) / cl.norm(mean, name="n") * mean, name="w1")
    s = cl.Schedule(cl.program("lists", outputs=[w1], ranks=4)).split("total").reorder("total", past="w1")
    for schedule in (s, s.as_slice("w"), s.fuse("total_rs", "w1")):
        assert "at small size" in repr(schedule.check())


def test_a_schedule_shows_its_plan_ledger_and_code():
    s = epilogues()["fuse(RS-C-AG)"]
    assert s.plan().ranks == 4
    assert s.ledger() == s.plan().ledger()
    assert "__global__" in s.code("cuda")
    assert "numpy" in s.code("cpu")
