"""Where a value's elements live: on every rank its own, on every rank the same, or one block a rank (paper §2.1)."""

from __future__ import annotations

from dataclasses import dataclass

from coconet_lab.arguments import whole
from coconet_lab.errors import LayoutError


@dataclass(frozen=True, slots=True)
class Layout:
    """How a value is spread over the ranks of its group: `Local`, `Replicated` or ``Sliced(dim)``."""

    kind: str
    dim: int | None = None

    @property
    def is_local(self) -> bool:
        """Every rank holds a value of its own."""
        return self.kind == "Local"

    @property
    def is_replicated(self) -> bool:
        """Every rank holds the same value."""
        return self.kind == "Replicated"

    @property
    def is_sliced(self) -> bool:
        """Rank k of the group holds block k of `dim`."""
        return self.kind == "Sliced"

    def __repr__(self) -> str:
        return self.kind if self.dim is None else f"{self.kind}({self.dim})"


Local = Layout("Local")
Replicated = Layout("Replicated")


def Sliced(dim: int) -> Layout:
    """Rank k of the group holds block k of dimension `dim`.

    Examples
    --------
    >>> Sliced(0)
    Sliced(0)
    """
    return Layout("Sliced", whole(dim, "the dim of Sliced", hint="cl.Sliced(0)", error=LayoutError))
