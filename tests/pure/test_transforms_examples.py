"""The worked examples of the contract, line by line: exactly those operations, layouts and names."""

import programs
import pytest

from coconet_lab.ir.groups import group_view
from coconet_lab.ir.program import Overlap as Annotation
from coconet_lab.ir.updates import is_in_place_gather
from coconet_lab.transforms.as_slice import AsSlice
from coconet_lab.transforms.dead import Dead
from coconet_lab.transforms.fuse import Fuse
from coconet_lab.transforms.overlap import Overlap
from coconet_lab.transforms.reorder import Reorder
from coconet_lab.transforms.split import Split


def after(program, *steps):
    for step in steps:
        program = step(program)
    return program


def text(program):
    """``name = kind(operands) layout``, with L, R, S(d) for the layouts, of every operation but inputs."""
    found = []
    for name, op in program.ops.items():
        kind = program.types[name]
        layout = f"S({kind.layout.dim})" if kind.layout.is_sliced else kind.layout.kind[0]
        group = f" in group {kind.group}" if kind.group else ""
        if name not in program.inputs:
            operands = ", ".join(s for s in op.sources if s != "seed")
            dim = f", {op.dim}" if op.kind in ("ReduceScatter", "LocalSlice") else ""
            found.append(f"{name} = {op.kind}({operands}{dim}) {layout}{group}")
    return found


EPILOGUE = [
    "layer = MatMul(x, w) L",
    "total = AllReduce(layer) R",
    "add_1 = Add(total, b) R",
    "drop = Dropout(add_1) R",
    "out = Add(drop, r) R",
]
SCATTERED = ["layer = MatMul(x, w) L", "total_rs = ReduceScatter(layer, 0) S(0)"]
PAST_OUT = [
    *SCATTERED,
    "add_1 = Add(total_rs, b) S(0)",
    "drop = Dropout(add_1) S(0)",
    "out_part = Add(drop, r) S(0)",
    "out = AllGather(out_part) R",
]
PAST_DROP = [
    *SCATTERED,
    "add_1 = Add(total_rs, b) S(0)",
    "drop_part = Dropout(add_1) S(0)",
    "drop = AllGather(drop_part) R",
    "out = Add(drop, r) R",
]
SPLIT, PAST = Split("total"), Reorder("total", ("out",))


def test_the_epilogue_and_its_split():
    epilogue = programs.self_attention(batch=8, ranks=4)
    assert text(epilogue) == EPILOGUE
    assert text(SPLIT(epilogue)) == [*SCATTERED, "total = AllGather(total_rs) R", *EPILOGUE[2:]]


def test_the_epilogue_past_out_and_past_drop():
    split = SPLIT(programs.self_attention())
    direct = PAST(split)
    assert text(direct) == PAST_OUT
    halfway = Reorder("total", ("drop",))(split)
    assert text(halfway) == PAST_DROP
    assert Reorder("drop", ("out",))(halfway).key() == direct.key()
    assert halfway.key() != direct.key()


def test_the_epilogue_with_drop_as_an_output():
    found = after(programs.self_attention(outputs=("drop", "out")), SPLIT, PAST)
    assert text(found) == [
        *SCATTERED,
        "add_1 = Add(total_rs, b) S(0)",
        "drop_part = Dropout(add_1) S(0)",
        "drop = AllGather(drop_part) R",
        "out_part = Add(drop_part, r) S(0)",
        "out = AllGather(out_part) R",
    ]


def test_the_epilogue_fused_and_overlapped():
    fused = after(programs.self_attention(), SPLIT, PAST, Fuse(("total_rs", "out"), "fused"))
    view = group_view(fused, "fused")
    assert view.members == ("total_rs", "add_1", "drop", "out_part", "out")
    assert (view.reads, view.written) == (("layer", "b", "r"), ("out",))
    assert Overlap(("layer", "fused"))(fused).overlaps == (Annotation("ol", ("layer", "fused")),)
    one_shot = Fuse(("total", "out"))(programs.self_attention())
    assert group_view(one_shot, "fused").form == "one-shot"
    assert one_shot.fusions[0].members == ("total", "add_1", "drop", "out")
    assert Fuse(("add_1", "out"))(programs.self_attention()).fusions[0].members == ("add_1", "drop", "out")


ADAM_PAST = Reorder("total", ("p1",))
ADAM_SLICE = AsSlice(("m", "v", "w"))


