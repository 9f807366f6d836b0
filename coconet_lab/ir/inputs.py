"""What a program is run on: values drawn per global index, checked arrays, and the block of them a rank holds."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from coconet_lab.arguments import refusal, shown
from coconet_lab.arguments import seed as checked_seed
from coconet_lab.errors import InputError
from coconet_lab.ir import ops as o
from coconet_lab.ir.program import Program
from coconet_lab.ir.rng import flat_indices, random_words
from coconet_lab.ir.rounding import contiguous, fits, literal, rounded
from coconet_lab.ir.types import Range, TensorType

Array = np.ndarray[Any, Any]
Inputs = Mapping[str, Any]

INTEGER_BOUNDS = (-2.0, 2.0)


class Scheduled(Protocol):
    """Anything that has a rewritten program, as a Schedule does: this layer does not know schedules."""

    @property
    def program(self) -> Program:
        """The program after all steps."""


def random_inputs(program: Program | Scheduled, seed: int = 0) -> dict[str, Array]:
    """Values for every input, the same on every machine, number of ranks and schedule.

    Parameters
    ----------
    program : Program or Schedule
    seed : int
        Also what the implicit dropout seed becomes.

    Returns
    -------
    dict of name to global array
        Local inputs have a leading rank axis. Where an input says `low` and `high`, values lie between; a scalar
        with a default keeps it; other floats lie in [-1, 1], integers in [-4, 4].

    Examples
    --------
    >>> import coconet_lab as cl
    >>> g = cl.tensor("g", cl.FP32, (8,), cl.Local, low=0, high=2)
    >>> program = cl.program("sum", outputs=[cl.all_reduce(g, name="total")], ranks=4)
    >>> random_inputs(program)["g"].shape
    (4, 8)
    """
    given, seed = program_of(program), checked_seed(seed)
    return {name: _whole(given, name, seed, False) for name in given.inputs}


def program_of(item: Program | Scheduled) -> Program:
    """The program itself, or the rewritten one of anything that has one."""
    found = item if isinstance(item, Program) else getattr(item, "program", None)
    if isinstance(found, Program):
        return found
    raise refusal("a program", item, "a program or a schedule is asked for", 'cl.program("p", outputs=[out])')


def proof_inputs(program: Program, integers: frozenset[str], seed: int = 0) -> dict[str, Array]:
    """As `random_inputs`, with small whole numbers for the inputs named in `integers`."""
    return {name: _whole(program, name, seed, name in integers) for name in program.inputs}


def _whole(program: Program, name: str, seed: int, whole_numbers: bool) -> Array:
    op = _input_of(program, name)
    ranges = tuple((0, n) for n in op.type.shape)
    if not op.type.layout.is_local:
        return random_block(op, seed, ranges, 0, whole_numbers=whole_numbers)
    ranks = range(program.group_ranks)
    return np.stack([random_block(op, seed, ranges, rank, whole_numbers=whole_numbers) for rank in ranks])


def random_block(op: o.Input, seed: int, ranges: Sequence[Range], rank: int, *, whole_numbers: bool = False) -> Array:
    """One block of what `random_inputs` gives for an input, made without the others.

    Parameters
    ----------
    op : Input
    seed : int
    ranges : sequence of half-open ranges
        The part of each dim, as ``op.type.ranges(rank, ranks)`` gives it.
    rank : int
        The rank in its group; Local inputs have values of their own on each.
    whole_numbers : bool
        Draw integers between -2 and 2 (as far as the input's bounds allow it) for sums that must be exact.
    """
    kind = op.type
    if op.implicit or (op.default is not None and (op.low is None or op.high is None)):
        return literal(seed if op.implicit else op.default or 0, kind.dtype)
    own = rank * kind.elements if kind.layout.is_local else 0
    words = random_words(seed, o.dropout_stream(f"input {op.name}"), flat_indices(kind.shape, ranges) + own)
    low, high = _bounds(op)
    if whole_numbers and math.ceil(max(low, INTEGER_BOUNDS[0])) <= math.floor(min(high, INTEGER_BOUNDS[1])):
        low, high = max(low, INTEGER_BOUNDS[0]), min(high, INTEGER_BOUNDS[1])
    elif kind.dtype.is_float:
        return rounded(low + words * ((high - low) / 2**32), kind.dtype)
    first, last = math.ceil(low), math.floor(high)
    drawn = first + (words.astype(np.int64) % max(last - first + 1, 1))
    return np.asarray(drawn.astype(kind.dtype.numpy))


def _bounds(op: o.Input) -> tuple[float, float]:
    wide = 1.0 if op.type.dtype.is_float else 4.0
    low, high = op.low, op.high
    if low is None:
        low = -wide if high is None else min(-wide, high - wide)
    if high is None:
        high = max(wide, low + wide)
    return low, high


def check_inputs(program: Program, inputs: Inputs) -> dict[str, Any]:
    """The values of every input: arrays of the right shape and dtype, or the callables that make blocks.

    Parameters
    ----------
    program : Program
    inputs : mapping
        Name to global array (a Local input has a leading rank axis), to a number for a scalar, or to a callable
        ``(rank in its group, index ranges) -> array``. Scalars with a default may be missing.

    Raises
    ------
    InputError
        An unknown or missing name, another shape or dtype, NaN, or a value outside an input's low and high.
    """
    if not isinstance(inputs, Mapping):
        found = f"inputs are {shown(inputs)}"
        raise _wrong(program, found, "inputs are a dict of name to array", "inputs=cl.random_inputs(program)")
    called = {program.resolve(name) if not isinstance(name, str) else name: value for name, value in inputs.items()}
    for name in called:
        if name not in program.inputs:
            close = difflib.get_close_matches(name, program.inputs, n=3) or program.inputs
            named = ", ".join(map(repr, close))
            raise _wrong(program, f"there is no input {name!r}", "inputs are named as in the program", named)
    return {name: _checked(program, name, called) for name in program.inputs}


def _checked(program: Program, name: str, inputs: Inputs) -> Any:
    op = _input_of(program, name)
    if name not in inputs:
        if op.default is None:
            raise _wrong(
                program, f"input {name!r} ({op.type}) has no value", "every input without a default is given one",
                "inputs=cl.random_inputs(program)",
            )  # fmt: skip
        return literal(op.default, op.type.dtype)
    value = inputs[name]
    if callable(value):
        return value
    kind = op.type
    if kind.shape == () and isinstance(value, bool | int | float | np.integer | np.floating):
        value = _number(program, op, value)
    shape = (program.group_ranks, *kind.shape) if kind.layout.is_local else kind.shape
    return _accepted(program, op, _array(program, op, value), shape)


def _array(program: Program, op: o.Input, value: Any) -> Array:
    try:
        found = np.asarray(value)
    except Exception as error:  # whatever a stranger's __array__ raises
        found, why = np.asarray(None), f": {str(error).splitlines()[0]}" if str(error) else ""
    else:
        why = ""
    if found.dtype == object or (found.dtype.kind in "USVMm" and found.dtype != op.type.dtype.numpy):
        given = f"input {op.name!r} ({op.type}) was given {shown(value)}{why}"
        raise _wrong(program, given, "an input is an array of numbers", "inputs=cl.random_inputs(program)")
    return found


def _number(program: Program, op: o.Input, value: Any) -> Array:
    """A Python number as the scalar's dtype holds it, where it does."""
    kind = op.type
    if not fits(value, kind.dtype):
        raise _wrong(
            program,
            f"input {op.name!r} ({kind}) was given {value!r}",
            f"a number for it is one that {kind.dtype} holds",
            f"a wider dtype for {op.name!r}, or another number",
        )
    return literal(value, kind.dtype)


def input_block(program: Program, inputs: Inputs, name: str, rank: int) -> Array:
    """What `rank` of the whole program holds of a checked input: its block of an array, or what the callable makes.

    Raises
    ------
    InputError
        A callable made an array of another shape or dtype, NaN, or values outside the bounds.
    """
    op, k = _input_of(program, name), rank % program.group_ranks
    value = inputs[name]
    ranges = op.type.ranges(k, program.group_ranks)
    if callable(value):
        shape = op.type.local_shape(k, program.group_ranks)
        return _accepted(program, op, _array(program, op, value(k, ranges)), shape)
    if op.type.layout.is_local:
        return np.asarray(value[k])
    return contiguous(value[tuple(slice(*r) for r in ranges)])


def _accepted(program: Program, op: o.Input, value: Array, shape: tuple[int, ...]) -> Array:
    kind, name = op.type, op.name
    if value.shape != shape:
        axis = ", with the ranks first" if kind.layout.is_local else ""
        raise _wrong(
            program,
            f"input {name!r} ({kind}) was given an array of shape {list(value.shape)}",
            f"it takes the global value{axis}: {list(shape)}",
            "cl.random_inputs(program) shows the shapes",
        )
    if value.dtype != kind.dtype.numpy:
        raise _wrong(
            program,
            f"input {name!r} ({kind}) was given {value.dtype}",
            "an array has the input's dtype; nothing is converted silently",
            f"{name}.astype({_numpy_name(kind)})",
        )
    low, high = op.low, op.high
    if kind.dtype.is_float and np.isnan(value.astype(np.float64)).any():
        raise _wrong(program, f"input {name!r} holds NaN", "inputs are numbers", f"np.nan_to_num({name})")
    wide = value.astype(np.float64)
    below = low is not None and bool((wide < min(low, _held(low, kind))).any())
    above = high is not None and bool((wide > max(high, _held(high, kind))).any())
    if below or above:
        found = float(wide.min() if below else wide.max())
        raise _wrong(
            program,
            f"input {name!r} holds {found:g}",
            f"it was declared with low={low} and high={high}",
            f"np.clip({name}, {low}, {high})",
        )
    return value


def _held(bound: float, kind: TensorType) -> float:
    """A bound as the dtype holds it: 0.1 in FP16 is not below 0.1."""
    return float(literal(bound, kind.dtype)) if kind.dtype.is_float else bound


def _numpy_name(kind: TensorType) -> str:
    return "ml_dtypes.bfloat16" if kind.dtype.name == "BF16" else f"np.{kind.dtype.numpy}"


def _input_of(program: Program, name: str) -> o.Input:
    op = program.ops[name]
    if not isinstance(op, o.Input):
        raise _wrong(program, f"{name!r} is {op.kind}, no input", "inputs are tensors and scalars", "another name")
    return op


def _wrong(program: Program, found: str, rule: str, hint: str) -> InputError:
    return InputError(found, rule=rule, where=f"inputs of program {program.name!r}", hint=hint)
