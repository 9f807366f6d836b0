"""`coconet-lab bench`: sizes and names as they are typed, what is refused before anything starts, the baselines."""

from __future__ import annotations

import json

import numpy as np
import pytest

import coconet_lab as cl
from coconet_lab.cli import app, measure
from coconet_lab.cli.measure import Size, by_hand, chosen_baselines, make, parse_size
from coconet_lab.cli.usage import UsageError
from coconet_lab.errors import ToolError
from coconet_lab.ir import oracle
from coconet_lab.run import by_hand as hand
from coconet_lab.run.by_hand import BASELINES, HandWritten, make_step
from coconet_lab.run.comparison import Comparison, Row
from coconet_lab.run.provenance import provenance
from coconet_lab.run.results import Timing
from coconet_lab.run.trace import Trace


@pytest.mark.parametrize(
    ("text", "workload", "dims"),
    [
        ("2^20", "adam", (2**20,)),
        ("1003", "lamb", (1003,)),
        ("4x64x3072", "self_attention", (4, 64, 3072)),
        ("4X2^6x3072", "mlp", (4, 64, 3072)),
        ("8x16x32", "pipeline", (8, 16, 32)),
    ],
)
def test_sizes_are_read_as_people_type_them(text, workload, dims):
    assert parse_size(text, workload) == Size(dims)
    assert parse_size(str(Size(dims)), workload) == Size(dims)


@pytest.mark.parametrize(
    ("text", "workload"),
    [
        ("", "adam"),
        ("0", "adam"),
        ("-4", "adam"),
        ("2**20", "adam"),
        ("4x4", "adam"),
        ("4x64", "mlp"),
        ("axbxc", "mlp"),
    ],
)
def test_what_is_no_size_is_refused_with_one_that_is(text, workload):
    with pytest.raises(UsageError, match="is no size of") as caught:
        parse_size(text, workload)
    assert "--sizes" in caught.value.hint


@pytest.mark.parametrize("name", measure.NAMES)
def test_every_workload_is_made_at_its_size_and_ranks(name):
    size = parse_size("64" if name in measure.OPTIMIZERS else "4x6x8", name)
    workload = make(name, size, 4, "fp16")
    assert (workload.name, workload.program.ranks, workload.dtype) == (name, 4, "fp16")


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["adm"], "there is no workload 'adm'; near it: 'adam'"),
        (["adam", "--sizes", "4x4"], "'4x4' is no size of adam"),
        (["adam", "--schedules", "AR-Op"], "there is no schedule 'AR-Op'; near it: 'AR-Opt'"),
        (["adam", "--baselines", "numpy"], "there is no baseline 'numpy'"),
        (["pipeline", "--baselines", "mpi4py+numpy"], "pipeline in fp32 has no baseline"),
        (["adam", "--dtype", "fp16", "--baselines", "mpi4py+numpy"], "adam in fp16 has no baseline"),
        (["adam", "--repeats", "0"], "0 repeats after 2 warm-ups"),
        (["adam", "--json", "no/such/folder/x.json"], "there is no folder 'no/such/folder'"),
        (["adam", "--ranks", "two"], "invalid int value: 'two'"),
        (["adam", "--dtype", "int8"], "invalid choice: 'int8'"),
    ],
)
def test_a_command_line_typed_wrong_is_four_lines_before_anything_starts(typed, words, capsys, monkeypatch):
    monkeypatch.setattr("coconet_lab.cli.bench.Cluster", None)  # using it would be another error
    assert app.main(["bench", *typed]) == 2
    said = capsys.readouterr().err.splitlines()
    assert words in said[0]
    assert [line[:8] for line in said[1:]] == ["  rule: ", "  in:   ", "  try:  "]


