"""An exported folder: what is in it, that no name of the user's breaks it, and what cannot be exported."""

from __future__ import annotations

import ast
import re

import numpy as np
import pytest

import coconet_lab as cl
from coconet_lab.errors import ProgramError, ToolError
from coconet_lab.kernels.cuda_compile import Variant, compile_text
from coconet_lab.kernels.numba_compile import compile_file
from coconet_lab.schedule.schedule import Schedule

ATTENTION = cl.workloads.self_attention(batch=4, sequence=3, hidden=20, ranks=2, dtype="fp16")


def test_a_folder_has_a_program_its_steps_and_every_kernel_for_both_targets(tmp_path):
    schedule = ATTENTION.schedules["fuse(RS-C-AG)"]
    main = schedule.export(tmp_path / "made" / "here", seed=7)
    assert main == tmp_path / "made" / "here" / "main.py"
    text = main.read_text(encoding="utf-8")
    compile(text, "main.py", "exec")
    assert "RANKS = 2" in text
    assert "SEED = 7" in text
    assert '.fuse("total_rs", "out")' in text
    assert "mpiexec -n 2 python main.py --benchmark 20" in text
    assert Schedule.load(main.parent / "schedule.json") == schedule
    kernels = sorted((main.parent / "kernels").iterdir())
    assert [path.suffix for path in kernels] == [".cu", ".py"]
    assert kernels[1].read_text(encoding="utf-8").startswith("# kernel of 'fused'\n")


def test_exporting_again_leaves_no_kernel_of_before_and_nothing_else_is_touched(tmp_path):
    ATTENTION.schedules["naive"].export(tmp_path)
    before = {path.name for path in (tmp_path / "kernels").iterdir()}
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "kernels" / "k_mine.txt").write_text("mine")
    ATTENTION.schedules["fuse(RS-C-AG)"].export(tmp_path)
    after = {path.name for path in (tmp_path / "kernels").iterdir()} - {"k_mine.txt"}
    assert before
    assert not before & after
    assert len(after) == 2
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_the_build_line_of_a_cuda_file_builds_it(tmp_path):
    ATTENTION.schedules["MM-AR-C"].export(tmp_path)
    (file,) = (tmp_path / "kernels").glob("*.cu")
    text = file.read_text(encoding="utf-8")
    line = text.splitlines()[1]
    defines = "-DRANK=0 -DUNROLL=1 -DTHREADS=512 -DDEFER=0 -DPUSH=0"
    assert re.fullmatch(rf"// build: nvcc -cubin -arch=sm_90 --std=c\+\+17 --fmad=false {defines} {file.name}", line)
    assert set(Variant("sm_90").options[1:]) <= set(line.split())
    try:
        assert compile_text(file.stem, text, Variant("sm_90"), what="the exported kernel", cache=tmp_path)
    except ToolError as missing:
        pytest.skip(str(missing.found))


HOSTILE = ['"""\nraise SystemExit(9)\n"""', "x\r\nimport os", "a'b\"c\\", "*/ #error", "été \u2028 {} $seed ${ranks}"]


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_of_the_users_gets_out_of_its_comment(name, tmp_path):
    g = cl.tensor("g " + name, cl.FP32, (6,), cl.Local)
    total = cl.all_reduce(g, name="total " + name)
    program = cl.program(name, outputs=[cl.add(total * 2.0, total, name=name)], ranks=2)
    schedule = cl.Schedule(program).split("total " + name).reorder("total " + name, past=name)
    main = schedule.fuse("total " + name + "_rs", name, name="f" + name).export(tmp_path)
    plain = cl.Schedule(program).export(tmp_path / "plain")
    trees = [ast.dump(ast.parse(path.read_text(encoding="utf-8"))) for path in (main, plain)]
    assert trees[0] == trees[1]
    for file in (tmp_path / "kernels").glob("*.py"):
        assert isinstance(ast.parse(file.read_text(encoding="utf-8")).body[0], ast.Import | ast.ImportFrom)
    assert cl.Schedule.load(tmp_path / "schedule.json").base.name == name


def test_a_custom_operator_cannot_be_exported_and_nothing_is_written(tmp_path):
    double = cl.operator("double", meaning=lambda x, ranges: x * 2, expression="{0} + {0}")
    g = cl.tensor("g", cl.FP32, (4,), cl.Replicated)
    program = cl.program("doubled", outputs=[cl.copy(double(g, name="twice"), name="out")], ranks=2)
    with pytest.raises(ProgramError, match="'twice' is a custom operator") as caught:
        cl.Schedule(program).export(tmp_path / "out")
    assert [line[:8] for line in str(caught.value).splitlines()[1:]] == ["  rule: ", "  in:   ", "  try:  "]
    assert not (tmp_path / "out").exists()


def test_a_kernel_file_is_compiled_as_it_is_now(tmp_path):
    file = tmp_path / "k_1.py"
    with pytest.raises(ToolError, match="cannot be loaded"):
        compile_file(file, "k_1")
    arguments = "pointers, extents, scalars, integers, rank, lo, hi, turn, pads, epoch, deadline_ns, opens, closes"
    for number in (3, 5):
        file.write_text(f"def k_1({arguments}):\n    return {number}\n" + "\n" * number)
        none, words = np.zeros((1, 1), np.int64), np.zeros(1, np.int64)
        assert compile_file(file, "k_1")(none, words, np.zeros(1), words, 0, 0, 0, 0, words, 0, 0, 0, 0) == number
