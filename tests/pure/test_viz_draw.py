"""`draw`: pictures with Graphviz and without, fit for a page, saved by ending."""

from __future__ import annotations

import base64
import re
import subprocess
import xml.etree.ElementTree as ET
from dataclasses import dataclass

import pytest
import viz_programs as programs
from hypothesis import given, settings
from hypothesis import strategies as st

from coconet_lab import Program, ProgramError, ToolError
from coconet_lab.viz import draw as module
from coconet_lab.viz.dot import BACKSLASH_SIGN, scene_dot
from coconet_lab.viz.draw import changed_groups, changed_names, draw, draw_change, fitted
from coconet_lab.viz.paint import scene_svg
from coconet_lab.viz.scene import Box, Outline, program_scene, short, visible
from coconet_lab.viz.svg import picture

ALL = ["attention", "attention_fused", "adam", "pipeline", "transformer", "hostile"]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(params=["graphviz", "own"])
def engine(request, monkeypatch):
    """Once with the machine's Graphviz, once as on a machine without any."""
    if request.param == "own":
        monkeypatch.setattr(module, "find_layout_engine", lambda: None)
    elif module.find_layout_engine() is None:
        pytest.skip("needs dot or pygraphviz, neither is installed")
    return request.param


def texts(svg: str) -> str:
    """What a reader sees, without the spaces that only place it."""
    found = "".join("".join(e.itertext()) for e in ET.fromstring(svg).iter(f"{SVG}text"))
    return re.sub(r"\s", "", found)


@pytest.mark.parametrize("name", ["attention_fused", "pipeline", "hostile"])
def test_every_name_layout_and_title_is_readable_in_the_picture(name, engine):
    program = getattr(programs, name)()
    seen = texts(draw(program).svg)
    for box in program_scene(program).boxes():
        assert re.sub(r"\s", "", visible(box.title)) in seen
    for fusion in program.fusions:
        assert fusion.name in seen


def test_a_picture_is_safe_in_a_page(engine):
    svg = draw(programs.hostile()).svg
    root = ET.fromstring(svg)
    assert root.tag == f"{SVG}svg"
    tags = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert tags <= {"svg", "g", "title", "text", "path", "polygon", "polyline", "ellipse", "rect"}
    assert not [a for element in root.iter() for a in element.attrib if a.startswith("on") or a.endswith("href")]
    assert "<?xml" not in svg
    assert "<!" not in svg


def test_ids_of_two_pictures_in_a_page_differ_and_boxes_are_found_by_theirs(engine):
    one, two = draw(programs.attention()), draw(programs.attention_sliced())
    ids = [[e.get("id") for e in ET.fromstring(d.svg).iter() if e.get("id")] for d in (one, two)]
    assert not set(ids[0]) & set(ids[1])
    assert len(set(ids[0])) == len(ids[0])
    for box_id in one.scene.ids.values():
        assert sum(i.endswith(f"-{box_id}") for i in ids[0]) == 1


def test_the_background_is_white_for_dark_pages(engine):
    svg = draw(programs.attention()).svg
    first = next(e for e in ET.fromstring(svg).iter() if e.tag in (f"{SVG}rect", f"{SVG}polygon"))
    assert first.get("fill").lower() == "#ffffff"


def test_tooltips_are_titles(engine):
    program = programs.attention()
    titles = ["".join(e.itertext()) for e in ET.fromstring(draw(program).svg).iter(f"{SVG}title")]
    wanted = "layer = MatMul(x, w)\nFP16[8, 1024, 3072] Local, 4 ranks\n48 MiB a rank"
    assert sum(title.startswith(wanted) for title in titles) == 1


def test_a_hostile_tooltip_says_the_name_as_it_is(engine):
    svg = draw(programs.hostile()).svg.replace(BACKSLASH_SIGN, "\\")
    titles = ["".join(e.itertext()) for e in ET.fromstring(svg).iter(f"{SVG}title")]
    assert any(title.startswith('a"<b>&\\n\\{}|é = Tensor\nFP16[8] Local') for title in titles), titles
    assert any(title.startswith("\\N \\G &amp; ]]> --> <script>alert(1)</script>") for title in titles), titles


