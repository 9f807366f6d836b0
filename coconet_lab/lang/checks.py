"""What the functions of the language are given, checked at the user's line: dtypes, layouts, shapes, dims, bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from coconet_lab.arguments import is_whole, number, refusal, shown, whole
from coconet_lab.errors import LayoutError, ProgramError
from coconet_lab.ir.dtypes import DTYPES, DType
from coconet_lab.ir.layout import Layout
from coconet_lab.ir.rounding import fits
from coconet_lab.site import caller_site


def check_name(name: Any, hint: str) -> None:
    """Refuse what is no name of a value or a program."""
    if not isinstance(name, str) or not name:
        rule = "any non-empty string is a name"
        raise ProgramError(f"{shown(name)} is no name", rule=rule, where=str(caller_site() or ""), hint=hint)


def extents_of(name: str, dims: Any) -> tuple[int, ...]:
    """A shape as a tuple of ints; one number is a shape of one dim."""
    found = list(dims) if isinstance(dims, Sequence) else [dims]
    if any(not is_whole(n) or n < 0 for n in found):
        raise bad_input(name, f"shape {shown(found)}", "a shape is whole numbers of 0 or more")
    return tuple(int(n) for n in found)


def plain(given: float | None) -> float | None:
    """NumPy's numbers as Python's, which JSON and generated text hold."""
    return None if given is None else number(given, "a bound", hint="low=0.0")


def check_dtype(dtype: Any) -> None:
    """Refuse what is no element type of the lab; NumPy's are none."""
    if not isinstance(dtype, DType):
        rule = "an element type is one of " + ", ".join(f"cl.{name}" for name in DTYPES)
        raise refusal("an element type", dtype, rule, "cl.FP32", LayoutError)


def check_layout(layout: Any) -> None:
    """Refuse what is no layout; ``Sliced`` without its dim is none."""
    if not isinstance(layout, Layout):
        rule = "a layout is cl.Local, cl.Replicated or cl.Sliced(dim)"
        raise refusal("a layout", layout, rule, "cl.Sliced(0)", LayoutError)


def check_bounds(name: str, dtype: DType, low: Any, high: Any, default: Any = None) -> None:
    """Refuse bounds that are no numbers of the dtype, are the wrong way round or have nothing between them."""
    given = {"low": low, "high": high, "default": default}
    for word, bound in given.items():
        if bound is None:
            continue
        number(bound, f"{word} of input {name!r}", hint=f"{word}=0")
        infinite = word != "default" and abs(bound) == math.inf
        if not infinite and not fits(bound, dtype, whole=word == "default"):
            raise bad_input(name, f"{word}={bound!r}", f"{word} is a number that {dtype} holds")
    least = -math.inf if low is None else low
    most = math.inf if high is None else high
    if least > most:
        raise bad_input(name, f"low={low} above high={high}", "low is at most high")
    if not dtype.is_float and math.inf > most >= least > -math.inf and math.floor(most) < math.ceil(least):
        raise bad_input(name, f"low={low} and high={high}", f"a value of {dtype} lies between low and high")
    if default is not None and not least <= default <= most:
        raise bad_input(name, f"default={default} with low={low} and high={high}", "the default lies between them")


def bad_input(name: str, found: str, rule: str) -> ProgramError:
    """The error of an input that cannot be declared so."""
    return ProgramError(
        f"input {name!r} has {found}",
        rule=rule,
        where=str(caller_site() or ""),
        hint="cl.tensor(name, dtype, shape, layout)",
    )


def several(given: Any) -> Sequence[Any]:
    """What was given as a sequence, or alone."""
    return given if isinstance(given, Sequence) and not isinstance(given, str | bytes) else [given]


def counted_dim(dim: Any, count: int, fn: str) -> int:
    """A dim counted from 0; from the end where it is negative, as in NumPy."""
    found = whole(dim, f"a dim of {fn}", least=None, hint=f"cl.{fn}(x, dim=0)", error=LayoutError)
    return found + count if -count <= found < 0 else found  # the rule refuses what is no dim, as it was given


def each(what: str, given: Any, spatial: int) -> tuple[int, ...]:
    """One whole number for every spatial dim of a convolution."""
    numbers = several(given) if isinstance(given, Sequence) else [given] * spatial
    return tuple(whole(n, f"a convolution's {what}", hint=f"{what}=1", error=LayoutError) for n in numbers)
