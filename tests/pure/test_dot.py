"""Pictures without a `dot` on the machine: the wheel's Graphviz behind `coconet-dot`, and a real `dot` before it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import graphviz
import pytest
from graphviz.backend import dot_command

import coconet_dot
from coconet_lab import graphviz_shim

GRAPH = """digraph "g" {
  node [shape=box, fontname="DejaVu Sans"];
  subgraph cluster_fused { label="fused"; rs [label=<<b>total_rs</b> · <i>Sliced(0)</i>>, id="node_rs"]; add }
  x -> rs -> add -> "out ü";
}"""


def dot(*arguments: str, text: str = GRAPH) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, coconet_dot.__file__, *arguments]
    return subprocess.run(command, input=text.encode(), capture_output=True, timeout=60, check=False)


@pytest.fixture
def no_real_dot(monkeypatch):
    """As on a machine without Graphviz, and the graphviz package's setting put back afterwards."""
    monkeypatch.setattr(dot_command, "DOT_BINARY", dot_command.DOT_BINARY)
    find = graphviz_shim.shutil.which
    monkeypatch.setattr(
        graphviz_shim.shutil, "which", lambda name, **where: None if name == "dot" else find(name, **where)
    )


@pytest.mark.parametrize(("kind", "magic"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_a_source_draws_itself_and_says_nothing_on_stderr(no_real_dot, kind, magic, capfd):
    assert graphviz_shim.ensure_dot().endswith("coconet-dot")
    assert graphviz.Source(GRAPH).pipe(format=kind).startswith(magic)
    assert capfd.readouterr().err == ""


def test_names_labels_ids_and_clusters_are_in_the_drawing():
    drawn = dot("-Kdot", "-Tsvg")
    assert (drawn.returncode, drawn.stderr) == (0, b"")
    svg = drawn.stdout.decode()
    for text in (">x</text>", ">add</text>", ">out ü</text>", ">total_rs</text>", ">fused</text>", 'id="node_rs"'):
        assert text in svg


def test_render_names_its_file_as_dot_does(no_real_dot, tmp_path):
    graphviz_shim.ensure_dot()
    made = graphviz.Source(GRAPH, filename="g.gv", directory=tmp_path).render(format="svg")
    assert Path(made) == tmp_path / "g.gv.svg"
    assert (tmp_path / "g.gv.svg").read_text().count("<g ") > 4
    assert graphviz.version()[0] >= 9


def test_a_broken_graph_is_an_error_with_its_line():
    refused = dot("-Tsvg", text="digraph {\n a -> ;\n}")
    assert refused.returncode == 1
    assert b"syntax error in line 2" in refused.stderr
    assert b"Traceback" not in refused.stderr


def test_a_format_that_does_not_exist_is_an_error():
    assert dot("-Tnosuch").returncode == 1


def test_a_machine_without_fonts_gets_those_of_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setattr(coconet_dot, "_SYSTEM_FONTS", ())
    conf = coconet_dot.write_fonts_conf(tmp_path)
    assert "mpl-data" in conf.read_text()
    command = [sys.executable, coconet_dot.__file__, "-Tpng"]
    bare = {"FONTCONFIG_FILE": str(conf), "PATH": os.environ["PATH"]}
    drawn = subprocess.run(command, input=GRAPH.encode(), capture_output=True, timeout=60, check=False, env=bare)
    assert drawn.stdout.startswith(b"\x89PNG")
    assert drawn.stderr == b""


def test_a_real_dot_is_preferred_and_left_to_be_found_on_the_path(monkeypatch, tmp_path):
    monkeypatch.setattr(dot_command, "DOT_BINARY", Path("changed"))
    real = tmp_path / "dot"
    real.write_text("#!/bin/sh\n")
    real.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert graphviz_shim.find_layout_engine() == str(real)
    assert graphviz_shim.ensure_dot() == str(real)
    assert Path("dot") == dot_command.DOT_BINARY


def test_with_neither_the_answer_is_none(no_real_dot, monkeypatch):
    monkeypatch.setattr(graphviz_shim.importlib.util, "find_spec", lambda name: None)
    assert graphviz_shim.find_layout_engine() is None
    assert graphviz_shim.ensure_dot() is None
