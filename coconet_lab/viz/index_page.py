"""One self-contained page of headings, text, tables, code and figures: nothing in it needs a network."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coconet_lab.errors import ToolError
from coconet_lab.viz.notebook import escaped, html_table, image
from coconet_lab.viz.palette import DARK, FONT_STACK, LIGHT, MONO_STACK, page_css

FIGURE_DPI = 160


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a page: its head, its rows, what it shows."""

    head: Sequence[object]
    rows: Sequence[Sequence[object]]
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture of a page and what it shows.

    `picture` is a Drawing, matplotlib Axes or Figure, SVG text, PNG bytes, or the path of an SVG or PNG file.
    """

    picture: Any
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Code:
    """Text in a fixed font: code, a listing, a schedule's script."""

    text: str
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands under it: text, `Table`, `Figure`, `Code`."""

    title: str
    parts: Sequence[str | Table | Figure | Code]


def write_index(
    out_dir: str | Path, title: str, sections: Iterable[Section | tuple[str, Sequence[Any]]], *, note: str = ""
) -> Path:
    """Write ``index.html`` into `out_dir`, which is made if it is missing.

    Parameters
    ----------
    out_dir : path
    title : str
    sections : iterable of Section, or of (title, parts)
    note : str
        A line under the title: where, when and how this was made.

    Returns
    -------
    Path
        The page.

    Raises
    ------
    ToolError
        A figure that is no picture.

    Examples
    --------
    >>> import tempfile
    >>> page = write_index(tempfile.mkdtemp(), "Demo", [("Times", ["Measured.", Table(["a"], [[1]])])])
    >>> page.name
    'index.html'
    """
    folder = Path(out_dir)
    folder.mkdir(parents=True, exist_ok=True)
    made = [s if isinstance(s, Section) else Section(*s) for s in sections]
    page = folder / "index.html"
    page.write_text(page_html(title, made, note), encoding="utf-8")
    return page


def page_html(title: str, sections: Sequence[Section], note: str = "") -> str:
    """The text of the page."""
    body = [f"<h1>{escaped(title)}</h1>"]
    body += [f'<p class="note">{escaped(note)}</p>'] if note else []
    if len(sections) > 2:
        links = "".join(f'<li><a href="#s{at}">{escaped(s.title)}</a></li>' for at, s in enumerate(sections, 1))
        body.append(f"<nav><ol>{links}</ol></nav>")
    for at, section in enumerate(sections, 1):
        body.append(f'<section id="s{at}"><h2>{escaped(section.title)}</h2>')
        body += [_part(part) for part in section.parts]
        body.append("</section>")
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escaped(title)}</title><style>{_CSS}{page_css('.drawn')}</style>"
    )
    text = "\n".join(body)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body><main>\n{text}\n</main></body></html>\n'


def _part(part: str | Table | Figure | Code) -> str:
    match part:
        case Table():
            return f'<div class="wide">{html_table(part.head, part.rows, part.caption)}</div>'
        case Code():
            said = f"<figcaption>{escaped(part.caption)}</figcaption>" if part.caption else ""
            return f"<figure><pre>{escaped(part.text)}</pre>{said}</figure>"
        case Figure():
            return _figure(part)
        case _:
            paragraphs = str(part).split("\n\n")
            return "".join(f"<p>{escaped(paragraph)}</p>" for paragraph in paragraphs if paragraph.strip())


def _figure(figure: Figure) -> str:
    said = f"<figcaption>{escaped(figure.caption)}</figcaption>" if figure.caption else ""
    inner, is_inline = picture_html(figure.picture, figure.caption)
    return f'<figure class="{"drawn" if is_inline else "shown"}"><div class="wide">{inner}</div>{said}</figure>'


def picture_html(picture: Any, caption: str) -> tuple[str, bool]:
    """A picture as HTML, and whether it is the lab's own SVG, which a dark page recolours.

    Raises
    ------
    ToolError
        It is no picture.
    """
    own = getattr(picture, "svg", None)
    if isinstance(own, str):
        return own, True
    if isinstance(picture, str) and picture.lstrip().startswith("<svg"):
        return picture, True
    if isinstance(picture, bytes) and picture.startswith(b"\x89PNG"):
        return _png_image(picture, caption), False
    figure = getattr(picture, "figure", picture)
    if hasattr(figure, "savefig"):
        held = io.BytesIO()
        figure.savefig(held, format="png", dpi=FIGURE_DPI, bbox_inches="tight", facecolor=LIGHT.background)
        return _png_image(held.getvalue(), caption, dpi=FIGURE_DPI), False
    if isinstance(picture, str | Path) and Path(picture).suffix.lower() in (".svg", ".png"):
        path = Path(picture)
        if path.suffix.lower() == ".png":
            return _png_image(path.read_bytes(), caption), False
        return image(path.read_text(encoding="utf-8"), caption), False
    raise ToolError(
        f"a {type(picture).__name__} is no picture",
        rule="a figure is a Drawing, matplotlib Axes, SVG text, PNG bytes, or the path of an .svg or .png file",
        where="write_index",
        hint="Figure(cl.draw(program), caption)",
    )


def _png_image(data: bytes, alt: str, dpi: int = 96) -> str:
    """A PNG inside the page, at its size in inches: a finer one is not larger."""
    width = round(int.from_bytes(data[16:20], "big") * 96 / dpi)  # the header's first number
    address = base64.b64encode(data).decode("ascii")
    return f'<img alt="{escaped(alt)}" width="{width}" src="data:image/png;base64,{address}"/>'


_CSS = f"""
body {{ margin: 0; background: {LIGHT.background}; color: {LIGHT.text}; font: 15px/1.5 {FONT_STACK}; }}
main {{ max-width: 1080px; margin: 0 auto; padding: 24px 20px 60px; }}
h1 {{ font-size: 26px; margin: 0 0 4px; }}
h2 {{ font-size: 19px; margin: 36px 0 8px; padding-top: 12px; border-top: 1px solid {LIGHT.line}; }}
a {{ color: inherit; }}
p {{ max-width: 76ch; }}
nav ol {{ columns: 2 300px; padding-left: 26px; }}
figure {{ margin: 14px 0; }}
figcaption, caption, .note {{ color: {LIGHT.muted}; font-size: 13px; text-align: left; }}
caption {{ caption-side: bottom; padding-top: 4px; }}
.wide {{ overflow-x: auto; }}
.drawn .wide {{ width: max-content; max-width: max(100%, min(50vw + 480px, 100vw - 60px)); }}
.drawn .wide > svg {{ max-width: max(100%, 1400px) !important; }}
.shown img {{ background: #FFFFFF; max-width: 100%; height: auto; padding: 6px; box-sizing: border-box; }}
table {{ border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }}
th, td {{ padding: 3px 14px 3px 0; border-bottom: 1px solid {LIGHT.line}; white-space: nowrap; }}
th {{ color: {LIGHT.muted}; font-weight: normal; }}
pre {{ font: 13px/1.45 {MONO_STACK}; border: 1px solid {LIGHT.line}; border-radius: 6px; }}
pre {{ padding: 10px; overflow-x: auto; }}
@media (prefers-color-scheme: dark) {{
  body {{ background: {DARK.background}; color: {DARK.text}; }}
  h2, th, td, pre {{ border-color: {DARK.line}; }}
  figcaption, caption, .note, th {{ color: {DARK.muted}; }}
}}
"""
