"""Bars, lines and timelines: what they say, in numbers a reader can check, and what they refuse."""

from __future__ import annotations

from itertools import pairwise

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import to_hex

from coconet_lab import InputError
from coconet_lab.run.trace import Span, Trace
from coconet_lab.viz.charts import is_by_hand, scaling_lines, speedup_bars, spread
from coconet_lab.viz.palette import LIGHT
from coconet_lab.viz.timeline import timeline

HOW = {"machine": "cpu2", "date": "2026-01-31", "command": "coconet-lab bench adam", "ranks": "4"}


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def record(schedule: str, median: float, **more) -> dict:
    return {
        "schedule": schedule,
        "median_us": str(median),
        "p10_us": median * 0.9,
        "p90_us": median * 1.2,
        **HOW,
        **more,
    }


BARS = [record("mpi4py+numpy", 58400), record("AR-Opt", 41200), record("fuse(RS-Opt-AG)", 20600)]


def said(ax) -> list[str]:
    return [text.get_text() for text in ax.texts]


def test_bars_say_the_time_and_the_speedup_against_the_baseline():
    ax = speedup_bars(BARS, baseline="AR-Opt")
    assert said(ax)[:6] == ["58.4 ms", "0.71×", "41.2 ms", "1.00×", "20.6 ms", "2.00×"]
    assert [bar.get_width() for bar in ax.patches] == pytest.approx([58.4, 41.2, 20.6])
    assert [label.get_text() for label in ax.get_yticklabels()] == [row["schedule"] for row in BARS]


def test_the_current_bar_is_black_the_hand_written_one_dashed_the_others_grey():
    hand, grey, black = speedup_bars(BARS).patches
    assert hand.get_facecolor()[3] == 0
    assert hand.get_linestyle() != "-"
    assert to_hex(black.get_facecolor()) == LIGHT.text.lower()
    assert to_hex(grey.get_facecolor()) not in (LIGHT.text.lower(), "#ffffff")


def test_whiskers_run_from_p10_to_p90():
    segments = [c.get_segments()[0][:, 0] for c in speedup_bars(BARS).collections]
    assert segments[1] == pytest.approx([41.2 * 0.9, 41.2 * 1.2])


def test_the_caption_has_machine_date_and_command_or_what_was_given():
    assert said(speedup_bars(BARS))[-1] == (
        "median, whiskers p10 to p90; cpu2, 4 ranks, 2026-01-31\ncoconet-lab bench adam"
    )
    assert "h200x2" in said(speedup_bars(BARS, provenance={"machine": "h200x2"}))[-1]
    mixed = [BARS[0], {**BARS[1], "machine": "other"}]
    assert "cpu2" not in said(speedup_bars(mixed))[-1]


def test_a_plot_draws_where_it_is_told():
    _, (top, middle, low) = plt.subplots(3)
    assert speedup_bars(BARS, ax=top) is top
    assert scaling_lines([record("a", 1, elements=8)], ax=middle) is middle
    assert timeline([Span(0, 0, "a", "kernel", 0.0, 1.0)], ax=low) is low


@pytest.mark.parametrize("name", ["mpi4py+numpy", "all_reduce", "matmul+all_reduce+pointwise"])
def test_library_calls_are_by_hand(name):
    assert is_by_hand(name)


@pytest.mark.parametrize("name", ["AR-Opt", "fuse(RS-Opt-AG)", "ol(MM,fuse(RS-C-AG))", "start"])
def test_the_papers_schedules_are_not_by_hand(name):
    assert not is_by_hand(name)


def test_bars_refuse_no_records_two_sizes_an_unknown_baseline_and_a_missing_column():
    with pytest.raises(InputError, match="no records"):
        speedup_bars([])
    with pytest.raises(InputError, match="2 records are of schedule 'AR-Opt'"):
        speedup_bars([BARS[1], BARS[1]])
    with pytest.raises(InputError, match="baseline 'gloo'"):
        speedup_bars(BARS, baseline="gloo")
    with pytest.raises(InputError, match="cannot be drawn"):
        speedup_bars([{"schedule": "a", "median_us": 1}])
    with pytest.raises(InputError, match="cannot be drawn"):
        speedup_bars([record("a", float("nan"))])


def lines(factor: float = 2.0) -> list[dict]:
    sizes = [2**k for k in range(10, 14)]
    slow = [record("AR-Opt", 10.0 * n, elements=str(n)) for n in reversed(sizes)]
    return slow + [record("fuse(RS-Opt-AG)", 10.0 * n / factor, elements=str(n)) for n in sizes]


