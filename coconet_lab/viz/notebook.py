"""How values, programs, schedules and verdicts show themselves in a notebook; the layers below never import drawing."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from coconet_lab.ir.layout import Layout
from coconet_lab.viz.palette import LIGHT
from coconet_lab.viz.scene import type_line, visible

Bundle = dict[str, str] | tuple[dict[str, str], dict[str, Any]]


def register_formatters(shell: Any = None) -> bool:
    """Attach the lab's rich displays to an IPython shell; registering again is harmless.

    Types are named, not imported, so that this costs nothing before the first one is shown.

    Parameters
    ----------
    shell : InteractiveShell or None
        None takes the running one.

    Returns
    -------
    bool
        False where there is no shell.

    Examples
    --------
    >>> register_formatters() in (True, False)
    True
    """
    if shell is None:
        try:
            from IPython import get_ipython
        except ImportError:
            return False
        shell = get_ipython()
    if shell is None:
        return False
    formatter = shell.display_formatter.mimebundle_formatter
    for name, show in SHOWN.items():
        module, _, kind = name.rpartition(".")
        formatter.for_type_by_name(module, kind, show)
    return True


def html_table(head: Sequence[object], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """An HTML table; all text is escaped, numbers are to the right.

    Examples
    --------
    >>> "&lt;b&gt;" in html_table(["name", "ms"], [["<b>", 1.5]])
    True
    """
    body = [list(row) for row in rows]
    right = [all(_is_number(row[at]) for row in body if at < len(row)) and bool(body) for at in range(len(head))]
    cells = "".join(_cell("th", text, to_right) for text, to_right in zip(head, right))
    lines = [f"<tr>{''.join(_cell('td', text, to_right) for text, to_right in zip(row, right))}</tr>" for row in body]
    said = f"<caption>{escaped(caption)}</caption>" if caption else ""
    return f"<table>{said}<thead><tr>{cells}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def escaped(text: object) -> str:
    """Text for HTML: escaped, lines kept, and what a screen cannot show written out."""
    return "\n".join(html.escape(visible(line)) for line in str(text).split("\n"))


def image(svg: str, alt: str) -> str:
    """A picture as an ``img``, which pages that are not trusted yet show too."""
    address = base64.b64encode(svg.encode("utf-8")).decode("ascii")
    return f'<img alt="{escaped(alt)}" src="data:image/svg+xml;base64,{address}" style="max-width:100%"/>'


def chip(layout: Layout) -> str:
    """A layout's name on its colour."""
    paint = LIGHT.paint(layout)
    look = f"background-color:{paint.fill};color:{paint.ink};border:1px solid {paint.ink}"
    return f'<span style="{look};border-radius:6px;padding:1px 6px;font-weight:bold">{escaped(layout)}</span>'


# -- one function a type ---------------------------------------------------------------------------------------------


def show_graph(item: Any) -> Bundle:
    """A Program, Schedule or Plan: its drawing, and its text for consoles."""
    from coconet_lab.viz.draw import draw

    return draw(item)._repr_mimebundle_()


def show_step(item: Any) -> Bundle:
    """A step that was taken: before and after."""
    from coconet_lab.viz.draw import draw_change

    data, sizes = draw_change(item.before, item.after, title=str(item.step.script()))._repr_mimebundle_()
    return {**data, "text/plain": repr(item)}, sizes


def show_diff(item: Any) -> Bundle:
    """The difference of two programs: before and after."""
    from coconet_lab.viz.draw import draw_change

    data, sizes = draw_change(item.before, item.after)._repr_mimebundle_()
    return {**data, "text/plain": repr(item)}, sizes


def show_value(item: Any) -> Bundle:
    """A value: what makes it, its type, its layout on the layout's colour."""
    made = repr(item).rpartition(f": {item.type!r}")[0] or repr(item)
    return {"text/html": f"<code>{escaped(made)}</code> {_type_html(item.type)}", "text/plain": repr(item)}


def show_program_value(item: Any) -> Bundle:
    """A value of a program: as a value, with the picture of which rank holds what."""
    from coconet_lab.viz.layouts import layout_svg

    line = show_value(item)
    text = line["text/html"] if isinstance(line, dict) else ""
    picture = image(layout_svg(item), f"layout of {item.name}: {item.type}")
    return {"text/html": f"<div>{text}</div><div>{picture}</div>", "text/plain": repr(item)}


