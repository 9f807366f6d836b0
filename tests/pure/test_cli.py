"""The `coconet-lab` command: help with an example, refusals in four lines, exit statuses, JupyterLab's arguments."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from coconet_lab.cli import app, lab
from coconet_lab.cli.usage import UsageError, known
from coconet_lab.errors import ToolError

NAMES = [command.name for command in app.COMMANDS]


@pytest.mark.parametrize("command", app.COMMANDS, ids=NAMES)
def test_every_command_has_a_module_and_a_help_with_an_example(command, capsys):
    module = importlib.import_module(command.module)
    assert callable(module.run)
    assert app.main([command.name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert command.example in shown
    assert command.example.startswith(f"coconet-lab {command.name}")


@pytest.mark.parametrize("typed", [[], ["--help"], ["-h"]])
def test_without_a_command_all_are_listed(typed, capsys):
    assert app.main(typed) == 0
    shown = capsys.readouterr().out
    assert all(command.summary in shown for command in app.COMMANDS)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["doctr"], "there is no command 'doctr'; near it: 'doctor'"),
        (["--json"], "a command comes first, not '--json'"),
        (["doctor", "--jso", "x"], "unrecognized arguments: x"),
        (["lab", "--port", "many"], "invalid int value: 'many'"),
    ],
)
def test_a_command_line_typed_wrong_gives_four_lines_and_status_2(typed, words, capsys):
    assert app.main(typed) == 2
    said = capsys.readouterr().err.splitlines()
    assert words in said[0]
    assert [line[:8] for line in said[1:]] == ["  rule: ", "  in:   ", "  try:  "]


def test_an_unknown_name_lists_the_near_ones_and_all():
    assert known("workload", "adam", ["adam", "lamb"], where="", hint="") == "adam"
    with pytest.raises(UsageError, match="there is no workload 'adm'; near it: 'adam'") as refusal:
        known("workload", "adm", ["adam", "lamb"], where="coconet-lab bench adm", hint="coconet-lab bench adam")
    assert refusal.value.rule == "a workload is one of adam, lamb"


def test_a_refusal_of_the_lab_is_four_lines_and_status_1_without_a_traceback(capsys, tmp_path):
    assert app.main(["lab", "--notebooks", str(tmp_path / "absent")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("ToolError: there is no folder")
    assert "Traceback" not in said
    assert len(said.splitlines()) == 4


def test_an_interrupt_is_one_line_and_status_130(monkeypatch, capsys):
    def interrupted(options):
        raise KeyboardInterrupt

    monkeypatch.setattr("coconet_lab.cli.doctor.run", interrupted)
    assert app.main(["doctor"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_doctor_prints_one_json_object(monkeypatch, capsys):
    monkeypatch.setattr("coconet_lab.cli.doctor.examine", lambda host: ())
    assert app.main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["facts"] == []


def test_jupyterlab_listens_on_this_machine_only_and_by_its_full_path(tmp_path):
    command = lab.lab_command(tmp_path, 8890, True)
    assert Path(command[0]).is_absolute()
    assert "--ip=127.0.0.1" in command
    assert "--port=8890" in command
    assert f"--ServerApp.root_dir={tmp_path}" in command
    assert "--no-browser" in command
    assert "--no-browser" not in lab.lab_command(tmp_path, 8890, False)


def test_without_jupyterlab_the_way_to_get_it_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(lab, "which", lambda name: None)
    with pytest.raises(ToolError, match="JupyterLab is not installed") as refusal:
        lab.lab_command(tmp_path, 8888, True)
    assert refusal.value.hint == "make setup"


@pytest.mark.parametrize("port", ["99999", "-1"])
def test_a_port_that_is_none_is_refused_before_jupyterlab_starts(port, capsys, monkeypatch):
    monkeypatch.setattr("coconet_lab.cli.lab.subprocess", None)  # using it would be another error
    assert app.main(["lab", f"--port={port}"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0] == f"coconet-lab: there is no port {port}"
    assert len(said) == 4
