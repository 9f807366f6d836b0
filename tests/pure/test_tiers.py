"""The test run itself: which tier runs when, what CI refuses, and that a missing golden file fails."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"
SETTINGS = (
    '[tool.pytest.ini_options]\ntestpaths = ["tests"]\nmarkers = ["pure", "mpi", "notebooks", "browser", "gpu"]\n'
)


@pytest.fixture(scope="module")
def started():
    """Forks of one process that imported what each run imports, and in which no pytest has run."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pytest", "hypothesis", "coconet_lab.doctor"])
    return context.Process


@pytest.fixture
def suite(tmp_path, started):
    """A small project with this project's conftest; ``suite(files, *arguments)`` runs pytest in it."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "pyproject.toml").write_text(SETTINGS)
    shutil.copy(CONFTEST, tmp_path / "tests" / "conftest.py")

    def run(files: dict[str, str], *arguments: str, ci: bool = False) -> tuple[int, str]:
        for name, text in files.items():
            path = tmp_path / "tests" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        process = started(target=run_pytest, args=(tmp_path, arguments, ci))
        process.start()
        process.join(timeout=120)
        process.kill()
        assert process.exitcode is not None, "the run hangs"
        return process.exitcode, (tmp_path / "said").read_text()

    return run


def run_pytest(folder: Path, arguments: tuple[str, ...], ci: bool) -> None:
    """``python -m pytest`` in a folder, of a process made for it; what it says goes to a file."""
    os.chdir(folder)
    said = os.open("said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(said, stream)
    # This project's plugins have no part in it, and files written twice in a second must not be taken for the old ones.
    os.environ.update(CI="true" if ci else "", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    sys.dont_write_bytecode = True
    sys.exit(pytest.main(["-p", "no:cacheprovider", *arguments]))


PASSES = "def test_it(): pass\n"
SKIPS = "import pytest\ndef test_it(): pytest.skip('no')\n"


def test_pytest_alone_runs_the_pure_tier_and_a_broken_import_elsewhere_does_not_matter(suite):
    status, said = suite({"pure/test_a.py": PASSES, "mpi/test_b.py": "import no_such_module\n"})
    assert status == 0
    assert "1 passed" in said


def test_ci_fails_when_a_tier_that_should_exist_ran_nothing(suite):
    files = {"pure/test_a.py": PASSES, "notebooks/test_b.py": SKIPS}
    status, said = suite(files, "-ra", "--tier", "pure", "--tier", "notebooks", ci=True)
    assert status == 1
    assert "notebooks tier: it should exist here, and none of its tests ran" in said
    assert "1 passed, 1 skipped, 1 error" in said.splitlines()[-1]
    status, _ = suite(files, "--tier", "pure", "--tier", "notebooks")
    assert status == 0


def test_a_missing_golden_file_fails_and_update_golden_writes_it(suite):
    files = {"pure/test_g.py": "def test_text(golden): golden('one\\n')\n"}
    status, said = suite(files)
    assert status == 1
    assert "no golden file tests/golden/g/test_text.txt" in said
    assert suite(files, "--update-golden")[0] == 0
    status, said = suite({"pure/test_g.py": "def test_text(golden): golden('two\\n')\n"})
    assert status == 1
    assert "tests/golden/g/test_text.txt differs" in said


def test_a_missing_program_skips_by_its_name(suite):
    status, said = suite({"pure/test_n.py": "def test_it(need): need('no-such-program')\n"}, "-rs")
    assert status == 0
    assert "needs no-such-program, which is not installed" in said
