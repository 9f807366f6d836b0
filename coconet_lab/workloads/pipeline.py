"""A transformer layer's output sent to the next group of ranks: pipeline parallelism (paper §4, Fig. 7)."""

from __future__ import annotations

from collections.abc import Callable

from coconet_lab.lang.build import program
from coconet_lab.lang.communicate import GROUP, send
from coconet_lab.schedule.schedule import Schedule
from coconet_lab.workloads.epilogues import epilogue
from coconet_lab.workloads.workload import Workload


def _rs_c_p2p_ag(s: Schedule) -> Schedule:
    return s.split("total").reorder("total", past="sent")


_RECIPES: dict[str, Callable[[Schedule], Schedule]] = {
    "naive": lambda s: s,
    "MegatronLM": lambda s: s.fuse("add_1", "out"),
    "AR-C-P2P-AG": lambda s: s.split("sent").fuse("add_1", "out"),
    "RS-C-P2P-AG": lambda s: _rs_c_p2p_ag(s).fuse("add_1", "out"),
    "ol(RS,fuse(C-P2P),AG)": lambda s: (
        _rs_c_p2p_ag(s).fuse("add_1", "sent_part", name="cp").overlap("total_rs", "cp", "sent")
    ),
}


def pipeline(
    batch: int = 8,
    sequence: int = 1024,
    hidden: int = 3072,
    ranks: int = 4,
    groups: int = 2,
    dtype: str = "fp16",
) -> Workload:
    """The self-attention epilogue of group 0, sent to group 1.

    Examples
    --------
    >>> import coconet_lab as cl
    >>> cl.workloads.pipeline(batch=4, sequence=8, hidden=16, ranks=4, groups=2).program["sent"].type
    FP16[4, 8, 16] Replicated group 1
    """
    inputs, out = epilogue(batch, sequence, hidden, hidden, dtype)
    sent = send(out, to=GROUP + 1, name="sent")
    made = program("pipeline", inputs=inputs, outputs=[sent], ranks=ranks, groups=groups)
    return Workload("pipeline", dtype, made, _RECIPES)
