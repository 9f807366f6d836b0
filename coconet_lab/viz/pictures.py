"""`layout_picture`: which rank holds which block of a value, or what a collective does to it, for a notebook."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from coconet_lab.arguments import file_access, refusal, whole
from coconet_lab.arguments import path as checked_path
from coconet_lab.errors import ToolError
from coconet_lab.ir.program import Program
from coconet_lab.viz.layouts import collective_svg, layout_svg


@dataclass(frozen=True, slots=True)
class Picture:
    """An SVG picture that a notebook shows and a file keeps."""

    title: str
    svg: str = field(repr=False)

    def save(self, path: str) -> None:
        """Write the picture as SVG."""
        where = checked_path(path, "a picture's file", hint='.save("x.svg")', error=ToolError)
        with file_access("write", where, ToolError):
            where.write_text(self.svg, encoding="utf-8")

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"image/svg+xml": self.svg, "text/plain": self.title}


def layout_picture(item: Any, collective: str | None = None, *, ranks: int | None = None) -> Picture:
    """Which rank holds which block.

    Parameters
    ----------
    item : value of a program, TensorType with `ranks`, or Program with `collective`
    collective : str or None
        The name of a collective of the program: its operand and its result, with the bytes each rank sends.
    ranks : int or None
        For a bare type.

    Examples
    --------
    >>> import coconet_lab as cl
    >>> g = cl.tensor("g", cl.FP32, (8,), cl.Local)
    >>> program = cl.program("sum", outputs=[cl.all_reduce(g, name="total")], ranks=4)
    >>> layout_picture(program, "total")
    Picture(title='total of sum')
    """
    if ranks is not None:
        ranks = whole(ranks, "the number of ranks", least=1, hint="ranks=4")
    if collective is not None and not isinstance(item, Program):
        rule = "a collective is one of a program's"
        raise refusal("where the collective is", item, rule, "layout_picture(program, name)")
    if collective is not None:
        return Picture(f"{collective} of {item.name}", collective_svg(item, collective))
    return Picture(repr(item), layout_svg(item, ranks))
