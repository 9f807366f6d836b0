"""The house style as numbers: sizes, imports, docstrings, one environment in two files, nothing of one machine."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import networkx
import pytest
import yaml

ROOT = Path(__file__).parents[2]
MODULES = sorted([*(ROOT / "coconet_lab").rglob("*.py"), ROOT / "coconet_dot.py"])
BENCHMARKS = sorted((ROOT / "benchmarks").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
FUNCTION_LINES, FILE_LINES = 60, 400

# conda's own packages where they differ from the wheels: its Graphviz has a real `dot`, its MPICH its own numbers.
CONDA_NAMES = {
    "graphviz": "python-graphviz",
    "pygraphviz": "graphviz",
    "matplotlib": "matplotlib-base",
    "mpich": "mpich",
}
OWN_BOUNDS = {"pygraphviz", "mpich"}
ONLY_CONDA = {"python", "pip", "make"}


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.fixture(autouse=True, scope="module")
def trees_end_with_the_module() -> Iterator[None]:
    yield
    parsed.cache_clear()


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """As `ast.walk`, without expressions, in which nothing is imported and no function defined."""
    pending = [tree]
    while pending:
        node = pending.pop()
        yield node
        pending += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)]


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in statements(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node


def lines_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function, its docstring included."""
    return node.end_lineno - node.lineno + 1


def public_functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions of the module and methods of its public classes that a user may call."""
    scopes: list[ast.Module | ast.ClassDef] = [tree]
    while scopes:
        scope = scopes.pop()
        for node in scope.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                scopes.append(node)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
                yield node


@pytest.mark.parametrize("path", [*MODULES, *BENCHMARKS, *TESTS], ids=shown)
def test_a_file_has_at_most_400_lines_and_a_function_at_most_60(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= FILE_LINES, f"{shown(path)} has {len(text.splitlines())} lines"
    long = {name: lines_of(node) for name, node in functions(parsed(path)) if lines_of(node) > FUNCTION_LINES}
    assert not long, f"{shown(path)}: {long}"


@pytest.mark.parametrize("path", MODULES, ids=shown)
def test_every_public_function_has_a_docstring_and_a_return_annotation(path):
    tree = parsed(path)
    assert ast.get_docstring(tree), f"{shown(path)} does not say what it is for"
    bare = [node.name for node in public_functions(tree) if ast.get_docstring(node) is None or node.returns is None]
    assert not bare, f"{shown(path)}: {bare}"


@pytest.mark.parametrize("path", [*MODULES, *BENCHMARKS, *TESTS], ids=shown)
def test_nothing_is_imported_by_a_star(path):
    stars = [
        node.lineno
        for node in statements(parsed(path))
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
    ]
    assert not stars


def layers() -> list[set[str]]:
    """The folders and modules of each layer, from the top."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    (contract,) = tools["importlinter"]["contracts"]
    return [set(re.findall(r"coconet_lab\.(\w+)", layer)) for layer in contract["layers"]]


def test_every_folder_is_a_layer_and_every_layer_is_there():
    package = ROOT / "coconet_lab"
    named = set().union(*layers())
    folders = {path.parent.name for path in package.glob("*/__init__.py")}
    assert folders <= named
    assert named - folders <= {path.stem for path in package.glob("*.py")}


@pytest.mark.parametrize("page", ["DESIGN.md", "CONTRIBUTING.md"])
def test_a_page_that_shows_the_layers_shows_those_that_are_checked(page):
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    (line,) = [line for line in lines if line.startswith("cli ") and line.endswith(" errors")]
    assert [set(re.findall(r"\w+", part)) for part in line.split(">")] == layers()


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_at_load(tree: ast.Module, names: set[str]) -> Iterator[str]:
    """Own modules that loading this one loads: imports outside functions and outside ``if TYPE_CHECKING``."""
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        pending += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)]
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module in names:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (module if module in names else node.module for module in inner)


def import_graph() -> networkx.DiGraph:
    names = {module_name(path) for path in MODULES}
    graph = networkx.DiGraph()
    for path in MODULES:
        graph.add_edges_from((module_name(path), other) for other in imports_at_load(parsed(path), names))
    return graph


