"""Whatever a public function is given: a result, or one error of four lines, never a traceback from inside."""

import numpy as np
import programs
import pytest

import coconet_lab as cl
from coconet_lab import FP16, FP32, GROUP, INT32, Local, Replicated, Sliced
from coconet_lab.arguments import file_access, number, one_of, path, seed, shown, text, whole

R = cl.tensor("r", FP32, (8, 4), Replicated)
X = cl.tensor("x", FP32, (8, 4), Local)
S = cl.tensor("s", FP32, (8, 4), Sliced(0))
H = cl.tensor("h", FP16, (8, 4), Replicated)
INTEGER = cl.tensor("i", INT32, (8, 4), Replicated)
IMAGE, FILTER = cl.tensor("a", FP32, (1, 2, 4, 4), Replicated), cl.tensor("f", FP32, (1, 2, 2, 2), Replicated)
ATTENTION = programs.self_attention()
SCHEDULE = cl.Schedule(ATTENTION).split("total")
INPUTS = cl.random_inputs(ATTENTION)

STRANGE = [
    None, 3, -1, 2.5, "nope", "", [1], {}, object(), np.ones(3), float("nan"), float("inf"), True, b"x", 1 + 2j,
    10**400, np.float32(2.0), np.int64(3), cl, ATTENTION, SCHEDULE, R, ("total", "out"), len,
]  # fmt: skip

LANGUAGE = {
    "tensor name": lambda v: cl.tensor(v, FP32, (4,), Local),
    "tensor dtype": lambda v: cl.tensor("q", v, (4,), Local),
    "tensor shape": lambda v: cl.tensor("q", FP32, v, Local),
    "tensor dim": lambda v: cl.tensor("q", FP32, [v], Local),
    "tensor layout": lambda v: cl.tensor("q", FP32, (4,), v),
    "tensor group": lambda v: cl.tensor("q", FP32, (4,), Local, group=v),
    "tensor low": lambda v: cl.tensor("q", FP32, (4,), Local, low=v),
    "tensor high": lambda v: cl.tensor("q", INT32, (4,), Local, low=0, high=v),
    "tensor bucket": lambda v: cl.tensor("q", FP32, [(4,), (5,)], Local, bucket=v),
    "scalar dtype": lambda v: cl.scalar("q", v),
    "scalar default": lambda v: cl.scalar("q", INT32, low=0, high=9, default=v),
    "matmul": lambda v: cl.matmul(v, R),
    "conv": lambda v: cl.conv(v, FILTER),
    "conv stride": lambda v: cl.conv(IMAGE, FILTER, stride=v),
    "conv padding": lambda v: cl.conv(IMAGE, FILTER, padding=v),
    "add": lambda v: cl.add(R, v),
    "radd": lambda v: cl.add(v, R),
    "half": lambda v: cl.mul(H, v),
    "integer": lambda v: cl.add(INTEGER, v),
    "pow": lambda v: R**v,
    "equal": lambda v: cl.equal(R, v),
    "update": lambda v: cl.update(R, v),
    "update of": lambda v: cl.update(v, R),
    "where": lambda v: cl.where(v, R, R),
    "where else": lambda v: cl.where(INTEGER, R, v),
    "gelu": lambda v: cl.gelu(v),
    "cast": lambda v: cl.cast(v, FP16),
    "cast to": lambda v: cl.cast(R, v),
    "dropout": lambda v: cl.dropout(v, 0.1),
    "dropout p": lambda v: cl.dropout(R, v),
    "sum": lambda v: cl.sum(v),
    "sum dim": lambda v: cl.sum(R, v),
    "norm dims": lambda v: cl.norm(R, [v]),
    "all_reduce": lambda v: cl.all_reduce(v),
    "reduction": lambda v: cl.all_reduce(X, v),
    "reduce_scatter dim": lambda v: cl.reduce_scatter(X, v),
    "reduce root": lambda v: cl.reduce(X, v),
    "broadcast root": lambda v: cl.broadcast(X, v),
    "all_gather": lambda v: cl.all_gather(v),
    "all_to_all split": lambda v: cl.all_to_all(S, v, 0),
    "all_to_all concat": lambda v: cl.all_to_all(S, 1, v),
    "local_slice dim": lambda v: cl.local_slice(R, v),
    "send": lambda v: cl.send(v, to=GROUP + 1),
    "send to": lambda v: cl.send(R, to=v),
    "group plus": lambda v: GROUP + v,
    "group minus": lambda v: GROUP - v,
    "group size": lambda v: GROUP.size * v,
    "by group size": lambda v: cl.div(v, GROUP.size),
    "Sliced": lambda v: Sliced(v),
    "name": lambda v: cl.add(R, R, name=v),
    "scope": lambda v: cl.scope(v).__enter__(),
    "program name": lambda v: cl.program(v, inputs=[R], outputs=[R + 1]),
    "program inputs": lambda v: cl.program("p", inputs=v, outputs=[R + 1]),
    "program outputs": lambda v: cl.program("p", outputs=[v]),
    "program ranks": lambda v: cl.program("p", outputs=[R + 1], ranks=v),
    "program groups": lambda v: cl.program("p", outputs=[R + 1], groups=v),
    "program names": lambda v: cl.program("p", outputs=[R + 1], names=v),
    "spec dtype": lambda v: cl.spec(v),
    "spec shape": lambda v: cl.spec(FP32, v),
    "spec layout": lambda v: cl.spec(FP32, (2,), v),
    "operator name": lambda v: cl.operator(v, meaning=lambda x, ranges: x),
    "operator meaning": lambda v: cl.operator("a", meaning=v),
    "operator infer": lambda v: cl.operator("a", meaning=len, infer=v),
    "operator expression": lambda v: cl.operator("a", meaning=len, expression=v),
    "operator of": lambda v: cl.operator("a", meaning=len)(v),
}