def test_adam_past_p1():
    found = after(programs.adam(), SPLIT, ADAM_PAST)
    lines = text(found)
    assert "total_rs = ReduceScatter(g, 0) S(0)" in lines
    assert "G = Div(cast_1) S(0)" in lines
    for tensor in "mvwp":
        name = f"{tensor}1"
        part = next(line for line in lines if line.startswith(f"{name}_part = Update({tensor}, "))
        assert part.endswith("S(0)")
        assert lines[lines.index(part) + 1] == f"{name} = AllGather({name}_part) R"
        assert is_in_place_gather(found, name)
        assert not found.readers[name]
    assert [line for line in lines if line.startswith(("mul_1 ", "mul_3 "))] == [
        "mul_1 = Mul(b1, m) R",
        "mul_3 = Mul(b2, v) R",
    ]
    readers = {name: found.readers[f"{name}_part"] for name in ("m1", "v1", "w1")}
    assert all(len(names) == 2 for names in readers.values()), "the gather, and the operation that reads on"


def test_adam_as_slice_and_dead():
    reordered = after(programs.adam(), SPLIT, ADAM_PAST)
    found = ADAM_SLICE(reordered)
    assert {"mul_1 = Mul(b1, m) S(0)", "mul_3 = Mul(b2, v) S(0)"} <= set(text(found))
    assert [is_in_place_gather(found, n) for n in ("m1", "v1", "w1", "p1")] == [False, False, False, True]
    assert "'p1', an output, would become Sliced(0)" in ADAM_SLICE.why_not(programs.adam()).found
    living = Dead()(found)
    assert set(found.ops) - set(living.ops) == {"m1", "v1", "w1"}


@pytest.mark.parametrize("steps", [(ADAM_SLICE, Dead()), ()])
def test_adam_fused(steps):
    found = after(programs.adam(), SPLIT, ADAM_PAST, *steps, Fuse(("total_rs", "p1")))
    view = group_view(found, "fused")
    assert sorted(view.reads) == ["g", "m", "v", "w"]
    assert view.written == ("m1_part", "v1_part", "w1_part", "p1")
    outside = set(found.ops) - set(found.inputs) - set(view.members)
    assert outside == (set() if steps else {"m1", "v1", "w1"})


def test_adam_fused_before_the_split_reaches_the_same_program():
    direct = after(programs.adam(), SPLIT, ADAM_PAST, ADAM_SLICE, Dead(), Fuse(("total_rs", "p1")))
    ar_opt = Fuse(("G", "p1"))(programs.adam())
    rs_opt_ag = after(ar_opt, SPLIT, Reorder("total", ("fused",)), ADAM_SLICE, Dead())
    assert Fuse(("total_rs", "fused", "p1"))(rs_opt_ag).key() == direct.key()


SENT_SLICED = [
    *EPILOGUE,
    "out_part = LocalSlice(out, 0) S(0)",
    "sent_part = Send(out_part) S(0) in group 1",
    "sent = AllGather(sent_part) R in group 1",
]
SENT_SCATTERED = [
    *SCATTERED,
    "add_1 = Add(total_rs, b) S(0)",
    "drop = Dropout(add_1) S(0)",
    "out = Add(drop, r) S(0)",
    "sent_part = Send(out) S(0) in group 1",
    "sent = AllGather(sent_part) R in group 1",
]


def test_the_pipeline_both_ways():
    pipeline = programs.pipeline(ranks=8, groups=2)
    assert text(pipeline) == [*EPILOGUE, "sent = Send(out) R in group 1"]
    assert Fuse(("add_1", "out"))(pipeline).fusions[0].members == ("add_1", "drop", "out")
    sliced = Split("sent")(pipeline)
    assert text(sliced) == SENT_SLICED
    direct = after(pipeline, SPLIT, Reorder("total", ("sent",)))
    assert text(direct) == SENT_SCATTERED
    other = after(sliced, SPLIT, Reorder("total", ("sent_part",)))
    assert text(other) == SENT_SCATTERED
    assert other.key() == direct.key()
    assert other.moved["out_part"].now == ("out",)


def test_the_pipeline_overlapped():
    steps = (
        SPLIT,
        Reorder("total", ("sent",)),
        Fuse(("add_1", "sent_part"), "cp"),
        Overlap(("total_rs", "cp", "sent")),
    )
    found = after(programs.pipeline(), *steps)
    assert found.fusion_named["cp"].members == ("add_1", "drop", "out", "sent_part")
    assert found.overlaps == (Annotation("ol", ("total_rs", "cp", "sent")),)


def test_lamb_is_one_group_with_two_phases():
    found = after(
        programs.lamb(), SPLIT, Reorder("total", ("w1",)), AsSlice(("m", "v")), Dead(), Fuse(("total_rs", "w1"))
    )
    view = group_view(found, "fused")
    assert set(found.ops) - set(found.inputs) == set(view.members)
    assert (len(view.phases), view.written) == (2, ("m1_part", "v1_part", "w1"))
