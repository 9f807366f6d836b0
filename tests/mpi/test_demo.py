"""`coconet-lab demo` at small sizes: what it says, the table, and a page that needs nothing but itself."""

from __future__ import annotations

import contextlib
import csv
import io
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from coconet_lab.cli import app, demo
from coconet_lab.cli.demo import _Part
from coconet_lab.cli.measure import Size, make
from coconet_lab.run.comparison import COLUMNS


def small(ranks: int) -> tuple[_Part, ...]:
    sizes = {"self_attention": Size((4, 3, 16)), "adam": Size((1003,))}
    return tuple(_Part(f"{name} <small>", size, make(name, size, ranks, "fp32")) for name, size in sizes.items())


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder, and what was printed."""
    folder, printed = tmp_path_factory.mktemp("demo") / "out", io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(demo, "_parts", small)
        assert app.main(["demo", "--out", str(folder), "--ranks", "2", "--repeats", "2"]) == 0
    return folder, printed.getvalue()


def test_it_says_first_what_it_will_do_and_last_where_to_look_and_what_comes_next(shown) -> None:
    folder, said = shown
    first, last = said.splitlines()[:5], said.splitlines()[-3:]
    assert "2 programs once" in first[0]
    assert "9 schedules" in first[0]
    assert "2 MPI ranks" in " ".join(first)
    assert "about a minute" in " ".join(first)
    assert last[1] == f"look at:  {folder / 'index.html'}"
    assert last[2].startswith("next:     make lab")


def test_every_schedule_is_proven_and_in_the_table_with_its_speedups(shown) -> None:
    _, said = shown
    assert len(re.findall(r"^  \S.* equal: .* × 2 ranks, exact", said, re.MULTILINE)) == 9
    for name in ("mpi4py+numpy", "naive", "ol(MM,fuse(RS-C-AG))", "AR-Opt", "fuse(RS-Opt-AG)"):
        assert re.search(rf"^  {re.escape(name)} .*×.*×$", said, re.MULTILINE), name
    assert re.search(r"schedule +median +p10 +p90 +over naive +over by hand", said)


def test_its_times_are_kept_in_the_one_schema(shown) -> None:
    folder, _ = shown
    with open(folder / "demo.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert len(rows) == 9 + 3  # and by hand: one of self-attention, two of Adam
    assert {row["ranks"] for row in rows} == {"2"}


def test_there_is_a_graph_of_each_program_and_step_and_a_plot_of_each_times(shown) -> None:
    folder, _ = shown
    pictures = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.svg")}
    for name in (
        "self_attention_program.svg", "self_attention_step1_split.svg", "self_attention_step2_reorder.svg",
        "self_attention_step3_fuse.svg", "self_attention_step4_overlap.svg", "self_attention_times.svg",
        "self_attention_timeline_naive.svg", "adam_program.svg", "adam_step6_fuse.svg", "adam_times.svg",
        "adam_timeline_fuse-RS-Opt-AG.svg",
    ):  # fmt: skip
        assert ET.fromstring(pictures[name]).tag.endswith("svg"), name


def test_the_page_holds_all_of_it_and_needs_no_network(shown) -> None:
    folder, _ = shown
    page = (folder / "index.html").read_text(encoding="utf-8")
    assert not re.search(r'(?:src|href)="(?!data:|#)', page)
    assert "<script" not in page
    assert "self_attention &lt;small&gt;" in page
    assert page.count("<svg ") >= 2 + 4 + 6  # programs and steps, inline: they take the page's colours
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    for text in ("kernel of", "over by hand", "every rank in one traced run", ".overlap("):
        assert text in page
