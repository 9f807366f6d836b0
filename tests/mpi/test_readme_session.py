"""The README's session, whole and at its own size, on the four ranks it asks for."""

from __future__ import annotations

import re
from pathlib import Path

import coconet_lab as cl

README = Path(__file__).parents[2] / "README.md"


def test_the_readmes_session_runs_to_its_last_line() -> None:
    found = re.search(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert found
    code = found[1].replace("cl.Cluster(ranks=4)", "cluster")
    lines = code.rstrip().splitlines()
    with cl.Cluster(ranks=4, backend="cpu") as cluster:
        space: dict[str, object] = {"cluster": cluster}
        exec("\n".join(lines[:-1]), space)
        out = eval(lines[-1].split("#")[0], space)
        assert (out.shape, out.dtype) == ((4, 64, 3072), "float16")
        read_as_the_table_says(cluster, space)


def read_as_the_table_says(cluster: cl.Cluster, space: dict[str, object]) -> None:
    """What the table "What you can do" reads from a run of the session's schedule is held there."""
    row = re.search(r"^\| run it \| `run = [^`]*`; (.*) \|$", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert row
    expressions = re.findall(r"`(run[^`]*)`", row[1])
    assert len(expressions) == 3
    schedule = space["s"]
    assert isinstance(schedule, cl.Schedule)
    space["run"] = cluster.run(schedule)
    for expression in expressions:
        assert eval(expression, space) is not None
