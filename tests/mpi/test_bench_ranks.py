"""`coconet-lab bench` on two ranks: every workload, its files in the one schema, and nothing left running."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from coconet_lab.cli import app
from coconet_lab.run.comparison import COLUMNS


def test_bench_measures_sizes_and_baselines_and_writes_both_files(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    files = tmp_path / "rows.json", tmp_path / "rows.csv"
    typed = f"bench adam --ranks 2 --backend cpu --sizes 1003 2^12 --repeats 3 --json {files[0]} --csv {files[1]}"
    assert app.main([*typed.split(), "--baselines", "mpi4py+numpy", "--schedules", "AR-Opt", "fuse(RS-Opt-AG)"]) == 0
    rows = json.loads(files[0].read_text())["rows"]
    assert all(tuple(row) == COLUMNS for row in rows)
    names = ["mpi4py+numpy", "AR-Opt", "fuse(RS-Opt-AG)"]
    assert [(row["schedule"], row["elements"]) for row in rows] == [(n, size) for size in (1003, 4096) for n in names]
    for row in rows:
        assert (row["workload"], row["dtype"], row["ranks"], row["backend"]) == ("adam", "fp32", 2, "cpu")
        assert len(json.loads(row["samples"])) == 3
        assert 0 < row["p10_us"] <= row["median_us"] <= row["p90_us"]
    with open(files[1], newline="") as file:
        assert [row["schedule"] for row in csv.DictReader(file)] == names * 2
    said = capsys.readouterr().out
    assert "adam 1003 fp32, 2 ranks" in said
    assert "over mpi4py+numpy" in said
    assert f"wrote {files[0]}" in said


@pytest.mark.parametrize(
    "typed",
    [
        "lamb --sizes 100 --dtype fp16",
        "mlp --sizes 4x3x8",
        "pipeline --sizes 4x3x8",
    ],
)
def test_bench_measures_workloads_of_every_kind(typed: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    assert app.main(["bench", *typed.split(), "--ranks", "2", "--repeats", "1", "--json", str(file)]) == 0
    rows = json.loads(file.read_text())["rows"]
    assert {row["workload"] for row in rows} == {typed.split()[0]}
    assert len(rows) >= 4
