"""What a run gives back: global values, times, trace and provenance, all of which outlive the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coconet_lab.arguments import whole
from coconet_lab.errors import ClusterError, IllegalTransform, ProgramError
from coconet_lab.ir.program import Program
from coconet_lab.run.provenance import Provenance
from coconet_lab.run.trace import Trace

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class HeldValues:
    """The values of one run that are still on the ranks.

    Parameters
    ----------
    program : Program
    names : tuple of str
        Values that are stored, on some rank.
    parts : callable
        ``parts(names)``: what every rank holds of them, in rank order; None once the ranks keep the run no longer.
    """

    program: Program
    names: tuple[str, ...]
    parts: Callable[[tuple[str, ...]], Sequence[Mapping[str, Array]] | None] = field(repr=False)

    def resolve(self, item: Any) -> str:
        """The name of a value, given by name or as the Value itself."""
        return item if isinstance(item, str) else self.program.resolve(item)

    def fetch(self, name: str) -> Array:
        """The global value."""
        return assemble(self.program, name, self._present((name,)))

    def read(self, rank: int, item: Any) -> Array:
        """What `rank` holds of a value."""
        name = self.program.resolve(item)
        if not 0 <= rank < self.program.ranks:
            raise ClusterError(
                f"there is no rank {rank}",
                rule=f"ranks are 0 to {self.program.ranks - 1}",
                where=f"run of program {self.program.name!r}",
                hint="run.on_rank(0)",
            )
        part = self._present((name,))[rank]
        if name not in part:
            raise self.not_held(f"rank {rank} does not hold {name!r}")
        return part[name]

    def whole(self, names: Iterable[str]) -> dict[str, Array]:
        """The global values of several names, fetched at once."""
        wanted = tuple(names)
        parts = self._present(wanted) if wanted else ()
        return {name: assemble(self.program, name, parts) for name in wanted}

    def _present(self, names: tuple[str, ...]) -> Sequence[Mapping[str, Array]]:
        found = self.parts(names)
        if found is None:
            raise gone(names[0], f"run of program {self.program.name!r}")
        return found

    def not_held(self, found: str) -> IllegalTransform:
        """The error for a value that is computed but not stored where it was asked for."""
        return IllegalTransform(
            found,
            rule="values inside a kernel live in registers; values of a group live on its ranks",
            where=f"run of program {self.program.name!r}",
            hint=f"one of {', '.join(map(repr, self.names))}, or make it an output",
        )


class GlobalValues(Mapping[str, Array]):
    """Values by name; those too large to bring along are fetched when they are asked for."""

    def __init__(self, here: Mapping[str, Array], held: HeldValues, names: Iterable[str]) -> None:
        self._held, self._names = held, tuple(names)
        self._here = {name: here[name] for name in self._names if name in here}

    def __getitem__(self, name: Any) -> Array:
        key = self._held.resolve(name)
        if key not in self._names:
            raise ProgramError(
                f"the run has no {key!r}",
                rule="a run keeps its outputs and state",
                where=f"run of program {self._held.program.name!r}",
                hint=", ".join(map(repr, self._names)) or "cl.program(…, outputs=[…])",
            )
        if key not in self._here:
            self._here[key] = self._held.fetch(key)
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
        What every rank did when: in a single run, or in one more after several repeats, which is not counted.
    provenance : Provenance
    """

    outputs: GlobalValues
    state: GlobalValues
    timing: Timing
    trace: Trace
    provenance: Provenance
    _held: HeldValues = field(repr=False)

    def __getitem__(self, name: Any) -> Array:
        key = self._held.resolve(name)
        return self.state[key] if key not in self.outputs and key in self.state else self.outputs[key]

    def on_rank(self, rank: int) -> RankView:
        """What one rank holds: ``run.on_rank(2)["drop"]`` (fetched from the ranks while they keep the run)."""
        return RankView(whole(rank, "a rank", least=None, hint="run.on_rank(0)"), self._held)

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
    _held: HeldValues = field(repr=False)

    def __getitem__(self, name: Any) -> Array:
        return self._held.read(self.rank, name)


def assemble(program: Program, name: str, parts: Sequence[Mapping[str, Array]]) -> Array:
    """The global value of `name` from what the ranks hold of it."""
    kind = program.types[name]
    size = program.group_ranks
    first = (kind.group or 0) * size
    held = [parts[rank][name] for rank in range(first, first + size)]
    if kind.layout.is_replicated:
        return held[0]
    return np.stack(held) if kind.layout.is_local else np.concatenate(held, axis=kind.layout.dim or 0)


def gone(name: str, where: str) -> ClusterError:
    """The error for a value that was left on ranks that have ended or gone on to another run."""
    return ClusterError(
        f"{name!r} was left on the ranks, and they no longer keep this run",
        rule="outputs up to 256 MiB are brought along; others stay on the ranks until their next run or end",
        where=where,
        hint="read it before the next run, or run it again",
    )
