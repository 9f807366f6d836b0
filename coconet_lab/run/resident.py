"""A schedule that stays on the ranks with its state: stepped with new scalars, read when needed (design §5a)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from coconet_lab.arguments import whole
from coconet_lab.errors import ClusterError, InputError
from coconet_lab.ir.inputs import check_inputs
from coconet_lab.ir.program import Program
from coconet_lab.run import job
from coconet_lab.run.results import HeldValues, Timing

Array = np.ndarray[Any, Any]


class Keeper(Protocol):
    """What a resident needs of the cluster that keeps it."""

    call: Callable[..., list[Any]]

    @property
    def generation(self) -> int:
        """Counts starts of the ranks."""


class Resident:
    """A schedule that stays on the ranks with its state.

    Examples
    --------
    ``opt = cluster.load(s, inputs); opt.step(t=2); opt.read("w")``
    """

    def __init__(
        self,
        cluster: Keeper,
        key: str,
        program: Program,
        names: tuple[str, ...],
        scalars: Mapping[str, float | int],
        compile_s: float,
    ) -> None:
        self._cluster, self._key = cluster, key
        self._generation = cluster.generation
        self._held = HeldValues(program, names, self._parts)
        self.program, self.scalars, self.compile_s, self.steps = program, dict(scalars), compile_s, 0

    def step(self, *, times: int = 1, **scalars: float | int) -> Timing:
        """Run once (or `times`), with new values for some scalars; nothing is compiled again.

        Raises
        ------
        InputError
            Something that is no scalar, or a value outside its bounds.
        """
        self._check_alive()
        checked = check_scalars(self.program, self.scalars, scalars)
        times = whole(
            times, "the number of steps", least=1, most=10**9, hint="step(times=1)", error=InputError, where=repr(self)
        )
        ran = self._cluster.call(job.step, self._key, checked, times, what=f"step of {self.program.name!r}")
        self.scalars = checked
        self.steps += times
        samples = tuple(max(rank.samples_us[i] for rank in ran) for i in range(times))
        return Timing(samples, max(rank.compile_s for rank in ran))

    def read(self, name: Any) -> Array:
        """The global value of an output or of an updated input, as it is now."""
        self._check_alive()
        called = self._held.resolve(name)
        if called not in self._held.names:
            self.program.resolve(called)
            raise self._held.not_held(f"no rank holds {called!r}")
        return self._held.fetch(called)

    def _parts(self, names: tuple[str, ...]) -> list[dict[str, Array]] | None:
        found = self._cluster.call(job.read, self._key, names, what=f"reading {names[0]!r}")
        return None if any(part is None for part in found) else found

    def close(self) -> None:
        """Give the ranks' memory back."""
        if self._cluster.generation == self._generation:
            self._cluster.call(job.release, self._key, what="release")

    def _check_alive(self) -> None:
        if self._cluster.generation != self._generation:
            raise ClusterError(
                f"the ranks that kept {self.program.name!r} have ended",
                rule="resident state lives as long as the ranks",
                where=repr(self._cluster),
                hint="cluster.load(schedule, inputs) again",
            )

    def __repr__(self) -> str:
        return f"Resident({self.program.name}: {self.steps} steps on {self.program.ranks} ranks)"


def scalar_names(program: Program) -> tuple[str, ...]:
    """The zero-dimensional inputs of a program."""
    return tuple(n for n in program.inputs if program.types[n].shape == () and not program.types[n].pieces)


def check_scalars(program: Program, kept: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, float | int]:
    """Numbers for all scalar inputs, those of `new` in place of what is `kept`, checked against their bounds.

    Raises
    ------
    InputError
        A name that is no scalar, or a value outside its bounds.
    """
    names = scalar_names(program)
    for name in new:
        if name not in names and name in program.inputs:
            raise InputError(
                f"{name!r} ({program.types[name]}) is no scalar",
                rule="a step takes new scalars; tensors are loaded once and stay on the ranks",
                where=f"step of {program.name!r}",
                hint=f"cluster.load(schedule, inputs) with another {name!r}",
            )
    tensors: dict[str, Any] = {n: _untouched for n in program.inputs if n not in names}
    found = check_inputs(program, {**tensors, **kept, **new})
    return {n: found[n].item() for n in names}


def _untouched(rank: int, ranges: Any) -> None:
    """Stands for a tensor where scalars alone are checked."""
