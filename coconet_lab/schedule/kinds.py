"""Steps from method names and arguments, and from JSON."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from coconet_lab.arguments import shown, text, whole
from coconet_lab.errors import ProgramError
from coconet_lab.ir.json import malformed
from coconet_lab.ir.program import NameLike, Program
from coconet_lab.transforms.as_slice import AsSlice
from coconet_lab.transforms.base import Transform
from coconet_lab.transforms.dead import Dead
from coconet_lab.transforms.fuse import Fuse
from coconet_lab.transforms.overlap import Overlap
from coconet_lab.transforms.reorder import Reorder
from coconet_lab.transforms.split import Split

KINDS: dict[str, type[Transform]] = {kind.kind: kind for kind in (Split, Reorder, AsSlice, Dead, Fuse, Overlap)}


def make_step(program: Program, kind: str, names: Sequence[NameLike], arguments: dict[str, Any]) -> Transform:
    """The step a Schedule's method of that name would take; names may be Values.

    Raises
    ------
    ProgramError
        No such kind of step, or arguments it does not take.
    """
    if not isinstance(kind, str) or kind not in KINDS:
        close = difflib.get_close_matches(str(kind), KINDS, n=1) or list(KINDS)
        raise ProgramError(
            f"there is no step {shown(kind)}",
            rule="steps are " + ", ".join(KINDS),
            where=f"program {program.name!r}",
            hint=f'why_not("{close[0]}", …)',
        )
    try:
        return BUILDERS[kind](program, *names, **arguments)
    except TypeError as error:
        raise ProgramError(
            f"{kind}: {error}",
            rule="a step takes the arguments of the Schedule's method",
            where=f"program {program.name!r}",
            hint=f"help(cl.Schedule.{kind})",
        ) from None


def _split(program: Program, target: NameLike, dim: int | None = None, into: str = "rs_ag") -> Transform:
    return Split(_called(program, target), _dim(dim), text(into, "into", hint='into="rs_ag"'))


def _reorder(program: Program, gather: NameLike, past: NameLike | Sequence[NameLike]) -> Transform:
    many = past if isinstance(past, list | tuple) else (past,)
    return Reorder(_called(program, gather), tuple(_called(program, item) for item in many))


def _as_slice(program: Program, *names: NameLike, dim: int | None = None) -> Transform:
    return AsSlice(tuple(_called(program, name) for name in names), _dim(dim))


def _dead(program: Program, name: NameLike | None = None) -> Transform:
    return Dead(None if name is None else _called(program, name))


def _fuse(program: Program, *names: NameLike, name: str | None = None) -> Transform:
    return Fuse(tuple(_called(program, item) for item in names), _name(name))


def _overlap(program: Program, *names: NameLike, name: str | None = None) -> Transform:
    return Overlap(tuple(_called(program, item) for item in names), _name(name))


def _dim(dim: Any) -> int | None:
    return None if dim is None else whole(dim, "a dim", least=None, hint="dim=0")


def _name(name: Any) -> str | None:
    return None if name is None else text(name, "a name", hint='name="fused"')


BUILDERS: dict[str, Callable[..., Transform]] = {
    "split": _split,
    "reorder": _reorder,
    "as_slice": _as_slice,
    "dead": _dead,
    "fuse": _fuse,
    "overlap": _overlap,
}


def _called(program: Program, item: NameLike) -> str:
    """A name as the user gave it: an unknown one is for the step to refuse, in its own words."""
    return item if isinstance(item, str) else program.resolve_any(item)


def step_from_json(data: Any) -> Transform:
    """The step that ``step.to_json()`` described; it is checked against a program only when it is taken.

    Raises
    ------
    ProgramError
        Anything malformed.
    """
    kind = KINDS.get(str(data.get("kind"))) if isinstance(data, dict) else None
    if kind is None:
        raise malformed(f"{data!r} is no step")
    arguments: dict[str, Any] = {}
    for item in fields(kind):  # type: ignore[arg-type]
        if item.name not in data:
            raise malformed(f"a {data['kind']} without {item.name!r}")
        arguments[item.name] = _argument(str(item.type), data[item.name])
    if set(data) != {"kind", *arguments}:
        raise malformed(f"a {data['kind']} with {sorted(set(data) - {'kind', *arguments})}")
    return kind(**arguments)


def _argument(annotation: str, value: Any) -> Any:
    """A step's argument: a name, a tuple of names, a number or nothing, as its declaration says."""
    if value is None and annotation.endswith("None"):
        return None
    if annotation.startswith("tuple[str"):
        if isinstance(value, list) and all(isinstance(name, str) for name in value):
            return tuple(value)
    elif type(value) is {"str": str, "int": int, "bool": bool}.get(annotation.split(" ")[0]):
        return value
    raise malformed(f"{value!r} stands where {annotation} belongs")
