"""Scalars of a run: given, defaulted, and computed on the host from one another, rounding once an operation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from coconet_lab.errors import InputError
from coconet_lab.ir import ops as o
from coconet_lab.ir.dtypes import DTYPES, INT32, DType
from coconet_lab.ir.elementwise import FUNCTIONS
from coconet_lab.ir.rounding import cast, literal
from coconet_lab.kernels.plan import HostScalars, Plan

Array = np.ndarray[Any, Any]


def check_scalar_names(plan: Plan, given: Mapping[str, Any]) -> None:
    """Refuse values for scalars that a Plan does not have."""
    for name in given:
        if name not in plan.scalar_inputs:
            raise InputError(
                f"program {plan.name!r} has no scalar {name!r}",
                rule="a run gives values to the program's scalar inputs",
                where=f"plan of program {plan.name!r}",
                hint=", ".join(map(repr, plan.scalar_inputs)) or "no scalars",
            )


def scalar_values(plan: Plan, given: Mapping[str, Any]) -> dict[str, Array]:
    """Every scalar of a Plan in its dtype.

    Raises
    ------
    InputError
        A scalar without value.
    """
    values: dict[str, Array] = {}
    for name, default in plan.scalar_inputs.items():
        value = given.get(name, default)
        if value is None:
            raise InputError(
                f"scalar {name!r} has no value",
                rule="a scalar without a default gets its value at each run",
                where=f"plan of program {plan.name!r}",
                hint=f"{name}=…",
            )
        values[name] = literal(value, plan.scalar_types[name].dtype)
    for entry in plan.entries:
        if isinstance(entry, HostScalars):
            for op in entry.scalar_ops:
                values[op.name] = _computed(op, values, plan)
    return values


def _computed(op: o.Op, values: Mapping[str, Array], plan: Plan) -> Array:
    kinds = [plan.scalar_types[name].dtype for name in op.sources]
    if isinstance(op, o.Cast):
        return cast(values[next(op.sources)], kinds[0], DTYPES[op.dtype])
    if not isinstance(op, o.Pointwise):
        raise InputError(
            f"scalar {op.name!r} is {op.kind}",
            rule="the host computes elementwise operations and casts of scalars",
            where=f"plan of program {plan.name!r}",
            hint="lower(program)",
        )
    dtype: DType = (kinds[1:] if op.fn == "Where" and isinstance(op.operands[0], str) else kinds or [INT32])[0]
    ranks = plan.group_ranks
    arrays = [values[x] if isinstance(x, str) else literal(x.resolve(ranks), dtype) for x in op.operands]
    with np.errstate(all="ignore"):
        return np.asarray(FUNCTIONS[op.fn](dtype, *arrays))