SCHEDULES = {
    "Schedule": lambda v: cl.Schedule(v),
    "split": lambda v: SCHEDULE.split(v),
    "split dim": lambda v: SCHEDULE.undo().split("total", dim=v),
    "split into": lambda v: SCHEDULE.undo().split("total", into=v),
    "reorder": lambda v: SCHEDULE.reorder(v, past="out"),
    "reorder past": lambda v: SCHEDULE.reorder("total", past=v),
    "fuse": lambda v: SCHEDULE.fuse("add_1", v),
    "fuse name": lambda v: SCHEDULE.fuse("add_1", "out", name=v),
    "overlap": lambda v: SCHEDULE.overlap("layer", v),
    "overlap name": lambda v: SCHEDULE.overlap("layer", "total_rs", name=v),
    "as_slice": lambda v: SCHEDULE.as_slice(v),
    "as_slice dim": lambda v: SCHEDULE.as_slice("r", dim=v),
    "dead": lambda v: SCHEDULE.dead(v),
    "then": lambda v: SCHEDULE.then(v),
    "why_not": lambda v: SCHEDULE.why_not(v, "total"),
    "why_not of": lambda v: SCHEDULE.why_not("split", v),
    "undo": lambda v: SCHEDULE.undo(v),
    "before": lambda v: SCHEDULE.before(v),
    "on": lambda v: SCHEDULE.on(v),
    "with_ranks": lambda v: SCHEDULE.with_ranks(v),
    "diff": lambda v: SCHEDULE.diff(v),
    "item": lambda v: SCHEDULE[v],
    "check seed": lambda v: SCHEDULE.check(seed=v),
    "plan hosts": lambda v: SCHEDULE.plan(hosts=v),
    "code": lambda v: SCHEDULE.code(v),
    "from_json": lambda v: cl.Schedule.from_json(v),
    "operators": lambda v: cl.Schedule.from_json(SCHEDULE.to_json(), v),
    "random_inputs": lambda v: cl.random_inputs(v),
    "random_inputs seed": lambda v: cl.random_inputs(ATTENTION, seed=v),
    "simulate": lambda v: cl.simulate(v),
    "simulate inputs": lambda v: cl.simulate(ATTENTION, v),
    "simulate an input": lambda v: cl.simulate(ATTENTION, {**INPUTS, "x": v if not callable(v) else 0}),
    "simulate a scalar": lambda v: cl.simulate(ATTENTION, {**INPUTS, "seed": v if not callable(v) else 0}),
    "on_rank": lambda v: cl.simulate(ATTENTION).on_rank(v),
    "adam elements": lambda v: cl.workloads.adam(elements=v),
    "adam dtype": lambda v: cl.workloads.adam(elements=8, dtype=v),
    "adam ranks": lambda v: cl.workloads.adam(elements=8, ranks=v),
    "mlp batch": lambda v: cl.workloads.mlp(batch=v),
    "mlp hidden": lambda v: cl.workloads.mlp(hidden=v),
    "pipeline groups": lambda v: cl.workloads.pipeline(groups=v),
    "draw": lambda v: cl.draw(v),
    "draw step": lambda v: cl.draw(SCHEDULE, step=v),
    "draw types": lambda v: cl.draw(SCHEDULE, types=v),
    "layout_picture": lambda v: cl.layout_picture(v, "total"),
    "layout_picture of": lambda v: cl.layout_picture(ATTENTION, v),
    "layout_picture ranks": lambda v: cl.layout_picture(R, ranks=v),
    "speedup_bars": lambda v: cl.speedup_bars(v),
    "scaling_lines": lambda v: cl.scaling_lines(v),
    "timeline": lambda v: cl.timeline(v),
    "cluster ranks": lambda v: cl.Cluster(ranks=v, backend="cpu"),
    "cluster backend": lambda v: cl.Cluster(backend=v),
    "cluster profile": lambda v: cl.Cluster(profile=v),
    "cluster nodes": lambda v: cl.Cluster(ranks=2, backend="cpu", nodes=v),
    "cluster options": lambda v: cl.Cluster(ranks=2, backend="cpu", options=v),
    "cluster start": lambda v: cl.Cluster(ranks=2, backend="cpu", options={"start_s": v}),
    "cluster deadline": lambda v: cl.Cluster(ranks=2, backend="cpu", deadline_s=v),
    "attach": lambda v: cl.Cluster.attach("" if isinstance(v, str) else v),
}


