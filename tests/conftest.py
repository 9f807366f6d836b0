"""Tiers by folder, golden files, and skips that name what is missing.

A test belongs to the tier of its folder: tests/pure, tests/mpi, tests/notebooks, tests/browser, tests/gpu.  `pytest`
alone runs the pure tier; ``--tier all`` (what `make test` runs) or a path runs the others, each skipped *by name* where
the machine lacks a tool.  With CI=true a tier that should exist and ran nothing fails the run.
"""

from __future__ import annotations

import gc
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from coconet_lab.doctor import this_host
from coconet_lab.doctor.facts import PROBES

TESTS = Path(__file__).parent
# In the order they run; with the facts of `coconet-lab doctor` that each needs.
NEEDS: dict[str, tuple[str, ...]] = {
    "pure": (),
    "mpi": ("mpi", "cluster"),
    "notebooks": ("jupyter", "mpi", "cluster"),
    "browser": ("browser", "playwright", "jupyter"),
    "gpu": ("gpus", "cupy"),
}
IN_CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")
RAN = pytest.StashKey[Counter[str]]()
SILENT = pytest.StashKey[list[str]]()

# A slow machine is not a wrong program, and what failed in CI must fail again at home.
settings.register_profile("lab", deadline=None, print_blob=True, derandomize=IN_CI)
settings.load_profile("lab")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", action="append", choices=[*NEEDS, "all"], help="run this tier; may be given again")
    parser.addoption("--update-golden", action="store_true", help="rewrite golden files instead of comparing")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[RAN] = Counter()
    config.stash[SILENT] = []


def tier_of(path: Path) -> str | None:
    """The tier of a file under tests/, or None for what lies in no tier's folder."""
    parts = path.relative_to(TESTS).parts if path.is_relative_to(TESTS) else ()
    return parts[0] if parts and parts[0] in NEEDS else None


def selected_tiers(config: pytest.Config) -> set[str]:
    """All where a path or a marker was named, those of --tier where it was given, else the pure one."""
    asked = config.getoption("--tier")
    if asked:
        return set(NEEDS) if "all" in asked else set(asked)
    named = config.args_source is pytest.Config.ArgsSource.ARGS or config.getoption("markexpr")
    return set(NEEDS) if named else {"pure"}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    # Left out before it is imported: a broken import in one tier must not break the others.
    tier = tier_of(collection_path)
    return True if tier is not None and tier not in selected_tiers(config) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    reasons: dict[str, str | None] = {}
    for item in items:
        tier = tier_of(item.path)
        if tier is None:
            continue
        item.add_marker(getattr(pytest.mark, tier))
        if tier not in reasons:
            reasons[tier] = missing_tools(tier)
        if reasons[tier]:
            item.add_marker(pytest.mark.skip(reason=f"{tier} tier: {reasons[tier]}"))
    order = list(NEEDS)
    items.sort(key=lambda item: order.index(tier_of(item.path) or "pure"))


def pytest_collection_finish(session: pytest.Session) -> None:
    # Programs and plans are many small objects without cycles, which the collector would walk again and again in vain.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def missing_tools(tier: str) -> str | None:
    """What this machine lacks for a tier, in the doctor's words, or None."""
    host = this_host()
    facts = (PROBES[name](host) for name in NEEDS[tier])
    return next((f"{fact.name}: {fact.text}" for fact in facts if not fact.present), None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.when == "call" and not report.skipped:
        item.config.stash[RAN][tier_of(item.path) or "pure"] += 1
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    narrowed = config.getoption("keyword") or config.getoption("markexpr") or config.getoption("collectonly")
    if not IN_CI or narrowed or not config.getoption("--tier"):
        return
    for tier in sorted(selected_tiers(config)):
        if should_exist(tier) and not config.stash[RAN][tier]:
            config.stash[SILENT].append(tier)
    if config.stash[SILENT] and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def should_exist(tier: str) -> bool:
    """Every tier whose folder has a test file; the gpu tier only where there is a GPU."""
    if tier == "gpu" and not PROBES["gpus"](this_host()).present:
        return False
    return any((TESTS / tier).rglob("test_*.py"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for tier in config.stash[SILENT]:
        # A report of its own, so that the closing line counts it as an error and does not read as success.
        name = f"{tier} tier: it should exist here, and none of its tests ran"
        report = pytest.TestReport(name, ("tests", 0, tier), {}, "failed", name, "setup")
        terminalreporter.stats.setdefault("error", []).append(report)


@pytest.fixture
def need() -> Callable[[str], str]:
    """``need("nvcc")``: the program's path; without it the test is skipped, with the program's name."""

    def find(program: str) -> str:
        path = this_host().which(program)
        if path is None:
            pytest.skip(f"needs {program}, which is not installed")
        return path

    return find


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[..., None]:
    """``golden(text)``: equal to tests/golden/<file>/<test>.txt, rewritten by --update-golden; a missing one fails."""

    def compare(text: str, suffix: str = ".txt") -> None:
        name = re.sub(r"[^\w.=+-]+", "-", request.node.name).strip("-")
        file = TESTS / "golden" / request.node.path.stem.removeprefix("test_") / f"{name}{suffix}"
        if request.config.getoption("--update-golden"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            return
        if not file.exists():
            pytest.fail(f"no golden file {file.relative_to(TESTS.parent)}: look at it after `pytest --update-golden`")
        assert text == file.read_text(encoding="utf-8"), (
            f"{file.relative_to(TESTS.parent)} differs; see --update-golden"
        )

    return compare
