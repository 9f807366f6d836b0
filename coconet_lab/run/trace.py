"""What every rank did when: spans that the timeline draws."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from coconet_lab.ir.types import TensorType
from coconet_lab.kernels.plan import Plan
from coconet_lab.run.engine_trace import Span as EngineSpan


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
    def gather(cls, plan: Plan, types: Mapping[str, TensorType], per_rank: Sequence[Sequence[EngineSpan]]) -> Trace:
        """One trace of what the engines of all ranks kept; the layouts are those of what an entry computes."""
        layouts = [_layout(entry.ops, types) for entry in plan.entries]
        return cls(
            tuple(
                Span(
                    rank,
                    s.stream,
                    s.name,
                    s.kind,
                    s.start_us,
                    s.end_us,
                    layouts[s.index],
                    s.chunk if s.chunk >= 0 else None,
                )
                for rank, spans in enumerate(per_rank)
                for s in spans
            )
        )

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


def _layout(ops: Sequence[str], types: Mapping[str, TensorType]) -> str | None:
    """The layout an entry is coloured by: of the last value it computes."""
    return types[ops[-1]].layout.kind if ops else None