def show_type(item: Any) -> Bundle:
    """A type: dtype and shape, its layout on the layout's colour."""
    return {"text/html": _type_html(item), "text/plain": repr(item)}


def show_layout(item: Any) -> Bundle:
    """A layout on its colour."""
    return {"text/html": chip(item), "text/plain": repr(item)}


def show_refusal(item: Any) -> Bundle:
    """A refusal: what was found, the rule, a way out."""
    parts = [("", item.found), ("rule", item.rule), ("try", item.hint)]
    lines = [f"<b>{label}</b> {escaped(text)}" if label else escaped(text) for label, text in parts if text]
    look = f"border-left:4px solid {LIGHT.bad};padding:4px 10px"
    text = "\n".join(f"{label + ': ' if label else ''}{said}" for label, said in parts if said)
    return {"text/html": f'<div style="{look}">{"<br>".join(lines)}</div>', "text/plain": text}


def show_proof(item: Any) -> Bundle:
    """A proof, green."""
    look = f"color:{LIGHT.good};background-color:{LIGHT.background};border:1px solid {LIGHT.good}"
    text = f'<span style="{look};border-radius:10px;padding:2px 8px">✓ {escaped(repr(item))}</span>'
    return {"text/html": text, "text/plain": repr(item)}


def show_comparison(item: Any) -> Bundle:
    """A comparison: its table, with where and how it was measured, and its bars."""
    from coconet_lab.viz.charts import speedup_bars

    caption = item.rows[0].provenance.caption() if item.rows else ""
    head = ["schedule", "median", "p10", "p90", f"over {item.baseline}"]
    bars = _plot(speedup_bars(item.records(), baseline=item.baseline), "median of each schedule") if item.rows else ""
    return {"text/html": html_table(head, item.table(), caption) + bars, "text/plain": repr(item)}


def show_run(item: Any) -> Bundle:
    """A run: its time, what it left, and what every rank did when."""
    from coconet_lab.viz.timeline import timeline

    source = item.provenance
    rows = [("time", repr(item.timing)), ("outputs", repr(item.outputs)), ("state", repr(item.state))]
    table = html_table([f"{source.program} as {source.schedule}", ""], rows, source.caption())
    spans = _plot(timeline(item.trace), "what every rank did when") if len(item.trace) else ""
    return {"text/html": table + spans, "text/plain": repr(item)}


def _plot(axes: Any, alt: str) -> str:
    """A plot as a picture of the page; the figure is let go, so that no front end shows it a second time."""
    import matplotlib.pyplot as plt

    from coconet_lab.viz.index_page import picture_html

    picture, _ = picture_html(axes, alt)
    plt.close(axes.figure)
    return picture


SHOWN: dict[str, Callable[[Any], Bundle]] = {
    "coconet_lab.ir.program.Program": show_graph,
    "coconet_lab.schedule.schedule.Schedule": show_graph,
    "coconet_lab.schedule.record.StepRecord": show_step,
    "coconet_lab.schedule.diff.ProgramDiff": show_diff,
    "coconet_lab.kernels.plan.Plan": show_graph,
    "coconet_lab.lang.value.Value": show_value,
    "coconet_lab.ir.value.ProgramValue": show_program_value,
    "coconet_lab.ir.types.TensorType": show_type,
    "coconet_lab.ir.layout.Layout": show_layout,
    "coconet_lab.errors.Refusal": show_refusal,
    "coconet_lab.schedule.proof.Proof": show_proof,
    "coconet_lab.run.comparison.Comparison": show_comparison,
    "coconet_lab.run.results.RunResult": show_run,
}


def _type_html(kind: Any) -> str:
    group = f" group {kind.group}" if kind.group else ""
    return f"<code>{escaped(type_line(kind))}</code> {chip(kind.layout)}{group}"


def _cell(tag: str, text: object, to_right: bool) -> str:
    side = "right" if to_right else "left"
    return f'<{tag} style="text-align:{side}">{escaped(text)}</{tag}>'


def _is_number(text: object) -> bool:
    """A number, perhaps with a unit or a sign around it: ``1.88×``, ``−65 %``, ``21.9 ms``, ``–`` for none."""
    if isinstance(text, int | float):
        return True
    words = str(text).replace(",", "").strip("+−-×%≤≥~ ").split(" ")
    return str(text) in ("–", "") or (len(words) <= 2 and words[0].replace(".", "", 1).isdigit())
