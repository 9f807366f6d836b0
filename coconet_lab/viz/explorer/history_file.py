"""The history on disk: the whole tree as JSON, written at each move, read back without executing anything."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from coconet_lab.errors import CoconetError, ProgramError
from coconet_lab.ir.json import program_to_json
from coconet_lab.ir.program import Program
from coconet_lab.run.trace import Span
from coconet_lab.schedule.kinds import step_from_json
from coconet_lab.schedule.schedule import Schedule
from coconet_lab.viz.explorer.state import Measured, Node, State

FORMAT = 1
MOST_SPANS = 600
_SPAN = attrgetter(*(field.name for field in fields(Span)))


def to_text(state: State, base_json: Mapping[str, Any] | None = None) -> str:
    """The tree as JSON text; `base_json` is the start's program, written before."""
    base = state.nodes[0].schedule.base
    data = {
        "format": FORMAT,
        "what": "history of a coconet_lab explorer",
        "program": base_json if base_json is not None else program_to_json(base),
        "current": state.current,
        "nodes": [_node_json(node) for node in state.nodes],
    }
    return json.dumps(data, ensure_ascii=False)


def write(path: Path, words: str) -> None:
    """Replace the file at once, so that a kernel that dies while writing leaves the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    beside.write_text(words + "\n", encoding="utf-8")
    beside.replace(path)


def from_text(words: str, program: Program, where: str = "history") -> State:
    """The state of such a text, on the program it was made for.

    Raises
    ------
    ProgramError
        Anything malformed, another format, or a history of another program.
    """
    try:
        data = json.loads(words)
        if data["format"] != FORMAT:
            raise _bad(f"it has format {data['format']!r}, this version reads {FORMAT}", where)
        # Compared as text: sets and tuples of the one are lists of the other.
        if data["program"] != json.loads(json.dumps(program_to_json(program))):
            raise ProgramError(
                f"this history belongs to another program than {program.name!r}",
                rule="a history goes on from the program it was made for",
                where=where,
                hint="another file: cl.explore(program, history='other.json')",
            )
        nodes: list[Node] = []
        for at, item in enumerate(data["nodes"]):
            nodes.append(_node(at, item, nodes, program))
        return State(tuple(nodes), _index(data["current"], len(nodes)))
    except CoconetError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _bad(f"{type(error).__name__}: {error}", where) from None


def _bad(why: str, where: str) -> ProgramError:
    return ProgramError(
        f"this is no history of an explorer: {why}",
        rule="explorer.save(file) writes what history=file reads",
        where=where,
        hint="another file, or remove it to start anew",
    )


def _index(value: Any, count: int) -> int:
    if type(value) is not int or not 0 <= value < count:
        raise ValueError(f"{value!r} stands where one of {count} schedules belongs")
    return value


def _node_json(node: Node) -> dict[str, Any]:
    found: dict[str, Any] = {"parent": node.parent, "step": node.step.to_json() if node.step is not None else None}
    found |= {"name": node.name, "proof": node.proof, "proof_text": node.proof_text}
    if node.measured is not None:
        kept = asdict(replace(node.measured, spans=()))
        found["measured"] = {**kept, "spans": [_SPAN(span) for span in node.measured.spans[:MOST_SPANS]]}
    return found


def _node(at: int, item: Mapping[str, Any], nodes: list[Node], program: Program) -> Node:
    if at == 0:
        if item["parent"] is not None:
            raise ValueError("its first schedule has a parent")
        schedule, parent = Schedule(program), None
    else:
        parent = _index(item["parent"], at)
        schedule = nodes[parent].schedule.then(step_from_json(item["step"]))
    proof = item["proof"]
    if proof not in ("unchecked", "proved", "wrong"):
        raise ValueError(f"{proof!r} is no verdict")
    measured = _measured(item["measured"]) if "measured" in item else None
    return Node(at, parent, schedule, str(item["name"]), proof, str(item["proof_text"]), measured)


def _measured(item: Mapping[str, Any]) -> Measured:
    return Measured(
        tuple(float(sample) for sample in item["samples_us"]), int(item["asked"]), int(item["ranks"]),
        str(item["backend"]), str(item["caption"]), tuple(_span(values) for values in item["spans"]),
    )  # fmt: skip


def _span(values: Any) -> Span:
    rank, stream, name, kind, start_us, end_us, layout, chunk = values
    return Span(
        int(rank), int(stream), str(name), str(kind), float(start_us), float(end_us),
        None if layout is None else str(layout), None if chunk is None else int(chunk),
    )  # fmt: skip
