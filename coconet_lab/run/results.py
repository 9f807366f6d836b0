"""What a run gives back: global values, times, trace and provenance, all of which outlive the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coconet_lab.errors import ClusterError, ProgramError
from coconet_lab.run.provenance import Provenance
from coconet_lab.run.trace import Trace

Array = np.ndarray[Any, Any]


class GlobalValues(Mapping[str, Array]):
    """Values by name; those too large to bring along are fetched when they are asked for."""

    def __init__(self, here: dict[str, Array], fetch: Callable[[str], Array], names: tuple[str, ...]) -> None:
        self._here, self._fetch, self._names = here, fetch, names

    def __getitem__(self, name: Any) -> Array:
        key = getattr(name, "name", name)
        if key not in self._names:
            raise ProgramError(
                f"the run has no {key!r}",
                rule="a run keeps its outputs and state",
                hint=", ".join(map(repr, self._names)),
            )
        if key not in self._here:
            self._here[key] = self._fetch(key)
        return self._here[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        shown = [
            f"{n}: {self._here[n].dtype}{list(self._here[n].shape)}" if n in self._here else f"{n}: on the ranks"
            for n in self._names
        ]
        return "{" + ", ".join(shown) + "}"


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of the repeats of one run, in microseconds; compiling is never among them.

    Parameters
    ----------
    samples_us : tuple of float
        Per repeat, the slowest rank's time.
    compile_s : float
        Seconds spent compiling kernels beforehand, the slowest rank's.
    """

    samples_us: tuple[float, ...]
    compile_s: float = 0.0

    @property
    def median_us(self) -> float:
        """Median over the repeats."""
        return float(np.median(self.samples_us))

    @property
    def p10_us(self) -> float:
        """A tenth of the repeats were faster."""
        return float(np.percentile(self.samples_us, 10))

    @property
    def p90_us(self) -> float:
        """A tenth of the repeats were slower."""
        return float(np.percentile(self.samples_us, 90))

    def __repr__(self) -> str:
        n = len(self.samples_us)
        spread = f" (p10 {duration(self.p10_us)}, p90 {duration(self.p90_us)}, {n} repeats)" if n > 1 else ""
        return f"{duration(self.median_us)}{spread}"


def duration(us: float) -> str:
    """Microseconds as people read them.

    Examples
    --------
    >>> duration(12.34), duration(41200), duration(2.5e6)
    ('12.3 µs', '41.2 ms', '2.50 s')
    """
    for limit, unit, scale in ((1e3, "µs", 1.0), (1e6, "ms", 1e3)):
        if us < limit:
            return f"{us / scale:.3g} {unit}"
    return f"{us / 1e6:.2f} s"


@dataclass(frozen=True, eq=False)
class RunResult:
    """The result of `Cluster.run`.

    Parameters
    ----------
    outputs : mapping of name to array
        Global values: a Local one has a leading axis over its group's ranks.
    state : mapping of input name to array
        What is left in every input that is updated in place.
    timing : Timing
    trace : Trace
        What every rank did when, in the last repeat.
    provenance : Provenance
    """

    outputs: GlobalValues
    state: GlobalValues
    timing: Timing
    trace: Trace
    provenance: Provenance
    _read: Callable[[int, str], Array] = field(repr=False)

    def __getitem__(self, name: Any) -> Array:
        key = getattr(name, "name", name)
        return self.state[key] if key not in self.outputs and key in self.state else self.outputs[key]

    def on_rank(self, rank: int) -> RankView:
        """What one rank holds: ``run.on_rank(2)["drop"]`` (fetched from the ranks while they keep the run)."""
        return RankView(rank, self._read)

    @property
    def samples_us(self) -> tuple[float, ...]:
        """Per repeat, the slowest rank's time in microseconds."""
        return self.timing.samples_us

    @property
    def median_us(self) -> float:
        """Median time in microseconds."""
        return self.timing.median_us

    def __repr__(self) -> str:
        p = self.provenance
        lines = [f"{p.program} as {p.schedule} on {p.ranks} ranks, {p.backend}: {self.timing}"]
        lines.append(f"  outputs {self.outputs!r}")
        if len(self.state):
            lines.append(f"  state   {self.state!r}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class RankView:
    """The values one rank holds, by name."""

    rank: int
    read: Callable[[int, str], Array] = field(repr=False)

    def __getitem__(self, name: Any) -> Array:
        return self.read(self.rank, getattr(name, "name", name))


def gone(name: str, where: str) -> ClusterError:
    """The error for a value that was left on ranks that have ended or gone on to another run."""
    return ClusterError(
        f"{name!r} was left on the ranks, and they no longer keep this run",
        rule="outputs up to 256 MiB are brought along; others stay on the ranks until their next run or end",
        where=where,
        hint="read it before the next run, or run it again",
    )
