"""What every rank did when: spans that the timeline draws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Span:
    """One entry of the Plan on one rank.

    Parameters
    ----------
    rank : int
    stream : int
    name : str
        The operation or fused group, by the user's name.
    kind : str
        ``kernel``, ``collective``, ``library``, ``transfer`` or ``wait``.
    start_us, end_us : float
        Since the start of the run, which all ranks begin together.
    layout : str or None
        Layout of what it computes, for the colour.
    chunk : int or None
    """

    rank: int
    stream: int
    name: str
    kind: str
    start_us: float
    end_us: float
    layout: str | None = None
    chunk: int | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """The spans of one run, of all ranks."""

    spans: tuple[Span, ...] = ()

    @classmethod
    def gather(cls, per_rank: Sequence[Sequence[Span]]) -> Trace:
        """One trace of the ranks' own spans."""
        return cls(tuple(replace(span, rank=rank) for rank, spans in enumerate(per_rank) for span in spans))

    def __iter__(self) -> Iterator[Span]:
        return iter(self.spans)

    def __len__(self) -> int:
        return len(self.spans)

    @property
    def total_us(self) -> float:
        """From the first start to the last end."""
        return max((s.end_us for s in self.spans), default=0.0)

    def __repr__(self) -> str:
        ranks = len({s.rank for s in self.spans})
        return f"Trace({len(self.spans)} spans on {ranks} ranks, {self.total_us:.0f} µs)"
