"""The explorer's words for steps: short names of moves and what they change, from the programs before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from coconet_lab.ir import ops as o
from coconet_lab.ir.program import Program
from coconet_lab.transforms.base import Transform
from coconet_lab.viz.scene import fused_form, short

TITLES = {
    "split": "Split", "reorder": "Reorder", "fuse": "Fuse", "overlap": "Overlap", "as_slice": "As slice",
    "dead": "Drop dead",
}  # fmt: skip
NOT_OPERANDS = {("fuse", "name"), ("overlap", "name"), ("split", "into")}


def step_names(step: Transform) -> tuple[str, ...]:
    """The values and groups a step names, in its own order."""
    found: list[str] = []
    for item in fields(step):  # type: ignore[arg-type]
        value = getattr(step, item.name)
        if (step.kind, item.name) in NOT_OPERANDS:
            continue
        found += [value] if isinstance(value, str) else value if isinstance(value, tuple) else []
    return tuple(found)


def step_title(step: Transform) -> str:
    """``Split``, ``Reorder``, …"""
    return TITLES.get(step.kind, step.kind.replace("_", " ").capitalize())


def operands_text(step: Transform) -> str:
    """What a step works on, as short as it can be said: ``total past out``, ``total_rs … out``, ``layer, fused``."""
    names = [short(name, 24) for name in step_names(step)]
    if step.kind == "reorder" and len(names) > 1:
        return f"{names[0]} past {listed(names[1:], 3)}"
    if step.kind == "fuse" and len(names) > 1:
        return f"{names[0]} … {names[-1]}"
    return listed(names, 4)


def step_words(step: Transform) -> str:
    """A step as the history names it: ``split total``."""
    return f"{step_title(step).lower()} {operands_text(step)}".strip()


def listed(names: Sequence[str], most: int = 3) -> str:
    """Names in a row, the rest counted.

    Examples
    --------
    >>> listed(["m", "v", "w", "p"], 2)
    'm, v and 2 more'
    """
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"


def effect(step: Transform, before: Program, after: Program) -> str:
    """One line on what a step does to a program."""
    maker = {
        "split": _split, "reorder": _reorder, "fuse": _fuse, "overlap": _overlap, "as_slice": _as_slice, "dead": _dead
    }.get(step.kind)  # fmt: skip
    return maker(step, before, after) if maker is not None else step.script()


def _split(step: Transform, before: Program, after: Program) -> str:
    target = step_names(step)[0]
    new = [op.kind for name, op in after.ops.items() if name not in before.ops] + [after.ops[target].kind]
    return f"{before.ops[target].kind} → {' + '.join(new)}"


def _reorder(step: Transform, before: Program, after: Program) -> str:
    sliced = [
        name
        for name, op in after.ops.items()
        if after.types[name].layout.is_sliced
        and not op.is_collective
        and not (name in before.types and before.types[name].layout.is_sliced)
    ]
    gathers = [
        name
        for name, op in after.ops.items()
        if isinstance(op, o.AllGather) and not isinstance(before.ops.get(name), o.AllGather)
    ]
    works = f"{listed(sliced, 3)} work{'s' if len(sliced) == 1 else ''} on slices" if sliced else "nothing is sliced"
    return f"{works}; AllGather now makes {listed(gathers, 3)}" if gathers else works


def _fuse(step: Transform, before: Program, after: Program) -> str:
    groups = [fusion for fusion in after.fusions if fusion not in before.fusions]
    if not groups:
        return "one kernel"
    count = len(groups[0].members)
    form = fused_form(after, groups[0]).removesuffix(", one kernel")
    kind = "" if form == "one kernel" else f": {form}"
    return f"{count} operation{'' if count == 1 else 's'} in one kernel{kind}"


def _overlap(step: Transform, before: Program, after: Program) -> str:
    names = [short(name, 24) for name in step_names(step)]
    together = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    return f"{together} run at once, chunk by chunk"


def _as_slice(step: Transform, before: Program, after: Program) -> str:
    names = step_names(step)
    each = "it" if len(names) == 1 else "them"
    return f"every rank keeps only its block of {each}, 1/{after.group_ranks} of the memory"


def _dead(step: Transform, before: Program, after: Program) -> str:
    gone = [name for name in before.ops if name not in after.ops]
    return f"nobody reads {listed(gone, 4)}"


def touched(step: Transform, before: Program, after: Program) -> tuple[str, ...]:
    """The operations of `before` that a step touches: what it names, groups it makes, and what it changes."""
    named: set[str] = set()
    groups = {f.name: f.members for f in (*before.fusions, *after.fusions)}
    for name in step_names(step):
        named.update(groups.get(name, (name,)))
    for fusion in after.fusions:
        if fusion not in before.fusions:
            named.update(fusion.members)
    named.update(
        name
        for name, op in before.ops.items()
        if after.ops.get(name) is not op and (name not in after.ops or after.ops[name] != op)
    )
    if step.kind == "reorder":
        named.update(n for n in before.ops if n in after.types and before.types[n] != after.types[n])
    return tuple(name for name in before.ops if name in named)
