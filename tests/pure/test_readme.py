"""What the README says is so: its session runs, its commands and files exist, its picture is the one that is drawn."""

from __future__ import annotations

import re
import shlex
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import coconet_lab as cl
from coconet_lab.cli import app
from coconet_lab.workloads import Workload

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
PICTURE = ROOT / "notebooks" / "images" / "fused_attention.svg"


def blocks(language: str) -> list[str]:
    every = re.findall(r"^```(\w*)\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    return [text for named, text in every if named == language]


def session() -> str:
    """The README's session up to where it starts a cluster."""
    (code,) = blocks("python")
    return code.split("cl.Cluster")[0]


def made() -> cl.Schedule:
    space: dict[str, object] = {}
    exec(session(), space)
    schedule = space["s"]
    assert isinstance(schedule, cl.Schedule)
    return schedule


def test_the_session_has_twelve_lines_beside_its_imports_and_proves_what_it_says():
    (code,) = blocks("python")
    assert len(code.splitlines()) <= 14
    said = re.search(r"s\.check\(\) +# (.*)", code)
    assert said
    assert repr(made().check()) == said[1]


def test_the_picture_is_the_one_the_session_draws():
    def texts(svg: str) -> list[str]:
        return ["".join(node.itertext()).strip() for node in ET.fromstring(svg).iter() if node.tag.endswith("text")]

    drawn = sorted(texts(cl.draw(made()).svg))
    assert sorted(texts(PICTURE.read_text(encoding="utf-8"))) == drawn
    assert PICTURE.stat().st_size < 300_000


def test_every_make_command_is_a_target():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"make (\w+)", TEXT))
    assert {"demo", "test", "lab", "doctor", "clean"} <= named
    assert named <= set(re.findall(r"^(\w+):", makefile, re.MULTILINE))


def test_every_coconet_lab_command_is_understood(monkeypatch):
    typed = [shlex.split(command)[1:] for command in re.findall(r"`?\.venv/bin/(coconet-lab [^`\n]*)", TEXT)]
    assert typed
    for arguments in typed:
        monkeypatch.setattr(f"coconet_lab.cli.{arguments[0]}.run", lambda options: 0)
        assert app.main(arguments) == 0


def test_no_command_needs_an_activated_environment_and_every_script_is_there():
    commands = [line.partition("#")[0].split() for block in blocks("") for line in block.splitlines()]
    assert len(commands) >= 8
    for words in commands:
        assert words[0] == "make" or words[0].startswith(".venv/bin/"), words
        assert all(word.startswith(".venv/bin/") for word in words if word.endswith(("python", "mpiexec")))
        assert all((ROOT / word).exists() for word in words if word.startswith(("benchmarks/", "notebooks/")))


def test_every_file_it_names_is_there():
    paths = set(re.findall(r"[`(]((?:[\w.]+/)*[\w]+\.(?:md|ipynb|yml|cff|svg|png|py))[`) ]", TEXT))
    assert {"DESIGN.md", "CONTRIBUTING.md", "CITATION.cff", "environment.yml"} <= paths
    missing = [path for path in sorted(paths) if not (ROOT / path).exists() and path != "dir/main.py"]
    assert not missing


CALLS = sorted(set(re.findall(r"cl\.(\w+)", TEXT)))
METHODS = sorted(
    {*re.findall(r"(?<![\w.])s\.(\w+)\(", TEXT), *re.findall(r"`\.([a-z_]+)`(?! `?\.venv)", TEXT)}
    - {"venv", "plot", "records"}
)


@pytest.mark.parametrize("name", CALLS)
def test_every_name_of_the_package_exists(name):
    assert hasattr(cl, name)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_of_a_schedule_exists(name):
    assert hasattr(cl.Schedule, name)


def test_every_workload_and_schedule_named_exists():
    assert "fuse(RS-Opt-AG)" in TEXT
    assert "fuse(RS-Opt-AG)" in cl.workloads.adam(elements=64, ranks=4).schedules
    for name in ("sgd", "lamb", "self_attention", "mlp", "pipeline"):
        assert f"`{name}`" in TEXT
        assert isinstance(getattr(cl.workloads, name)(ranks=4), Workload)
