"""What both engines ask of the parts they are given, and which of them runs write into."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

import numpy as np

from coconet_lab.errors import InputError
from coconet_lab.ir.types import Range
from coconet_lab.kernels.plan import Plan, Slot
from coconet_lab.run.engine_memory import Place

Array = np.ndarray[Any, Any]
Given = Array | Callable[[int, tuple[Range, ...]], Array]


def input_error(plan: Plan, found: str, hint: str) -> InputError:
    """The error for inputs or values that an engine does not have or cannot take."""
    return InputError(
        found,
        rule="each rank gets its part of every tensor input, in the input's dtype",
        where=f"plan of program {plan.name!r}",
        hint=hint,
    )


def checked_part(plan: Plan, place: Place, name: str, slot: Slot, given: Given) -> Array:
    """This rank's part of an input, as an array or made by a callable.

    Raises
    ------
    InputError
        Another shape or dtype.
    """
    ranges = slot.type.ranges(place.index, place.ranks)
    value = np.asarray(given(place.rank, ranges) if callable(given) else given)
    shape, dtype = tuple(stop - start for start, stop in ranges), slot.type.dtype.numpy
    if value.shape != shape or value.dtype != dtype:
        raise input_error(
            plan,
            f"input {name!r} is {value.dtype}{list(value.shape)} on rank {place.rank}",
            f"{dtype}{list(shape)}: this rank's part of {slot.type}",
        )
    return value


def state_slots(plan: Plan, held: Container[str]) -> dict[str, Slot]:
    """Inputs that runs write into, among the buffers a rank holds."""
    return {
        name: slot
        for name, slot in plan.inputs.items()
        if plan.buffers[slot.buffer].role == "state" and slot.buffer in held
    }