def test_lines_are_sorted_along_a_log2_axis_with_a_band():
    ax = scaling_lines(lines())
    assert ax.get_xscale() == "log"
    assert ax.xaxis.get_transform().base == 2
    assert list(ax.lines[0].get_xdata()) == [1024, 2048, 4096, 8192]
    band = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((10.24 * 0.9, 81.92 * 1.2))


def test_speedup_lines_are_the_baselines_time_divided_by_theirs():
    ax = scaling_lines(lines(2.5), y="speedup", baseline="AR-Opt")
    assert list(ax.lines[1].get_ydata()) == pytest.approx([2.5] * 4)
    band = ax.collections[1].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((2.5 / 1.2, 2.5 / 0.9))


def test_sizes_the_baseline_did_not_measure_are_left_out():
    rows = [row for row in lines() if (row["schedule"], row["elements"]) != ("AR-Opt", "2048")]
    ax = scaling_lines(rows, y="speedup", baseline="AR-Opt")
    assert list(ax.lines[1].get_xdata()) == [1024, 4096, 8192]


def test_each_dtype_has_lines_and_a_baseline_of_its_own():
    rows = [{**row, "dtype": "fp32"} for row in lines(2.0)] + [{**row, "dtype": "fp16"} for row in lines(4.0)]
    ax = scaling_lines(rows, y="speedup", baseline="AR-Opt")
    ends = {text.get_text() for text in ax.texts}
    assert {"AR-Opt fp32", "fuse(RS-Opt-AG) fp32", "AR-Opt fp16", "fuse(RS-Opt-AG) fp16"} <= ends
    assert [line.get_ydata()[0] for line in ax.lines[:4]] == pytest.approx([1, 2, 1, 4])


def test_lines_refuse_what_is_no_column():
    with pytest.raises(InputError, match="y is 'p10_us'"):
        scaling_lines(lines(), y="p10_us")
    with pytest.raises(InputError, match="cannot be drawn"):
        scaling_lines(lines(), x="nodes")
    with pytest.raises(InputError, match="baseline 'x'"):
        scaling_lines(lines(), y="speedup", baseline="x")
    with pytest.raises(InputError, match="no records"):
        scaling_lines([])


def test_labels_keep_their_distance_and_their_order():
    places = spread({"a": 0.5, "b": 0.51, "c": 0.52, "d": 0.9}, 0.1)
    values = list(places.values())
    assert list(places) == ["a", "b", "c", "d"]
    assert all(upper - lower >= 0.1 - 1e-9 for lower, upper in pairwise(values))
    assert places["d"] == 0.9


SPANS = (
    Span(1, 0, "layer", "library", 0.0, 900.0, "Local", 0),
    Span(1, 1, "fused", "collective", 900.0, 1900.0, "Sliced(2)", 0),
    Span(0, 0, "layer", "library", 0.0, 1000.0, "Local", 0),
    Span(0, 1, "fused", "wait", 0.0, 1000.0),
    Span(0, 1, "fused", "collective", 1000.0, 1900.0, "Sliced(2)", 0),
    Span(0, 2, "b", "kernel", 0.0, 10.0, "Replicated"),
)


def test_a_timeline_has_a_row_for_every_stream_of_every_rank():
    ax = timeline(Trace(SPANS))
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels == ["rank 0", "link", "stream 2", "rank 1", "link"]
    assert ax.get_xlabel() == "µs"


def test_spans_have_the_colour_of_their_layout_and_waiting_is_dashed_and_empty():
    ax = timeline(SPANS)
    fills = {to_hex(c.get_facecolor()[0]) for c in ax.collections if len(c.get_facecolor())}
    assert fills == {LIGHT.local.fill.lower(), LIGHT.sliced.fill.lower(), LIGHT.replicated.fill.lower()}
    hollow = [c for c in ax.collections if not len(c.get_facecolor())]
    assert len(hollow) == 1
    assert hollow[0].get_linestyle()[0][1] is not None


def test_long_runs_are_in_milliseconds_and_the_legend_names_the_operations():
    ax = timeline([Span(0, 0, "<layer>$x$", "kernel", 0.0, 5000.0, "Local")])
    assert ax.get_xlabel() == "ms"
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["<layer>$x$"]
    ax.figure.canvas.draw()


def test_many_operations_are_told_by_layout():
    spans = [Span(0, 0, f"op{k}", "kernel", k, k + 1, ("Local", "Sliced(0)")[k % 2]) for k in range(20)]
    assert [t.get_text() for t in timeline(spans).get_legend().get_texts()] == ["Local", "Sliced"]


def test_streams_with_names_keep_them_and_no_span_is_refused():
    ax = timeline([Span(0, "copy", "a", "transfer", 0.0, 1.0), Span(0, "main", "a", "kernel", 0.0, 1.0)])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["rank 0", "main"]
    with pytest.raises(InputError, match="no span"):
        timeline(Trace())
