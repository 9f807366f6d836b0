"""What a rank did and when: one span an entry."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """One entry of a Plan as it ran on one rank.

    Parameters
    ----------
    name, kind : str
        The entry's name, and what it is: ``Launch``, ``AllReduce``, ``MatMul``, …
    stream : int
    start_us, end_us : float
        Microseconds since the run began on this rank.
    chunk : int
        Its chunk, or -1.
    index : int
        Its place in the Plan.
    """

    name: str
    kind: str
    stream: int
    start_us: float
    end_us: float
    chunk: int
    index: int
