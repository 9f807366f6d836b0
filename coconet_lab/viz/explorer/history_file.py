"""The history on disk: the whole tree as JSON, written at each move, read back without executing anything.

Several explorers may keep one file: each takes in what the others have written before it writes, so none loses any.
"""

from __future__ import annotations

import json
import secrets
import stat
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


Written = tuple[int, int, int]


class HistoryFile:
    """The file one explorer keeps its history in.

    Parameters
    ----------
    path : Path
    program : Program
        Every history belongs to one program.
    """

    def __init__(self, path: Path, program: Program) -> None:
        self.path = path
        self._program = program
        self._base_json = program_to_json(program)
        self._known: Written | None = None

    def read(self) -> State | None:
        """The state in the file; None where there is no file yet.

        Raises
        ------
        ProgramError
            It cannot be read, is no history, or belongs to another program.
        """
        found = _written(self.path)
        if found is None:
            return None
        try:
            words = self.path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise _bad(_reason(error), str(self.path.name)) from None
        state = from_text(words, self._program, str(self.path.name))
        self._known = found
        return state

    def save(self, state: State) -> State:
        """Write the state, and return it with the schedules that others have put into the file meanwhile.

        Raises
        ------
        ProgramError
            The file cannot be written, is read-only, or was made another program's.
        """
        if _written(self.path) != self._known:
            other = self.read()
            state = merged(state, other) if other is not None else state
        write(self.path, to_text(state, self._base_json))
        self._known = _written(self.path)
        return state


def write(path: Path, words: str) -> None:
    """Replace the file at once, so that a kernel that dies while writing leaves the old one.

    Raises
    ------
    ProgramError
        It cannot be written, or is read-only.
    """
    target = path.resolve()  # a link stays one
    beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.new")
    try:
        if target.exists() and not target.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(f"{path.name} is read-only")
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            beside.write_text(words + "\n", encoding="utf-8")
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise ProgramError(
            f"the history cannot be written: {_reason(error)}",
            rule="the tree of schedules is written at each move",
            where=str(path.name),
            hint="explorer.save('tries.json'), a file in a folder of yours",
        ) from None


def _written(path: Path) -> Written | None:
    """What changes when somebody writes the file; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


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


# -- two writers -----------------------------------------------------------------------------------------------------


def merged(state: State, other: State) -> State:
    """`state`, with the schedules, names, proofs and times that only `other` has; one stays where one is."""
    nodes = list(state.nodes)
    place = {(node.parent, node.step): node.id for node in nodes}
    ours = {0: 0}
    for node in other.nodes:
        if node.parent is not None:
            parent = ours[node.parent]
            if (parent, node.step) not in place:
                place[parent, node.step] = len(nodes)
                nodes.append(Node(len(nodes), parent, node.schedule))
            ours[node.id] = place[parent, node.step]
        nodes[ours[node.id]] = _joined(nodes[ours[node.id]], node)
    return replace(state, nodes=tuple(nodes)) if nodes != list(state.nodes) else state


def _joined(mine: Node, other: Node) -> Node:
    if not mine.proof_text and other.proof_text:
        mine = replace(mine, proof=other.proof, proof_text=other.proof_text)
    return replace(mine, name=mine.name or other.name, measured=mine.measured or other.measured)
