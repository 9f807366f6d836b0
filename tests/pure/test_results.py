"""What a run gives back: values by name, times in words, one CSV schema, and where it all came from."""

from __future__ import annotations

import csv
import io
import json
import pickle
import re
from dataclasses import replace

import numpy as np
import pytest

import coconet_lab as cl
from coconet_lab.errors import ClusterError, CoconetError, IllegalTransform, ProgramError
from coconet_lab.run import provenance as source
from coconet_lab.run.comparison import COLUMNS, Comparison, Row, records_csv
from coconet_lab.run.provenance import Provenance, gpu_label
from coconet_lab.run.results import GlobalValues, HeldValues, RunResult, Timing, assemble, duration
from coconet_lab.run.trace import Span, Trace
from coconet_lab.viz.notebook import SHOWN

SCHEMA = (
    "date machine ranks backend versions command workload schedule dtype elements shape median_us p10_us p90_us samples"
)
FROM = Provenance(
    "2031-02-03T04:05:06+00:00", "cpu2", "2 × A, \"quoted\" chip", 4, "cpu", "python 3.11, numpy 2", "bench adam",
    7, "adam", "AR-Opt",
)  # fmt: skip


def values_of(program, parts, here=()):
    held = HeldValues(program, tuple(program.ops), lambda names: parts)
    return GlobalValues(dict(here), held, program.outputs), held


def a_program(layout=cl.Local):
    g = cl.tensor("g", cl.FP32, (4, 3), cl.Local)
    total = cl.all_reduce(g, name="total")
    made = {cl.Local: g * 2, cl.Replicated: total + 1}.get(layout)
    out = cl.reduce_scatter(g, dim=0, name="part") if made is None else made
    return cl.program("small", outputs=[cl.copy(out, name="out")], ranks=2)


def a_result(samples=(30.0, 10.0, 20.0)):
    program = a_program(cl.Replicated)
    outputs, held = values_of(program, None, {"out": np.zeros((4, 3), np.float32)})
    state = GlobalValues({}, held, ())
    return program, RunResult(outputs, state, Timing(samples, 1.5), Trace(), FROM, held)


@pytest.mark.parametrize(
    ("us", "text"), [(0.5, "0.5 µs"), (999, "999 µs"), (1000, "1 ms"), (12345, "12.3 ms"), (2.5e6, "2.50 s")]
)
def test_times_are_written_as_people_read_them(us, text):
    assert duration(us) == text


def test_a_timing_has_median_and_spread_without_compile_time():
    timing = Timing(tuple(float(i) for i in range(1, 12)), compile_s=9.0)
    assert (timing.median_us, timing.p10_us, timing.p90_us) == (6.0, 2.0, 10.0)
    assert repr(timing) == "6 µs (p10 2 µs, p90 10 µs, 11 repeats)"
    assert repr(Timing((6.0,))) == "6 µs"


@pytest.mark.parametrize("layout", [cl.Local, cl.Replicated, cl.Sliced(0)])
def test_a_global_value_is_put_together_by_its_layout(layout):
    program = a_program(layout)
    whole = np.arange(12, dtype=np.float32).reshape(4, 3)
    parts = {
        cl.Local: [{"out": whole}, {"out": -whole}], cl.Replicated: [{"out": whole}] * 2,
        cl.Sliced(0): [{"out": whole[:2]}, {"out": whole[2:]}],
    }[layout]  # fmt: skip
    expected = np.stack([whole, -whole]) if layout == cl.Local else whole
    np.testing.assert_array_equal(assemble(program, "out", parts), expected)


def test_a_value_of_a_group_is_put_together_of_its_ranks_alone():
    program = cl.workloads.pipeline(batch=4, sequence=2, hidden=4, ranks=4, groups=2).schedules["RS-C-P2P-AG"].program
    blocks = [{}, {}, {"sent_part": np.zeros(2)}, {"sent_part": np.ones(2)}]
    assert assemble(program, "sent_part", blocks).tolist() == [0, 0, 1, 1]


def test_values_left_on_the_ranks_are_fetched_once_when_asked_for():
    program = a_program(cl.Replicated)
    fetched = []

    def parts(names):
        fetched.append(names)
        return [{"out": np.ones((4, 3), np.float32)}] * 2

    outputs = GlobalValues({}, HeldValues(program, ("out",), parts), program.outputs)
    assert repr(outputs) == "{out: on the ranks}"
    assert outputs["out"] is outputs["out"]
    assert fetched == [("out",)]
    assert repr(outputs) == "{out: float32[4, 3]}"
    assert (list(outputs), len(outputs)) == (["out"], 1)


def four_lines(error: CoconetError) -> bool:
    return [line[:8] for line in str(error).splitlines()[1:]] == ["  rule: ", "  in:   ", "  try:  "]


def test_what_a_run_does_not_have_is_refused_in_four_lines():
    program = a_program(cl.Replicated)
    outputs, held = values_of(program, None)
    with pytest.raises(ClusterError, match="'out' was left on the ranks") as gone:
        outputs["out"]
    with pytest.raises(ProgramError, match="the run has no 'total'") as missing:
        outputs["total"]
    absent = HeldValues(program, ("out",), lambda names: [{}, {}])
    with pytest.raises(IllegalTransform, match="rank 1 does not hold 'total'") as inside:
        absent.read(1, "total")
    with pytest.raises(ClusterError, match="there is no rank -1") as rank:
        held.read(-1, "total")
    assert all(four_lines(caught.value) for caught in (gone, missing, inside, rank))


