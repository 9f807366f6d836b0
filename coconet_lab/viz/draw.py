"""`draw`: a program or a schedule as a picture a notebook shows and a file keeps, with or without Graphviz."""

from __future__ import annotations

import base64
import re
import subprocess
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from coconet_lab.arguments import file_access, refusal, whole
from coconet_lab.arguments import path as checked_path
from coconet_lab.errors import ProgramError, ToolError
from coconet_lab.graphviz_shim import find_layout_engine
from coconet_lab.ir.program import Program
from coconet_lab.site import caller_site
from coconet_lab.viz.dot import scene_dot
from coconet_lab.viz.paint import prefixed, scene_bytes, scene_svg, with_head
from coconet_lab.viz.palette import FONT_STACK
from coconet_lab.viz.plan import plan_scene
from coconet_lab.viz.scene import Outline, Scene, program_scene

LAYOUT_SECONDS = 60.0
PNG_DPI = 144
MOST_STEPS = 8
FORMATS = ("svg", "png", "pdf", "dot")
PAGE_POINTS = 660  # of JupyterLab's own page and of an exported one
_SIZE = re.compile(r'width="(\d+)pt" height="(\d+)pt"')


def draw(
    item: Any,
    step: int | None = None,
    types: str = "changes",
    *,
    highlight: frozenset[str] = frozenset(),
    opened: frozenset[str] = frozenset(),
    limit: int = 40,
) -> Drawing:
    """The dataflow graph of a program or a schedule, coloured by layout; or what a Plan runs, stream by stream.

    Parameters
    ----------
    item : Program, Schedule or Plan
    step : int or None
        Of a schedule: step `step`, counted from 1, as before | after with what it changed lit (-1 is the last); None
        draws the result.
    types : "changes" or "all"
        Print dtype and shape where they are new, or everywhere.
    highlight : names
        Operations to light.
    opened : dotted scopes
        Left open where a program has more than `limit` boxes and scopes fold.
    limit : int
        Most boxes before scopes fold.

    Returns
    -------
    Drawing
        A notebook shows it; ``.save("x.svg")`` (or .png, .pdf, .dot) writes it; ``.source`` is the DOT text.

    Raises
    ------
    ProgramError
        `item` is neither, or has no such step.

    Examples
    --------
    >>> import coconet_lab as cl
    >>> g = cl.tensor("g", cl.FP32, (8,), cl.Local)
    >>> drawing = draw(cl.program("sum", outputs=[cl.all_reduce(g, name="total")], ranks=4))
    >>> drawing.source.startswith("digraph")
    True
    """
    if not isinstance(types, str) or types not in ("changes", "all"):
        raise refusal("types", types, 'types are printed where they change ("changes"), or "all"', 'types="all"')
    if step is not None:
        return _draw_step(item, step, types, opened, limit)
    if hasattr(item, "entries") and hasattr(item, "buffers"):
        return Drawing(plan_scene(item), f"plan of {item.name}: {len(item.entries)} entries")
    program = item if isinstance(item, Program) else getattr(item, "program", None)
    if not isinstance(program, Program):
        rule = "a program, a schedule or a plan has a drawing"
        raise refusal("what to draw", item, rule, 'cl.draw(cl.program("p", outputs=[out]))')
    scene = program_scene(program, highlight=highlight, types=types, opened=opened, limit=limit)
    if item is not program:
        scene = replace(scene, notes=_steps_text(item))
    return Drawing(scene, repr(item))


def _steps_text(schedule: Any) -> tuple[str, ...]:
    """The steps of a schedule, one a line, for the picture's foot."""
    lines = [f"{at} {_script(record.step)}" for at, record in enumerate(getattr(schedule, "record", ()), 1)]
    return tuple(lines if len(lines) <= MOST_STEPS else [f"… {len(lines) - MOST_STEPS} steps", *lines[-MOST_STEPS:]])


def _script(step: Any) -> str:
    script = getattr(step, "script", None)
    return str(script() if callable(script) else step)


def _draw_step(schedule: Any, step: int, types: str, opened: frozenset[str], limit: int) -> Drawing:
    records = getattr(schedule, "record", ())
    step = whole(step, "a step", least=None, hint="cl.draw(schedule)")
    number = step + len(records) + 1 if step < 0 else step
    if not 1 <= number <= len(records):
        count = f"steps 1 to {len(records)}" if records else "no steps"
        raise ProgramError(
            f"there is no step {step!r} to draw: it has {count}",
            rule="step=k draws step k of a schedule, counted from 1, before and after",
            where=str(caller_site() or ""), hint="cl.draw(schedule)",
        )  # fmt: skip
    record = records[number - 1]
    title = f"step {number}: {_script(record.step)}"
    return draw_change(record.before, record.after, title=title, types=types, opened=opened, limit=limit)


def draw_change(
    before: Program, after: Program, *, title: str = "", types: str = "changes",
    opened: frozenset[str] = frozenset(), limit: int = 40,
) -> Drawing:  # fmt: skip
    """Two programs side by side, before | after, with what differs lit in both.

    Examples
    --------
    >>> import coconet_lab as cl
    >>> g = cl.tensor("g", cl.FP32, (8,), cl.Local)
    >>> p = cl.program("sum", outputs=[cl.all_reduce(g, name="total")], ranks=4)
    >>> "before" in draw_change(p, p.with_ranks(8)).source
    True
    """
    sides = []
    root = Outline("graph", "root", "")
    for word, mine, other in (("before", before, after), ("after", after, before)):
        scene = program_scene(
            mine, highlight=changed_names(mine, other), types=types, opened=opened, limit=limit,
            prefix=f"{word}_", changed_groups=changed_groups(mine, other),
        )  # fmt: skip
        side = Outline(f"{word}_side", "side", word, mine.name, boxes=scene.root.boxes, inner=scene.root.inner)
        root.inner[word] = side
        sides.append(scene)
    name = f"{after.name} · {title}" if title else after.name
    ids = {f"{word} {name}": box for word, scene in zip(("before", "after"), sides) for name, box in scene.ids.items()}
    return Drawing(Scene(name, root, sides[0].edges + sides[1].edges, ids), f"{before!r}\n\n{after!r}")


