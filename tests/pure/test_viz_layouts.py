"""Layout pictures: the block every rank holds, what a collective sends, and what is left out."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
import viz_programs as programs

import coconet_lab as cl
from coconet_lab import ProgramError, TensorType
from coconet_lab.ir import ops as o
from coconet_lab.viz.layouts import collective_svg, index_text, layout_svg, sent_text, shown_ranks
from coconet_lab.viz.palette import LIGHT

SVG = "{http://www.w3.org/2000/svg}"
CUBE = TensorType(cl.FP16, (8, 1024, 3072), cl.Local)


def texts(svg: str) -> list[str]:
    return ["".join(element.itertext()) for element in ET.fromstring(svg).iter(f"{SVG}text")]


def filled(svg: str, colour: str) -> list[ET.Element]:
    return [element for element in ET.fromstring(svg).iter() if element.get("fill") == colour]


def test_every_rank_of_a_sliced_value_shows_its_index():
    svg = layout_svg(CUBE.with_layout(cl.Sliced(2)), ranks=4)
    wanted = ["[:, :, 0:768]", "[:, :, 768:1536]", "[:, :, 1536:2304]", "[:, :, 2304:3072]"]
    assert [text for text in texts(svg) if text.startswith("[")] == wanted
    assert len(filled(svg, LIGHT.sliced.fill)) == 4 * 3


@pytest.mark.parametrize(("shape", "tag", "each"), [((12,), "rect", 1), ((4, 8), "rect", 1), ((2, 4, 8), "polygon", 3)])
def test_a_value_is_a_bar_a_rectangle_or_a_cuboid(shape, tag, each):
    drawn = filled(layout_svg(TensorType(cl.FP32, shape, cl.Replicated), 4), LIGHT.replicated.fill)
    assert [element.tag for element in drawn] == [f"{SVG}{tag}"] * 4 * each


def test_the_filled_part_of_a_bar_is_the_block():
    svg = layout_svg(TensorType(cl.FP32, (10,), cl.Sliced(0)), 4)
    widths = [float(element.get("width")) for element in filled(svg, LIGHT.sliced.fill)]
    assert widths == pytest.approx([37.8, 37.8, 37.8, 12.6], abs=0.11)


def test_a_rank_without_elements_is_an_empty_frame():
    kind = TensorType(cl.FP32, (5,), cl.Sliced(0))
    svg = layout_svg(kind, 4)
    assert [index_text(kind, rank, 4) for rank in range(4)] == ["[0:2]", "[2:4]", "[4:5]", "empty"]
    assert len(filled(svg, LIGHT.sliced.fill)) == 3


def test_local_and_replicated_values_say_what_a_rank_holds():
    local, replicated = texts(layout_svg(CUBE, 4)), texts(layout_svg(CUBE.with_layout(cl.Replicated), 4))
    assert [t for t in local if t.startswith("Σ")] == ["Σ part 0", "Σ part 1", "Σ part 2", "Σ part 3"]
    assert local.count("its own values") == replicated.count("whole") == replicated.count("same values") == 4


def test_beyond_eight_ranks_the_middle_is_left_out():
    assert shown_ranks(8) == list(range(8))
    assert shown_ranks(16) == [0, 1, 2, None, 15]
    seen = texts(layout_svg(CUBE.with_layout(cl.Sliced(1)), 16))
    assert "… 12 more" in seen
    assert [t for t in seen if t.startswith("rank")] == ["rank 0", "rank 1", "rank 2", "rank 15"]


def test_a_collective_shows_before_after_and_the_bytes_a_rank_sends():
    seen = texts(collective_svg(programs.attention_sliced(), "total_rs"))
    assert "▼ ReduceScatter: each rank sends 36 MiB" in seen
    assert {"layer", "total_rs", "Local", "Sliced(2)", "48 MiB a rank", "12 MiB a rank"} <= set(seen)


@pytest.mark.parametrize(
    ("op", "after", "wanted"),
    [
        (o.AllReduce(name="a"), cl.Replicated, "each rank sends 72 MiB"),
        (o.ReduceScatter(name="a", dim=0), cl.Sliced(0), "each rank sends 36 MiB"),
        (o.AllGather(name="a"), cl.Replicated, "each rank sends 36 MiB"),
        (o.Reduce(name="a", root=2), cl.Local, "every rank but 2 sends 48 MiB"),
        (o.Broadcast(name="a", root=1), cl.Replicated, "rank 1's 48 MiB go to every rank"),
        (o.LocalSlice(name="a", dim=0), cl.Sliced(0), "each rank keeps its block, nothing is sent"),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, o.Op) else None,
)
def test_what_a_rank_sends(op, after, wanted):
    assert sent_text(op, CUBE, CUBE.with_layout(after), 4) == wanted


def test_one_rank_sends_nothing_and_an_all_to_all_keeps_a_share():
    assert sent_text(o.AllReduce(name="a"), CUBE, CUBE, 1) == "one rank, nothing is sent"
    sliced = CUBE.with_layout(cl.Sliced(1))
    assert sent_text(o.AllToAll(name="a", split=0, concat=1), sliced, sliced, 4) == "each rank sends 9 MiB"


def test_a_send_shows_the_ranks_of_both_groups():
    seen = texts(collective_svg(programs.pipeline(), "sent_part"))
    assert [t for t in seen if t.startswith("rank ") and "k" not in t[4:]] == [f"rank {k}" for k in range(8)]
    assert "▼ Send: rank k sends 12 MiB to rank k of group 1" in seen


def test_only_the_root_of_a_reduce_holds_a_result():
    g = cl.tensor("g", cl.FP32, (16,), cl.Local)
    total = cl.reduce(g, root=1, name="total")
    program = cl.program("p", outputs=[cl.broadcast(total, root=1, name="out")], ranks=4)
    seen = texts(collective_svg(program, "total"))
    assert seen.count("not read") == 3
    assert seen.count("whole") == 1


def test_a_list_value_shows_the_borders_of_its_tensors():
    grads = cl.tensor("grads", cl.FP32, [(3000,), (500, 20), (7,)], cl.Sliced(0))
    svg = layout_svg(grads, ranks=4)
    assert "FP32 3 tensors" in texts(svg)
    assert {"13,007 elements", "16 KiB a rank"} <= set(texts(svg))
    borders = [e.get("d") for e in ET.fromstring(svg).iter(f"{SVG}path") if e.get("stroke") == LIGHT.muted]
    assert [len(re.findall("M", path)) for path in borders] == [2] * 4


def test_a_hostile_name_is_text():
    svg = layout_svg(CUBE, 2, name='<script>&"\n')
    assert '<script>&"\\n' in texts(svg)
    assert "<script" not in svg


def test_what_is_no_layout_or_no_collective_is_refused():
    with pytest.raises(ProgramError, match="over None ranks"):
        layout_svg(CUBE)
    with pytest.raises(ProgramError, match="'drop' is Dropout"):
        collective_svg(programs.attention(), "drop")