@pytest.mark.parametrize("call", LANGUAGE)
def test_a_function_of_the_language_takes_or_refuses_in_four_lines(call):
    _takes_or_refuses(LANGUAGE[call])


@pytest.mark.parametrize("call", SCHEDULES)
def test_schedules_workloads_pictures_and_clusters_take_or_refuse_in_four_lines(call):
    _takes_or_refuses(SCHEDULES[call])


def _takes_or_refuses(call):
    errors = [error for value in STRANGE if (error := _refusal(call, value)) is not None]
    assert errors
    for error in errors:
        told = {"found": error.found, "rule": error.rule, "where": error.where, "hint": error.hint}
        assert all(told.values()), told
        assert not any("\n" in line for line in told.values()), told
        assert len(error.found) < 1000, error.found


def _refusal(call, value):
    """What the call refused the value with; anything but the lab's own error is a failure."""
    try:
        call(value)
    except cl.CoconetError as error:
        return error
    return None


def test_a_python_number_that_the_dtype_does_not_hold_is_refused_and_not_wrapped():
    for large in (2**31, -(2**31) - 1, 2**64, 10**400):
        with pytest.raises(cl.LayoutError, match="cannot add 'i'"):
            INTEGER + large
    for large in (1e6, -1e9, 70000):
        with pytest.raises(cl.LayoutError, match="FP16 does not hold it"):
            H + large
    assert (H + float("inf")).dtype is FP16
    assert (INTEGER + (2**31 - 1)).dtype is INT32


def test_a_python_comparison_of_values_is_no_operand():
    for call in (lambda: R * (R == X), lambda: cl.where(R == X, R, R), lambda: R + True):
        with pytest.raises(cl.ProgramError, match=r"(True|False) is no operand") as caught:
            call()
        assert "cl.equal(a, b)" in caught.value.hint


def test_numpys_numbers_are_python_numbers_in_a_program():
    out = cl.add(R * np.float32(2.5), np.int64(3), name="out")
    scaled = cl.mul(out, GROUP.size * np.float64(0.5))
    program = cl.program("p", outputs=[scaled], ranks=np.int64(2))
    again = cl.Schedule.from_json(cl.Schedule(program).to_json()).program
    assert again.key() == program.key()
    assert "np." not in repr(program)
    np.testing.assert_array_equal(
        cl.simulate(program, {"r": np.ones((8, 4), np.float32)}).outputs[program.outputs[0]],
        np.full((8, 4), 5.5, np.float32),
    )