def changed_names(program: Program, other: Program) -> frozenset[str]:
    """Values of `program` that `other` lacks, or that have another operation or type there."""
    return frozenset(
        name
        for name, op in program.ops.items()
        if name not in other.ops or other.ops[name] != op or other.types[name] != program.types[name]
    )


def changed_groups(program: Program, other: Program) -> frozenset[str]:
    """Fused groups and overlaps of `program` that are not so in `other`."""
    there = {*((f.name, f.members) for f in other.fusions), *((v.name, v.stages) for v in other.overlaps)}
    here = [*((f.name, f.members) for f in program.fusions), *((v.name, v.stages) for v in program.overlaps)]
    return frozenset(name for name, parts in here if (name, parts) not in there)


@dataclass(frozen=True)
class Drawing:
    """A graph picture: shown by notebooks, written by `save`; `source` is DOT for any Graphviz."""

    scene: Scene
    text: str = ""

    @cached_property
    def source(self) -> str:
        """The DOT text."""
        return scene_dot(self.scene)

    @cached_property
    def svg(self) -> str:
        """SVG for a page: several fit in one page, no script, no fonts from elsewhere, white background."""
        laid_out = layout(self.source, "svg")
        return scene_svg(self.scene) if laid_out is None else page_svg(laid_out.decode("utf-8"), self.scene.title)

    def save(self, path: str | Path) -> Path:
        """Write the picture; the file's ending says how: ``.svg``, ``.png``, ``.pdf`` or ``.dot``."""
        target = checked_path(path, "a drawing's file", hint='.save("x.svg")', error=ToolError)
        kind = target.suffix.lower().removeprefix(".")
        if kind not in FORMATS:
            raise ToolError(
                f"a drawing cannot be saved as {target.name!r}", rule=f"endings: {', '.join('.' + f for f in FORMATS)}",
                where="Drawing.save", hint=f'.save("{target.stem or "drawing"}.svg")',
            )  # fmt: skip
        with file_access("write", target, ToolError):
            if kind == "dot":
                target.write_text(self.source, encoding="utf-8")
            elif kind == "svg":
                target.write_text(f'<?xml version="1.0" encoding="UTF-8"?>\n{self.svg}\n', encoding="utf-8")
            else:
                target.write_bytes(layout(self.source, kind) or scene_bytes(self.scene, kind))
        return target

    def png(self) -> bytes:
        """The picture as PNG, for what shows no SVG."""
        return layout(self.source, "png") or scene_bytes(self.scene, "png")

    def _repr_svg_(self) -> str:
        return fitted(self.svg)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, str], dict[str, Any]]:
        # Notebooks that are not trusted yet show no SVG, and LaTeX and code-hosting pages want a PNG.
        svg = fitted(self.svg)
        size = re.search(_SIZE, svg)
        pixels = {"width": round(int(size[1]) * 4 / 3), "height": round(int(size[2]) * 4 / 3)} if size else {}
        shown = {
            "image/svg+xml": svg,
            "image/png": base64.b64encode(self.png()).decode("ascii"),
            "text/plain": self.text,
        }
        return shown, {"image/png": pixels}

    def __repr__(self) -> str:
        return self.text


def layout(source: str, kind: str) -> bytes | None:
    """What Graphviz makes of DOT text, or None where it is missing, fails or takes over a minute."""
    engine = find_layout_engine()
    if engine is None:
        return None
    command = [engine, f"-T{kind}", *([f"-Gdpi={PNG_DPI}"] if kind == "png" else [])]
    try:
        done = subprocess.run(
            command, input=source.encode("utf-8"), capture_output=True, timeout=LAYOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 and done.stdout else None


def fitted(svg: str) -> str:
    """A picture a little wider than a notebook's page, shrunk to fit it; one much wider stays legible and scrolls."""
    size = re.search(_SIZE, svg)
    if size is None or not 1.0 < int(size[1]) / PAGE_POINTS < 1.5:
        return svg
    height = round(int(size[2]) * PAGE_POINTS / int(size[1]))
    return svg.replace(size[0], f'width="{PAGE_POINTS}pt" height="{height}pt"', 1)


def page_svg(text: str, title: str) -> str:
    """Graphviz's SVG made fit for a page: no prolog, ids of its own, tooltips as titles, fonts every browser has."""
    text = re.sub(r"<!--.*?-->\n?", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r"<title>[^<]*&#45;&gt;[^<]*</title>\n?", "", text)
    text = re.sub(
        r'<title>[^<]*</title>\s*<g id="a_[^"]*"><a xlink:title="([^"]*)">(.*?)</a>\s*</g>',
        r"<title>\1</title>\2",
        text,
        flags=re.DOTALL,
    )
    text = re.sub(r'font-family="[^"]*"', f'font-family="{FONT_STACK}"', text)
    return prefixed(with_head(text, title))
