"""The scripts of benchmarks/ that need no GPU: where they write, and what their tables say."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
DATA = ROOT / "notebooks" / "data"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", ROOT / "benchmarks" / f"{name}.py")
    assert spec
    assert spec.loader
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_a_quick_benchmark_does_not_replace_the_committed_measurements():
    parsed = script("cpu").parsed
    assert parsed([]).out == DATA
    assert parsed(["--quick"]).out == ROOT / "out"
    assert parsed(["--quick", "--out", "here"]).out == Path("here")


@pytest.mark.parametrize(("name", "dtype"), [("cpu2_adam", "fp32"), ("h200x2_adam", "fp16")])
def test_a_summary_names_its_unit(name, dtype, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["summary.py", str(DATA / f"{name}.csv"), "--dtype", dtype, "--ranks", "2"])
    script("summary").main()
    said = capsys.readouterr().out
    assert "\nMedians in µs, the slowest rank; " in said
    assert said.count("| 2^") >= 8


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--dtype", "fp16", "--ranks", "3"], "cpu2_adam.csv has no rows of fp16, 3 ranks"),
        ([], "has rows of [2, 4] ranks, and a table is of one number: --ranks 2"),
    ],
)
def test_a_summary_of_no_rows_or_of_several_numbers_of_ranks_is_refused(options, words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["summary.py", str(DATA / "cpu2_adam.csv"), *options])
    with pytest.raises(SystemExit):
        script("summary").main()
    assert words in capsys.readouterr().err