def test_a_place_that_cannot_be_written_is_told_before_anything_is_measured_for_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("coconet_lab.cli.bench.Cluster", None)
    monkeypatch.setattr("coconet_lab.cli.demo.Cluster", None)
    (tmp_path / "file").write_text("kept")
    for typed in (
        ["bench", "adam", "--json", str(tmp_path)],
        ["bench", "adam", "--csv", "/proc/times.csv"],
        ["demo", "--out", str(tmp_path / "file")],
        ["demo", "--out", "/proc/none"],
    ):
        assert app.main(typed) == 2
        said = capsys.readouterr()
        assert said.err.startswith("coconet-lab: cannot write "), said
        assert len(said.err.splitlines()) == 4
        assert not said.out
    assert app.main(["bench", "adam", "--json", str(tmp_path / "new.json"), "--csv", str(tmp_path / "none" / "x")]) == 2
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize("typed", [["self_attention", "--ranks", "3", "--sizes", "4x4x4"], ["adam", "--ranks", "0"]])
def test_a_size_that_its_ranks_cannot_share_is_refused_by_the_language(typed, capsys, monkeypatch):
    monkeypatch.setattr("coconet_lab.cli.bench.Cluster", None)
    assert app.main(["bench", *typed]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 4


def test_baselines_that_need_torch_are_left_out_without_it_and_refused_where_asked_for(monkeypatch):
    adam = cl.workloads.adam(elements=64, ranks=2)
    monkeypatch.setattr(measure, "_has_torch", lambda: False)
    assert chosen_baselines(adam, None) == ("mpi4py+numpy", "mpi4py+numpy_inplace")
    assert chosen_baselines(adam, []) == ()
    with pytest.raises(ToolError, match="needs torch"):
        chosen_baselines(adam, ["gloo+torch_fused"])
    monkeypatch.setattr(measure, "_has_torch", lambda: True)
    assert chosen_baselines(adam, None) == BASELINES["adam"]


def test_an_interrupt_ends_the_sizes_writes_what_was_measured_and_exits_as_shells_expect(monkeypatch, tmp_path):
    class Ranks:
        """Stands for a cluster."""

        def __init__(self, **how):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

    source = provenance(ranks=2, backend="cpu", seed=0, program="adam", schedule="naive")
    row = Row("naive", "adam", "fp32", 64, "64", Timing((1.0,)), Trace(), source)
    sizes = []

    def measured(cluster, made, size, **how):
        sizes.append(size)
        return Comparison((row,), "naive", is_partial=True)

    monkeypatch.setattr("coconet_lab.cli.bench.Cluster", Ranks)
    monkeypatch.setattr("coconet_lab.cli.bench.compare", measured)
    file = tmp_path / "rows.json"
    assert app.main(["bench", "adam", "--sizes", "64", "128", "--json", str(file)]) == 130
    assert sizes == [Size((64,))]
    assert [r["schedule"] for r in json.loads(file.read_text())["rows"]] == ["naive"]


# The baselines compute what the schedules do: on one rank, where their sums are of one term


class OneRank:
    """The part of an mpi4py communicator that baselines use, for one rank."""

    size = 1

    def Get_rank(self):
        return 0

    def Allreduce(self, given, result):
        result[:] = given


OPTIMIZERS_BY_HAND = [
    (workload, name) for workload in measure.OPTIMIZERS for name in BASELINES[workload] if not name.startswith("gloo")
]


@pytest.mark.parametrize(("workload", "name"), OPTIMIZERS_BY_HAND)
def test_an_optimizer_by_hand_is_the_program(workload, name, monkeypatch):
    made = getattr(cl.workloads, workload)(elements=37, ranks=1)
    drawn = {n: v for n, v in cl.random_inputs(made.program).items() if v.ndim}
    kept = {n: (drawn[n][0] if n == "g" else drawn[n]).copy() for n in ("g", "w", "m", "v") if n in drawn}
    monkeypatch.setattr(hand, "_vectors", lambda what, comm, count: list(kept.values()))
    make_step(HandWritten(name, workload, 37), OneRank())()
    scalars = {"lr": 1e-2 if workload == "sgd" else 1e-3, "b1": 0.9, "b2": 0.999, "eps": 1e-8, "t": 1.0, "decay": 0.01}
    given = drawn | {n: np.float32(scalars[n]) for n in made.program.inputs if n not in drawn}
    expected = oracle.run(made.program, given)
    for tensor, value in expected.state.items():
        np.testing.assert_allclose(kept[tensor], value, rtol=2e-5, atol=1e-6, err_msg=tensor)


@pytest.mark.parametrize("workload", ["self_attention", "mlp"])
def test_an_epilogue_by_hand_has_the_programs_extents_and_drops_a_tenth(workload, monkeypatch):
    made = make(workload, Size((2, 3, 40)), 1, "fp32")
    what = by_hand(made, Size((2, 3, 40)), "mpi4py+numpy", 1, 0, 0)
    assert what.shape == (2, 3, 40, made.program.types["w"].shape[0])
    seen = []

    class Looks(OneRank):
        def Allreduce(self, given, result):
            seen.append(given.shape)
            super().Allreduce(given, result)

    make_step(what, Looks())()
    assert seen == [made.program.types["layer"].shape]


def test_every_offered_baseline_can_be_made():
    assert {(workload, name) for workload, names in BASELINES.items() for name in names} == set(hand._MAKERS)