def test_a_result_says_what_ran_where_and_what_came_of_it():
    _, result = a_result()
    assert repr(result).splitlines() == [
        "adam as AR-Opt on 4 ranks, cpu: 20 µs (p10 12 µs, p90 28 µs, 3 repeats)",
        "  outputs {out: float32[4, 3]}",
    ]


# Comparisons


def a_comparison():
    program, slow = a_result()
    fast = a_result((5.0, 5.0, 5.0))[1]
    rows = (Row.of('naive, with a "comma"', program, slow), Row.of("ol(MM,fuse(RS-C-AG))", program, fast, "adam"))
    return Comparison(rows, rows[0].schedule)


def test_records_have_the_columns_of_the_one_schema_in_order():
    records = a_comparison().records()
    assert tuple(SCHEMA.split()) == COLUMNS
    assert all(tuple(record) == COLUMNS for record in records)
    first = records[0]
    assert (first["machine"], first["ranks"], first["dtype"], first["shape"]) == ("cpu2", 4, "fp32", "4x3")
    assert (first["elements"], first["median_us"], first["workload"]) == (12, 20.0, "small")
    assert records[1]["workload"] == "adam"


def test_csv_read_back_gives_the_same_records(tmp_path):
    compared = a_comparison()
    path = tmp_path / "times.csv"
    text = compared.to_csv(path)
    assert path.read_text(encoding="utf-8") == text == records_csv(compared.records())
    with open(path, newline="", encoding="utf-8") as file:
        back = list(csv.DictReader(file))
    for row, record in zip(back, compared.records(), strict=True):
        assert row == {name: str(value) for name, value in record.items()}
        assert json.loads(row["samples"]) == [float(us) for us in json.loads(record["samples"])]
        assert float(row["median_us"]) == record["median_us"]
    assert next(csv.reader(io.StringIO(text))) == list(COLUMNS)


def test_a_row_of_a_mixed_program_is_named_by_what_is_on_the_wire():
    workload = cl.workloads.adam(elements=8, ranks=2, dtype="fp16")
    outputs, held = values_of(workload.program, None, {"p1": np.zeros(8, np.float16)})
    result = RunResult(outputs, GlobalValues({}, held, ()), Timing((1.0,)), Trace(), FROM, held)
    assert Row.of("naive", workload.program, result).dtype == "fp16"


def test_speedups_are_over_the_baseline_and_the_table_says_so():
    compared = a_comparison()
    assert compared.speedup("ol(MM,fuse(RS-C-AG))") == 4.0
    lines = repr(compared).splitlines()
    assert lines[0].split() == ["schedule", "median", "p10", "p90", "over", "naive,", "with", "a", '"comma"']
    assert lines[2].split() == ["ol(MM,fuse(RS-C-AG))", "5", "µs", "5", "µs", "5", "µs", "4.00×"]
    assert lines[-1] == FROM.caption()
    with pytest.raises(ProgramError, match="no schedule 'fused' was measured") as caught:
        compared["fused"]
    assert four_lines(caught.value)


def test_a_comparison_is_drawn_with_its_rows():
    axes = a_comparison().plot()
    texts = [text.get_text() for text in axes.texts]
    assert "4.00×" in texts
    import matplotlib.pyplot as plt

    plt.close(axes.figure)


def test_a_run_and_a_comparison_show_themselves_with_a_picture_and_leave_no_figure_open():
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    _, result = a_result()
    spans = (Span(0, 0, "<b>total</b>", "AllReduce", 0.0, 9.0, "Replicated"),)
    for item, alt in ((replace(result, trace=Trace(spans)), "what every rank did"), (a_comparison(), "median of each")):
        shown = SHOWN[f"{type(item).__module__}.{type(item).__name__}"](item)
        html = shown["text/html"] if isinstance(shown, dict) else ""
        assert f'<img alt="{alt}' in html
        assert "<b>total</b>" not in html
        assert shown["text/plain"] == repr(item)
    assert "outputs" in SHOWN["coconet_lab.run.results.RunResult"](result)["text/html"]
    assert plt.get_fignums() == before


# Provenance


def test_provenance_says_when_where_and_with_what():
    made = source.provenance(ranks=2, backend="cpu", seed=5, program="adam", schedule="AR-Opt")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", made.date)
    assert re.fullmatch(r"cpu\d+", made.machine)
    assert "numpy " in made.versions
    assert made.caption().startswith(f"{made.machine} (")
    assert made.date[:10] in made.caption()
    assert pickle.loads(pickle.dumps(made)) == made


def test_a_gpu_machine_is_named_by_its_gpu(monkeypatch):
    monkeypatch.setattr(source, "gpu_name", lambda: "NVIDIA H200")
    made = source.provenance(ranks=2, backend="cuda", seed=0, program="adam", schedule="AR-Opt")
    assert (made.machine, made.processor) == ("h200x2", "2 × NVIDIA H200")
    assert [gpu_label(name) for name in ("NVIDIA A100-SXM4-80GB", "NVIDIA GeForce RTX 4090")] == ["a100", "4090"]


def test_the_command_has_no_folders_of_this_machine(monkeypatch):
    absolute = "/".join(["", "somewhere", "x.json"])
    monkeypatch.setattr(source.sys, "argv", ["/".join(["", "bin", "coconet-lab"]), "bench", "--json", absolute])
    assert source.command() == "coconet-lab bench --json x.json"
    monkeypatch.setattr(source, "in_kernel", lambda: True)
    assert source.command() == "notebook"
