"""Rich displays: attached by name where there is a shell, escaped, and never paid for outside a notebook."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest
import viz_programs as programs
from IPython.core.formatters import DisplayFormatter

import coconet_lab as cl
from coconet_lab import Refusal, TensorType
from coconet_lab.viz.notebook import SHOWN, html_table, register_formatters


class Shell:
    """As much of an IPython shell as displays need."""

    def __init__(self) -> None:
        self.display_formatter = DisplayFormatter()


@pytest.fixture
def shown():
    shell = Shell()
    assert register_formatters(shell)
    return lambda item: shell.display_formatter.format(item)[0]


def test_a_program_and_a_schedule_are_drawn(shown):
    program = programs.attention()
    data = shown(program)
    assert data["image/svg+xml"].startswith("<svg")
    assert data["text/plain"] == repr(program)
    scheduled = shown(cl.Schedule(program).split("total"))
    assert "ReduceScatter" in scheduled["image/svg+xml"]
    assert "split" in scheduled["image/svg+xml"]


def test_a_step_and_a_diff_are_drawn_before_and_after(shown):
    schedule = cl.Schedule(programs.attention()).split("total")
    for item in (schedule.record[0], schedule.record[0].diff):
        data = shown(item)
        assert ">before<" in data["image/svg+xml"]
        assert data["text/plain"] == repr(item)


def test_a_value_is_its_text_and_its_layout_on_its_colour(shown):
    value = cl.all_reduce(cl.tensor("<g>", cl.FP32, (8,), cl.Local), name="total")
    data = shown(value)
    assert "total = AllReduce(&lt;g&gt;)" in data["text/html"]
    assert ">Replicated</span>" in data["text/html"]
    assert data["text/plain"] == repr(value)


def test_a_value_of_a_program_shows_which_rank_holds_what(shown):
    data = shown(programs.attention()["x"])
    assert 'src="data:image/svg+xml;base64,' in data["text/html"]
    assert "Sliced(2)" in data["text/html"]


def test_types_and_layouts_are_chips(shown):
    assert "FP32 [8]" in shown(TensorType(cl.FP32, (8,), cl.Sliced(0)))["text/html"]
    assert ">Local</span>" in shown(cl.Local)["text/html"]


def test_a_refusal_says_its_parts_escaped(shown):
    data = shown(Refusal("cannot fuse '<x>'", "a & b", "Split('x')"))
    assert "cannot fuse &#x27;&lt;x&gt;&#x27;" in data["text/html"]
    assert "<b>rule</b> a &amp; b" in data["text/html"]
    assert "try: Split('x')" in data["text/plain"]


def test_a_proof_is_a_tick(shown):
    assert "✓ equal:" in shown(cl.Schedule(programs.adam()).check())["text/html"]


def test_every_type_that_is_shown_by_name_exists():
    for name in SHOWN:
        module, _, kind = name.rpartition(".")
        assert isinstance(getattr(__import__(module, fromlist=[kind]), kind), type), name


def test_numbers_of_a_table_are_to_the_right_and_text_is_escaped():
    text = html_table(["<name>", "time", "gain"], [["a<b>", "21.9 ms", "1.88×"], ["c", "–", "−65 %"]], "x & y")
    table = ET.fromstring(text)
    assert [cell.get("style") for cell in table.iter("td")] == ["text-align:left", *["text-align:right"] * 2] * 2
    assert [cell.text for cell in table.iter("th")] == ["<name>", "time", "gain"]
    assert table.find("caption").text == "x & y"


def test_without_a_shell_nothing_is_registered_and_nothing_heavy_is_imported():
    code = (
        "import sys, coconet_lab;"
        "heavy = {'matplotlib', 'IPython', 'networkx', 'graphviz', 'coconet_lab.viz.notebook'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_in_a_shell_importing_the_lab_attaches_the_displays():
    code = (
        "from IPython.core.interactiveshell import InteractiveShell as S; shell = S.instance();"
        "import coconet_lab as cl;"
        "print('text/html' in shell.display_formatter.format(cl.Local)[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "True"


def test_draw_is_public():
    assert "draw" in cl.__all__
    assert cl.draw(programs.attention()).source.startswith("digraph")
