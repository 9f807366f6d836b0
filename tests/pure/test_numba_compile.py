"""Compiled kernels on disk: found again, whole whoever writes, and never needed."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numba
import numpy as np
import pytest
from kernels_by_hand import Hand, launch

from coconet_lab.errors import CodegenError, ToolError
from coconet_lab.ir.dtypes import FP32
from coconet_lab.kernels import numba_compile
from coconet_lab.kernels.numba_compile import CACHE_VARIABLE, cache_directory, compile_numba, compile_share
from coconet_lab.kernels.numba_printer import ARGUMENTS

TESTS = Path(__file__).parents[1]


def small_kernel(name="by hand", value="x"):
    hand = Hand((5,))
    hand.output(hand.apply("Neg", hand.load(hand.tensor(value, FP32))))
    return hand.kernel(name)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    numba_compile._compiled.cache_clear()
    return tmp_path


def is_right(kernel):
    x, y = np.arange(5, dtype=np.float32), np.zeros(5, np.float32)
    launch(kernel, [[x, y]])
    return bool((y == -x).all())


def machine_code(folder):
    return {path.name: path.stat().st_mtime_ns for path in (folder / "__pycache__").glob("*.nb*")}


def test_another_process_finds_the_machine_code_on_disk(folder):
    assert is_right(small_kernel())
    before = machine_code(folder)
    assert before
    body = "from test_numba_compile import *\nprint(is_right(small_kernel('other', 'y')))"
    path = f"import sys\nsys.path[:0] = [{str(TESTS)!r}, {str(TESTS / 'pure')!r}]\n"
    found = subprocess.run([sys.executable, "-c", path + body], capture_output=True, text=True, check=True, timeout=120)
    assert found.stdout.strip() == "True"
    assert machine_code(folder) == before, "a kernel that differs in names alone was compiled again"


def test_ranks_that_compile_at_once_all_get_it(folder):
    found = []
    threads = [threading.Thread(target=lambda: found.append(compile_numba(small_kernel()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(map(id, found))) == 1


def test_each_rank_compiles_its_share(folder):
    kernels = [small_kernel(f"k{at}") for at in range(3)]
    compile_share(kernels, 1, 5)
    assert len(list(folder.glob("*.py"))) == 1
    compile_share(kernels, 4, 5)
    assert len(list(folder.glob("*.tmp"))) == 0


@pytest.mark.parametrize("suffix", ["nbi", "nbc", "py"])
def test_a_damaged_file_costs_time_and_nothing_else(folder, suffix):
    compile_numba(small_kernel())
    numba_compile._compiled.cache_clear()
    damaged = list(folder.rglob(f"*.{suffix}"))
    assert damaged
    for path in damaged:
        path.write_bytes(path.read_bytes()[:10])
    assert is_right(small_kernel())


def test_a_kernel_that_does_not_compile_is_one_error(folder):
    with pytest.raises(CodegenError, match="kernel k_wrong does not compile"):
        numba_compile._compiled("k_wrong", f"def k_wrong({ARGUMENTS}):\n    return nothing\n", str(folder))


def test_without_a_folder_to_write_to_one_is_asked_for(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv(CACHE_VARIABLE, str(blocked / "below"))
    with pytest.raises(ToolError, match=f"{CACHE_VARIABLE}=/some/folder"):
        cache_directory()
    monkeypatch.delenv(CACHE_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "coconet_lab" / "kernels"
