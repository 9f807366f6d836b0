"""Bytes, launches and FLOPs, counted: the numbers of the explorer's mock-up, and each rule of counting by itself."""

from __future__ import annotations

import pytest

import coconet_lab as cl
from coconet_lab import FP16, FP32, Local, Replicated, Sliced
from coconet_lab.kernels.lower import lower
from coconet_lab.workloads import pipeline, self_attention

MIB = 2**20
VALUE = 48 * MIB  # FP16[8, 1024, 3072]
ROW = 2 * 3072  # FP16[3072], the bias: the mock-up leaves it out


@pytest.fixture(scope="module")
def ledgers():
    # The mock-up slices dim 2; the bytes are those of any dim that divides.
    workload = self_attention(8, 1024, 3072, 4, "fp16")
    s = cl.Schedule(workload.program)
    sliced = s.split("total").reorder("total", past="out")
    programs = {
        "MM-AR-C, unfused": s,
        "MegatronLM": s.fuse("add_1", "out"),
        "MM-RS-C-AG": sliced,
        "fuse total_rs … out": sliced.fuse("total_rs", "out"),
        "ol(MM,fuse(RS-C-AG))": sliced.fuse("total_rs", "out").overlap("layer", "fused"),
    }
    return {name: lower(schedule.program).ledger() for name, schedule in programs.items()}


def test_the_wire_carries_72_mib_whatever_the_schedule(ledgers):
    assert {ledger.wire_bytes for ledger in ledgers.values()} == {72 * MIB}


def test_memory_traffic_is_the_mock_ups_and_the_bias(ledgers):
    shown = {"MM-AR-C, unfused": 496.5, "MegatronLM": 304.5, "MM-RS-C-AG": 268.5, "fuse total_rs … out": 172.5}
    assert {name: (ledgers[name].memory_bytes - ROW) / MIB for name in shown} == shown


def test_an_overlap_reads_the_weights_again_for_each_chunk(ledgers):
    # The mock-up counts 172.5 MiB for the overlap too; but each of the four chunks of the matmul reads its 4.5 MiB of
    # weights, and each of the kernel's the bias.
    plain, overlapped = ledgers["fuse total_rs … out"], ledgers["ol(MM,fuse(RS-C-AG))"]
    assert overlapped.memory_bytes - plain.memory_bytes == 3 * (4.5 * MIB + ROW)


def test_launches_and_collectives_are_the_mock_ups(ledgers):
    assert [ledger.launches for ledger in ledgers.values()][:4] == [5, 3, 6, 2]
    assert [ledger.collectives for ledger in ledgers.values()] == [1, 1, 2, 2, 2]
    # A chunk is a launch; the mock-up counts stages.
    assert ledgers["ol(MM,fuse(RS-C-AG))"].launches == 2 * 4


def test_held_is_the_mock_ups_all_buffers_that_an_engine_reserves(ledgers):
    # x 12, w 4.5, r 48 and every stored value of 48 or, sliced, 12 MiB; the 6 KiB bias vanishes in the rounding.
    held = {name: round(ledger.held_bytes / MIB, 1) for name, ledger in ledgers.items()}
    assert list(held.values()) == [304.5, 208.5, 208.5, 160.5, 160.5]


