"""A workload: one program, its schedules by the paper's names, and inputs to run them on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from coconet_lab.arguments import one_of, whole
from coconet_lab.errors import ProgramError
from coconet_lab.ir.dtypes import FP16, FP32, DType
from coconet_lab.ir.inputs import random_inputs
from coconet_lab.ir.program import Program
from coconet_lab.schedule.schedule import Schedule
from coconet_lab.site import caller_site

WIRE_DTYPES: dict[str, DType] = {"fp32": FP32, "fp16": FP16}


@dataclass(frozen=True)
class Workload:
    """One program of the paper with its schedules.

    Parameters
    ----------
    name : str
        ``adam``, ``self_attention``, …
    dtype : str
        ``fp32``, or ``fp16``: FP16 on the wire (and FP32 state, for optimizers).
    program : Program
    recipes : mapping
        The paper's name of a schedule → how it is made of the unscheduled program.
    """

    name: str
    dtype: str
    program: Program
    recipes: Mapping[str, Callable[[Schedule], Schedule]]

    @cached_property
    def schedules(self) -> Mapping[str, Schedule]:
        """The paper's name → the Schedule, each made by transformations of the one program."""
        return _Schedules({name: recipe(Schedule(self.program)) for name, recipe in self.recipes.items()}, self.name)

    def inputs(self, seed: int = 0) -> dict[str, Any]:
        """Random inputs as global arrays, the same for every schedule."""
        return random_inputs(self.program, seed=seed)


class _Schedules(dict[str, Schedule]):
    """A dict whose missing keys say which names there are."""

    def __init__(self, items: Mapping[str, Schedule], workload: str) -> None:
        super().__init__(items)
        self._workload = workload

    def __missing__(self, name: str) -> Schedule:
        raise ProgramError(
            f"workload {self._workload!r} has no schedule {name!r}",
            rule="schedules have the paper's names",
            where=str(caller_site() or ""),
            hint=", ".join(map(repr, self)),
        )

    def __iter__(self) -> Iterator[str]:
        return super().__iter__()


def wire_dtype(name: str) -> DType:
    """The element type on the wire that ``dtype="fp16"`` or ``"fp32"`` asks for."""
    return WIRE_DTYPES[one_of(name, WIRE_DTYPES, "a workload's dtype", hint='dtype="fp32"')]


def extent(given: Any, what: str) -> int:
    """A size that a workload was asked for."""
    return whole(given, f"{what} of a workload", least=1, hint=f"{what}=8")