def test_a_default_lies_between_the_bounds_and_bounds_have_a_value_between_them():
    with pytest.raises(cl.ProgramError, match="default=5 with low=0 and high=1"):
        cl.scalar("q", FP32, low=0, high=1, default=5)
    with pytest.raises(cl.ProgramError, match=r"default=2\.5"):
        cl.scalar("q", INT32, default=2.5)
    with pytest.raises(cl.ProgramError, match=r"low=0\.2 and high=0\.7"):
        cl.tensor("q", INT32, (4,), Local, low=0.2, high=0.7)
    with pytest.raises(cl.ProgramError, match=r"low=1e\+300"):
        cl.tensor("q", FP32, (4,), Local, low=1e300)


def test_a_dim_is_reduced_once():
    with pytest.raises(cl.LayoutError, match="dims of sum"):
        cl.sum(R, (0, -2))
    with pytest.raises(cl.LayoutError, match="cannot reduce dim -3"):
        cl.sum(R, -3)


def test_helpers_keep_what_is_right_and_say_what_is_wrong(tmp_path):
    assert whole(np.int32(4), "n", hint="n=1") == 4
    assert number(np.float32(0.5), "n", hint="n=1") == 0.5
    assert seed(-(2**63)) == -(2**63)
    assert text("a", "n", hint="n") == "a"
    assert one_of("a", ["a", "b"], "n", hint="n") == "a"
    assert path(tmp_path, "n", hint="n") == tmp_path
    assert len(shown("x" * 1000)) < 80
    with pytest.raises(cl.ProgramError, match="cannot read"), file_access("read", tmp_path):
        tmp_path.read_bytes()


@pytest.mark.parametrize("bad", ["", "\0", b"x", 3, None])
def test_a_path_is_a_non_empty_string_or_path(bad, tmp_path):
    for call in (SCHEDULE.save, cl.Schedule.load, SCHEDULE.export, cl.draw(SCHEDULE).save):
        with pytest.raises(cl.CoconetError) as caught:
            call(bad)
        assert all((caught.value.rule, caught.value.where, caught.value.hint))


def test_a_place_that_cannot_be_written_or_read_is_one_error(tmp_path):
    (tmp_path / "file").write_text("x")
    for call in (
        lambda: SCHEDULE.save(tmp_path),
        lambda: SCHEDULE.save(tmp_path / "none" / "s.json"),
        lambda: cl.Schedule.load(tmp_path / "none.json"),
        lambda: cl.Schedule.load(tmp_path),
        lambda: SCHEDULE.export(tmp_path / "file"),
        lambda: cl.draw(SCHEDULE).save(tmp_path / "none" / "x.svg"),
        lambda: cl.layout_picture(ATTENTION, "total").save(tmp_path),
    ):
        with pytest.raises(cl.CoconetError, match=r"cannot (read|write|export to)") as caught:
            call()
        assert str(tmp_path) in caught.value.found


@pytest.mark.parametrize("name", ["\ud800", "a\udfffb"])
def test_a_name_that_is_no_text_survives_scripts_files_and_pictures(name, tmp_path):
    x = cl.tensor("x", FP32, (8,), Local)
    out = cl.dropout(cl.all_reduce(x, name=name), 0.5, name="out")
    schedule = cl.Schedule(cl.program("p", outputs=[out], ranks=4)).split(name)
    made = {}
    exec(schedule.script(), {"cl": cl, "p": schedule.base}, made)
    schedule.save(tmp_path / "s.json")
    cl.draw(schedule).save(tmp_path / "s.svg")
    assert made["s"].program.key() == cl.Schedule.load(tmp_path / "s.json").program.key() == schedule.program.key()
    assert (schedule.export(tmp_path / "out").parent / "schedule.json").exists()


def test_an_operation_of_a_file_that_cannot_be_says_that_it_stands_in_a_file():
    for old, new in (('"dim": 0', '"dim": 7'), ('"Replicated"', '"Local"'), ('"b"', '"c"')):
        with pytest.raises(cl.CoconetError) as caught:
            cl.Schedule.from_json(SCHEDULE.to_json().replace(old, new, 1).replace('"steps": [', '"steps": [{},'))
        assert all((caught.value.rule, caught.value.where, caught.value.hint)), new
    with pytest.raises(cl.ProgramError, match="does not come before it") as caught:
        cl.Schedule.from_json(SCHEDULE.to_json().replace('"name": "layer"', '"name": "lay"', 1))
    assert "in:" in str(caught.value)