def test_the_matmul_counts_2mnk_of_what_one_rank_computes(ledgers):
    matmul = 2 * (8 * 1024) * 3072 * (3072 // 4)
    elements = 8 * 1024 * 3072
    assert ledgers["MM-AR-C, unfused"].flops == matmul + 3 * elements
    # On slices a rank computes a quarter of the epilogue, and adds three peers' parts to its own itself.
    assert ledgers["fuse total_rs … out"].flops == matmul + (3 + 3) * elements // 4


def one(*outputs, ranks=4, groups=1):
    (entry,) = lower(cl.program("p", outputs=list(outputs), ranks=ranks, groups=groups)).entries
    return entry


@pytest.mark.parametrize(
    ("make", "parts"),
    [(cl.all_reduce, 6 / 4), (cl.reduce_scatter, 3 / 4), (cl.reduce, 1), (cl.broadcast, 1)],
    ids=["all_reduce", "reduce_scatter", "reduce", "broadcast"],
)
def test_a_library_collective_sends_as_a_ring_does(make, parts):
    assert one(make(cl.tensor("x", FP32, (1024,), Local))).link_bytes == {"group": 4096 * parts}


def test_gathers_all_to_alls_and_sends_count_what_leaves_a_rank():
    x = cl.tensor("x", FP32, (1024, 4), Sliced(0))
    assert one(cl.all_gather(x)).link_bytes == {"group": 3 * 4096}
    assert one(cl.all_to_all(x, split=1, concat=0)).link_bytes == {"group": 3 * 1024}
    assert one(cl.send(x, to=cl.GROUP + 1), ranks=8, groups=2).link_bytes == {"between groups": 4096}


def test_one_rank_sends_nothing():
    x = cl.tensor("x", FP32, (1024,), Local)
    s = cl.Schedule(cl.program("p", outputs=[cl.abs(cl.all_reduce(x, name="t"), name="o")], ranks=1))
    for schedule in (s, s.fuse("t", "o"), s.split("t"), s.split("t").reorder("t", past="o").fuse("t_rs", "o")):
        assert lower(schedule.program).ledger().wire_bytes == 0


def test_the_one_shot_kernel_reads_every_peers_copy():
    x = cl.tensor("x", FP32, (1024,), Local)
    s = cl.Schedule(cl.program("p", outputs=[cl.abs(cl.all_reduce(x, name="t"), name="o")], ranks=4)).fuse("t", "o")
    (entry,) = lower(s.program).entries
    assert entry.link_bytes == {"group": 3 * 4096}
    assert (entry.bytes_read, entry.bytes_written) == (4 * 4096, 4096)


def test_a_reduction_across_ranks_sends_its_partials():
    x = cl.tensor("x", FP32, (4, 8), Sliced(1))
    assert one(cl.sum(x, dim=1)).link_bytes == {"group": 3 * 8 * 4}
    assert one(cl.sum(x, dim=0)).link_bytes == {}


def test_the_pipeline_sends_a_quarter_between_groups_once_it_sends_slices():
    found = {n: lower(s.program).ledger() for n, s in pipeline(8, 1024, 3072, 8, 2).schedules.items()}
    sent = {name: ledger.between_groups_bytes for name, ledger in found.items()}
    assert sent["MegatronLM"] == VALUE
    assert {sent[n] for n in ("AR-C-P2P-AG", "RS-C-P2P-AG", "ol(RS,fuse(C-P2P),AG)")} == {VALUE // 4}
    # Group 0 reduces and sends, group 1 gathers: the ledger shows the rank with most of each.
    assert found["RS-C-P2P-AG"].wire_bytes == 36 * MIB + 12 * MIB
    assert found["MegatronLM"].wire_bytes == 72 * MIB + VALUE


def test_buffers_live_from_their_first_entry_to_their_last_and_results_to_the_end():
    x, w = cl.tensor("x", FP32, (8,), Replicated), cl.tensor("w", FP32, (8,), Replicated)
    a = cl.mul(x, 2, name="a")
    b = cl.exp(a, name="b")
    plan = lower(cl.program("p", outputs=[cl.log(b, name="c"), cl.update(w, b, name="w1")], ranks=2))
    lives = {buffer.value: (buffer.first, buffer.last) for buffer in plan.buffers.values()}
    assert (lives["x"], lives["a"]) == ((0, 0), (0, 1))
    assert lives["w"] == (0, len(plan.entries) - 1)
    assert lives["c"][1] == len(plan.entries) - 1


def test_chunks_add_up_to_the_stage():
    workload = self_attention(4, 10, 8, 4)
    plain, cut = (lower(workload.schedules["ol(MM,fuse(RS-C-AG))"].program, chunks=c).entries for c in (1, 3))
    whole, parts = plain[-1], [e for e in cut if e.name == "fused"]
    assert whole.chunk is None
    assert sum(e.bytes_written for e in parts) == whole.bytes_written
    assert sum(e.link_bytes["group"] for e in parts) == whole.link_bytes["group"]
    assert sum(e.flops for e in parts) == whole.flops


def test_a_padded_block_counts_as_the_largest_rank_has_it():
    x = cl.tensor("x", FP16, (10,), Sliced(0))
    entry = one(cl.mul(x, 2))
    assert (entry.bytes_read, entry.bytes_written, entry.flops) == (6, 6, 3)