def test_no_import_cycle_and_no_relative_import():
    cycles = [sorted(part) for part in networkx.strongly_connected_components(import_graph()) if len(part) > 1]
    assert not cycles
    relative = [
        shown(path)
        for path in MODULES
        for node in statements(parsed(path))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert not relative


def test_the_import_graph_is_not_empty_so_that_a_cycle_would_be_seen():
    graph = import_graph()
    assert graph.has_edge("coconet_lab.cli", "coconet_lab.cli.app")
    tree = ast.parse("from coconet_lab import cli\ndef f():\n    from coconet_lab import doctor\n")
    names = {"coconet_lab", "coconet_lab.cli", "coconet_lab.doctor"}
    assert list(imports_at_load(tree, names)) == ["coconet_lab.cli"]


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def split(requirement: str) -> tuple[str, str]:
    name, bound = re.fullmatch(r"([\w.-]+)\s*(.*)", requirement).groups()
    return name, bound


def conda_requirements() -> tuple[dict[str, str], dict[str, str]]:
    listed = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    wheels = next(entry["pip"] for entry in listed if isinstance(entry, dict))
    return dict(split(entry) for entry in listed if isinstance(entry, str)), dict(map(split, wheels))


def test_environment_yml_and_pyproject_describe_one_environment():
    described = project()
    wanted = dict(map(split, [*described["dependencies"], *described["optional-dependencies"]["test"]]))
    conda, wheels = conda_requirements()
    for name, bound in wanted.items():
        found = {**wheels, **conda}.get(CONDA_NAMES.get(name, name))
        assert found is not None, f"{name} is missing in environment.yml"
        assert name in OWN_BOUNDS or found == bound, f"{name}: {found} in environment.yml, {bound} in pyproject.toml"
    extra = {*conda, *wheels} - {CONDA_NAMES.get(name, name) for name in wanted} - ONLY_CONDA
    assert not extra, f"only in environment.yml: {extra}"
    assert conda["python"] == described["requires-python"]


def test_environment_yml_names_the_optional_packages_with_their_bounds():
    comments = re.findall(r"# - (\S+)", (ROOT / "environment.yml").read_text(encoding="utf-8"))
    optional = project()["optional-dependencies"]
    assert comments == [*optional["gpu"], *optional["bench"]]


def tracked_text() -> Iterator[tuple[str, str]]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    if listed.returncode != 0:
        pytest.skip("needs a git checkout to know which files are tracked")
    for name in filter(None, listed.stdout.split("\0")):
        try:
            yield name, (ROOT / name).read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError):
            continue


# Put together here, so that this file does not hold what it forbids.
FOLDERS = "|".join(["work", "root", "tmp", "home/\\w+"])
MACHINE_PATH = re.compile(rf"(?<![\w.$~}})/-])/(?:{FOLDERS})(?=/)")
HOSTS = [".".join(parts) for parts in (("pypi", "org"), ("pythonhosted", "org"), ("anaconda", "org"), ("npmjs", "org"))]


def test_no_tracked_file_names_a_path_of_one_machine_or_a_package_registry():
    found = []
    for name, text in tracked_text():
        for number, line in enumerate(text.splitlines(), 1):
            if MACHINE_PATH.search(line) or any(host in line for host in HOSTS):
                found.append(f"{name}:{number}: {line.strip()[:100]}")
    assert not found, "\n".join(found)


def test_the_search_for_machine_paths_finds_them_and_leaves_others_alone():
    slash = "/"
    assert MACHINE_PATH.search(f'open("{slash}work{slash}x")')
    assert MACHINE_PATH.search(f"{slash}home{slash}ada{slash}x")
    assert not MACHINE_PATH.search("notebooks/work/x and $HOME/tmp/x and https://example.com/root/x")


def test_no_two_test_modules_share_a_name():
    # pytest imports them by name alone: of two with one name the second tier would not be collected.
    names = [path.name for path in sorted((ROOT / "tests").rglob("*.py"))]
    assert {name for name in names if names.count(name) > 1} <= {"__init__.py", "conftest.py"}