@pytest.mark.parametrize(("kind", "magic"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF"), ("dot", b"dig")])
def test_a_drawing_saves_by_its_ending(engine, kind, magic, tmp_path):
    assert draw(programs.attention_fused()).save(tmp_path / f"x.{kind}").read_bytes().startswith(magic)


def test_an_unknown_ending_is_refused_with_those_there_are(tmp_path):
    with pytest.raises(ToolError, match=r"x\.gif") as refused:
        draw(programs.attention()).save(tmp_path / "x.gif")
    assert ".svg, .png, .pdf" in refused.value.rule


def test_a_layout_engine_that_hangs_or_fails_leaves_a_picture(monkeypatch):
    def hang(*arguments, **options):
        raise subprocess.TimeoutExpired("dot", options["timeout"])

    monkeypatch.setattr(module.subprocess, "run", hang)
    assert draw(programs.attention()).svg.startswith("<svg")
    monkeypatch.setattr(module.subprocess, "run", lambda *a, **k: subprocess.CompletedProcess(a, 1, b"", b"no"))
    assert draw(programs.attention()).svg.startswith("<svg")


@pytest.mark.parametrize("name", ALL)
def test_in_our_own_layout_no_boxes_overlap_and_members_alone_lie_inside_an_outline(name):
    made = picture(program_scene(getattr(programs, name)()))
    boxes = [part for part in made.placed if isinstance(part.item, Box)]
    for at, one in enumerate(boxes):
        for two in boxes[at + 1 :]:
            apart = one.x + one.width <= two.x or two.x + two.width <= one.x
            assert apart or one.y + one.height <= two.y or two.y + two.height <= one.y, (one.item.id, two.item.id)
    for part in made.placed:
        if isinstance(part.item, Outline):
            members = {id(inner) for inner in everything_in(part)}
            for box in boxes:
                inside = part.x <= box.x and box.x + box.width <= part.x + part.width
                inside = inside and part.y <= box.y and box.y + box.height <= part.y + part.height
                assert inside == (id(box) in members), (part.item.title, box.item.id)


def everything_in(part):
    for inner in part.inner:
        yield inner
        yield from everything_in(inner)


@dataclass(frozen=True)
class Record:
    step: str
    before: Program
    after: Program


@dataclass(frozen=True)
class Steps:
    program: Program
    record: tuple[Record, ...]


@pytest.fixture
def steps():
    before, middle, after = programs.attention(), programs.attention_sliced(), programs.attention_fused()
    return Steps(after, (Record("reorder", before, middle), Record("fuse", middle, after)))


def test_a_step_is_drawn_before_and_after_with_what_changed_lit(steps, engine):
    drawing = draw(steps, step=1)
    lit = {name for box in drawing.scene.boxes() if box.is_changed for name in box.names}
    assert lit == {"total", "total_rs", "add_1", "drop", "out", "out_part"}
    seen = texts(drawing.svg)
    assert "before" in seen
    assert "after" in seen
    assert draw(steps, step=-1).scene.title.endswith("step 2: fuse")


def test_a_new_group_is_lit_and_its_members_are_not(steps):
    before, after = steps.record[1].before, steps.record[1].after
    assert changed_names(after, before) == frozenset()
    assert changed_groups(after, before) == {"fused", "ol"}
    assert 'class="fused changed"' in draw_change(before, after).source


def test_a_step_that_is_not_there_is_refused_and_so_is_what_has_no_graph(steps):
    with pytest.raises(ProgramError, match="steps 1 to 2"):
        draw(steps, step=3)
    with pytest.raises(ProgramError, match="what to draw is 3"):
        draw(3)
    with pytest.raises(ProgramError, match="types is 'none'"):
        draw(steps, types="none")
    assert draw(steps).scene.title == "self_attention · 4 ranks"


def test_a_drawing_of_a_schedule_lists_its_steps(steps, engine):
    seen = texts(draw(steps).svg)
    assert "1reorder" in seen
    assert "2fuse" in seen


def test_a_notebook_gets_svg_a_png_of_the_same_size_and_text(engine):
    drawing = draw(programs.attention())
    shown, sizes = drawing._repr_mimebundle_()
    assert shown["image/svg+xml"].startswith("<svg")
    assert base64.b64decode(shown["image/png"]).startswith(b"\x89PNG")
    assert shown["text/plain"].startswith("self_attention: 10 ops")
    points = float(ET.fromstring(drawing.svg).get("width").removesuffix("pt"))
    assert sizes["image/png"]["width"] == pytest.approx(points * 4 / 3, abs=1)


@pytest.mark.parametrize(("width", "shown"), [(600, 600), (800, 660), (1200, 1200)])
def test_a_picture_a_little_wider_than_a_page_fits_it_and_a_much_wider_one_stays_legible(width, shown):
    svg = f'<svg role="img" width="{width}pt" height="300pt" viewBox="0 0 {width} 300"></svg>'
    root = ET.fromstring(fitted(svg))
    assert root.get("width") == f"{shown}pt"
    assert float(root.get("height").removesuffix("pt")) == pytest.approx(300 * shown / width, abs=1)
    assert root.get("viewBox") == f"0 0 {width} 300"


@settings(max_examples=40)
@given(
    st.lists(st.text(min_size=1, max_size=40), min_size=4, max_size=4, unique=True), st.text(min_size=1, max_size=20)
)
def test_whatever_the_names_are_the_picture_is_well_formed_and_holds_them(names, title):
    scene = program_scene(programs.plain(title, *names))
    seen = texts(scene_svg(scene))
    for name in names:
        assert re.sub(r"\s", "", short(visible(name))) in seen
    source = scene_dot(scene)
    source.encode("utf-8")
    assert "\x00" not in source
    assert source.count("\n") == scene_dot(program_scene(programs.plain("p", "a", "b", "c", "d"))).count("\n")
