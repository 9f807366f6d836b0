"""`layout_picture`: which rank holds which block of a value, or what a collective does to it, for a notebook."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from coconet_lab.viz.layouts import collective_svg, layout_svg


@dataclass(frozen=True, slots=True)
class Picture:
    """An SVG picture that a notebook shows and a file keeps."""

    title: str
    svg: str = field(repr=False)

    def save(self, path: str) -> None:
        """Write the picture as SVG."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.svg)

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
    if collective is not None:
        return Picture(f"{collective} of {item.name}", collective_svg(item, collective))
    return Picture(repr(item), layout_svg(item, ranks))
