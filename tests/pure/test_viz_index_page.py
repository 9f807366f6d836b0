"""The page of a demo: self-contained, escaped, every kind of figure in it."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import pytest
import viz_programs as programs

from coconet_lab import ToolError
from coconet_lab.viz.draw import draw
from coconet_lab.viz.index_page import Code, Figure, Section, Table, write_index
from coconet_lab.viz.layouts import collective_svg

VOID = {"meta", "img", "br"}


class Reader(HTMLParser):
    """Collects tags, addresses and ids, and checks that tags close."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "xlink:href")]
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("page")
    program = programs.attention()
    figure, ax = plt.subplots()
    ax.plot([1, 2])
    draw(program).save(tmp_path / "x.svg")
    sections = [
        Section("Graph <b>", ["One & two.\n\nThree.", Figure(draw(program), "a graph"), Figure(draw(programs.adam()))]),
        ("Times", [Table(["schedule", "ms"], [["<script>", 1.5]], "measured"), Figure(ax, 'bars "by" rank')]),
        Section("Code", [Code("if a < b:\n    pass"), Figure(tmp_path / "x.svg"), Figure(draw(program).png())]),
        Section("Layouts", [Figure(collective_svg(program, "total"))]),
    ]
    made = write_index(tmp_path / "out" / "demo", "The demo & more", sections, note="cpu2, 4 ranks")
    plt.close(figure)
    return made.read_text(encoding="utf-8")


def test_the_page_needs_nothing_from_elsewhere_and_its_tags_close(page):
    reader = Reader()
    reader.feed(page)
    assert not reader.open
    assert "script" not in reader.tags
    assert "link" not in reader.tags
    assert all(address.startswith(("data:image/", "#")) for address in reader.addresses)
    assert not re.search(r"url\(|@import", page)
    assert len(reader.ids) == len(set(reader.ids))


def test_headings_text_tables_and_captions_are_there_and_escaped(page):
    assert "<h1>The demo &amp; more</h1>" in page
    assert "<h2>Graph &lt;b&gt;</h2>" in page
    assert "<p>One &amp; two.</p><p>Three.</p>" in page
    assert "&lt;script&gt;</td>" in page
    assert 'alt="bars &quot;by&quot; rank"' in page
    assert "<pre>if a &lt; b:\n    pass</pre>" in page
    assert page.count("<figcaption>") == 2
    assert page.count("data:image/png;base64,") == 2
    assert page.count("data:image/svg+xml;base64,") == 1
    assert page.count('<li><a href="#s') == 4


def test_drawings_are_recoloured_on_dark_pages(page):
    assert "prefers-color-scheme: dark" in page
    assert page.count('<figure class="drawn">') == 3


def test_what_is_no_picture_is_refused(tmp_path):
    with pytest.raises(ToolError, match="int is no picture"):
        write_index(tmp_path, "x", [("y", [Figure(3)])])
