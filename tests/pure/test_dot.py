"""Pictures without a `dot` on the machine: the wheel's Graphviz behind `coconet-dot`, and a real `dot` before it."""

from __future__ import annotations

import os
import signal
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


def dot(*arguments: str, text: str = GRAPH, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, coconet_dot.__file__, *arguments]
    return subprocess.run(command, input=text.encode(), capture_output=True, timeout=60, check=False, env=env)


@pytest.fixture
def own_folders(tmp_path):
    """A new user's environment: an empty cache, and an empty folder for temporary files."""
    (tmp_path / "tmp").mkdir()
    bare = {key: value for key, value in os.environ.items() if key != "FONTCONFIG_FILE"}
    return {**bare, "XDG_CACHE_HOME": str(tmp_path / "cache"), "TMPDIR": str(tmp_path / "tmp")}


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


def started(*arguments: str, env: dict[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, coconet_dot.__file__, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)


@pytest.mark.timeout(60)
def test_a_drawing_killed_in_the_middle_leaves_nothing_among_the_temporary_files(own_folders, tmp_path):
    os.mkfifo(tmp_path / "graph.gv")
    with started("-Tsvg", str(tmp_path / "graph.gv"), env=own_folders) as drawing:
        with open(tmp_path / "graph.gv", "wb"):  # opens when the other end does: everything is set up, nothing read
            drawing.kill()
        assert drawing.wait() == -signal.SIGKILL
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_drawing_leaves_nothing_among_the_temporary_files_and_the_next_one_finds_the_fonts_known(
    own_folders, tmp_path
):
    kept = []
    for _ in range(2):
        assert dot("-Tsvg", env=own_folders).returncode == 0
        assert list((tmp_path / "tmp").iterdir()) == []
        files = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
        kept.append({path: path.stat().st_mtime_ns for path in files})
    assert kept[0] == kept[1]
    assert len([path for path in kept[0] if path.suffix == ".conf"]) == 1
    assert len(kept[0]) > 1  # what the font library found in the folders of fonts


@pytest.mark.timeout(120)
def test_several_first_drawings_at_once_draw_the_same(own_folders, tmp_path):
    drawings = [started("-Tsvg", env=own_folders) for _ in range(4)]
    drawn = [drawing.communicate(GRAPH.encode()) for drawing in drawings]
    assert {drawing.returncode for drawing in drawings} == {0}
    assert drawn == [(dot("-Tsvg", env=own_folders).stdout, b"")] * 4
    assert [path.suffix for path in (tmp_path / "cache" / "coconet_lab" / "fonts").iterdir() if path.is_file()] == [
        ".conf"
    ]


def test_where_the_cache_cannot_be_written_the_fonts_are_the_same(own_folders, tmp_path):
    wanted = dot("-Tsvg", env=own_folders).stdout
    (tmp_path / "file").touch()
    drawn = dot("-Tsvg", env={**own_folders, "XDG_CACHE_HOME": str(tmp_path / "file")})
    assert (drawn.returncode, drawn.stdout, drawn.stderr) == (0, wanted, b"")
    assert [path.name for path in (tmp_path / "tmp").iterdir()] == [f"coconet_lab-{os.getuid()}"]


def test_a_folder_of_another_user_is_not_used_and_without_any_the_machine_s_own_fonts_are(own_folders, monkeypatch):
    for name in ("XDG_CACHE_HOME", "TMPDIR"):
        monkeypatch.setenv(name, own_folders[name])
    monkeypatch.setattr(coconet_dot.tempfile, "tempdir", None)
    assert coconet_dot.kept_fonts_conf().parent == Path(own_folders["XDG_CACHE_HOME"]) / "coconet_lab" / "fonts"
    monkeypatch.setattr(coconet_dot.os, "getuid", lambda: os.stat(own_folders["TMPDIR"]).st_uid + 1)
    assert coconet_dot.kept_fonts_conf() is None


def test_a_fonts_file_that_was_cut_short_is_written_again_and_a_whole_one_is_not(tmp_path):
    conf = coconet_dot.write_fonts_conf(tmp_path)
    whole = conf.read_text()
    conf.write_text(whole[:40])
    assert coconet_dot.write_fonts_conf(tmp_path) == conf
    assert conf.read_text() == whole
    written = conf.stat().st_ino
    assert coconet_dot.write_fonts_conf(tmp_path).stat().st_ino == written
    assert list(tmp_path.iterdir()) == [conf]


def test_another_environment_s_fonts_file_lies_beside(tmp_path, monkeypatch):
    one = coconet_dot.write_fonts_conf(tmp_path)
    monkeypatch.setattr(coconet_dot, "_SYSTEM_FONTS", ("/",))
    other = coconet_dot.write_fonts_conf(tmp_path)
    assert {one, other} == set(tmp_path.iterdir())
    assert "<dir>/</dir>" in other.read_text()
    assert "<dir>/</dir>" not in one.read_text()


def test_a_full_disk_leaves_no_half_file(tmp_path, monkeypatch):
    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(coconet_dot.os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        coconet_dot.write_fonts_conf(tmp_path)
    assert list(tmp_path.iterdir()) == []


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
