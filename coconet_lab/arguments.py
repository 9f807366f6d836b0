"""What a caller gave, looked at where it came in: whole numbers, numbers, text, one of a few, a path.

Each function returns the argument as the lab keeps it (NumPy's numbers become Python's) or raises one error of four
lines. `where` is the user's line unless the caller knows better.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from coconet_lab.errors import CoconetError, ProgramError
from coconet_lab.site import caller_site

_SHOWN = 60


def shown(given: Any) -> str:
    """What was given, on one line and not longer than a glance."""
    text = " ".join(repr(given).split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}… ({type(given).__name__})"


def refusal(
    what: str, given: Any, rule: str, hint: str, error: type[CoconetError] = ProgramError, where: str = ""
) -> CoconetError:
    """The error of an argument that is not what it should be."""
    return error(f"{what} is {shown(given)}", rule=rule, where=where or str(caller_site() or ""), hint=hint)


def is_whole(given: Any) -> bool:
    """A whole number, Python's or NumPy's; True and False are none."""
    return isinstance(given, Integral) and not isinstance(given, bool)


def is_number(given: Any) -> bool:
    """A real number, Python's or NumPy's; True and False are none."""
    return isinstance(given, Real) and not isinstance(given, bool)


def whole(
    given: Any,
    what: str,
    *,
    hint: str,
    least: int | None = 0,
    most: int | None = None,
    error: type[CoconetError] = ProgramError,
    where: str = "",
) -> int:
    """`given` as an int of at least `least` (None: of any sign).

    Examples
    --------
    >>> whole(3, "dim", hint="dim=0")
    3
    """
    is_in_reach = (type(given) is int or is_whole(given)) and (least is None or given >= least)
    if is_in_reach and (most is None or given <= most):
        return int(given)
    rule = "it is a whole number" + ("" if least is None else f" of {least} or more")
    rule += "" if most is None else f", at most {most:,}"
    raise refusal(what, given, rule, hint, error, where)


def seed(given: Any) -> int:
    """`given` as what random numbers start from: any whole number of 64 bits."""
    found = whole(given, "a seed", least=None, hint="seed=0")
    if not -(2**63) <= found < 2**63:
        raise refusal("a seed", given, "it is a whole number of 64 bits, as the INT64 scalar that it becomes", "seed=0")
    return found


def number(given: Any, what: str, *, hint: str, error: type[CoconetError] = ProgramError) -> int | float:
    """`given` as an int or float that is no NaN."""
    if is_number(given):
        with suppress(OverflowError):
            if not math.isnan(float(given)):
                return int(given) if isinstance(given, Integral) else float(given)
    raise refusal(what, given, "it is a number, as large as a float", hint, error)


def text(given: Any, what: str, *, hint: str, error: type[CoconetError] = ProgramError) -> str:
    """`given` as a non-empty string."""
    if isinstance(given, str) and given:
        return str(given)
    raise refusal(what, given, "it is a non-empty string", hint, error)


def one_of(
    given: Any, known: Iterable[str], what: str, *, hint: str, error: type[CoconetError] = ProgramError, where: str = ""
) -> str:
    """`given`, where it is one of the `known` words."""
    words = list(known)
    if isinstance(given, str) and given in words:
        return str(given)
    raise refusal(what, given, f"it is one of {', '.join(map(repr, words))}", hint, error, where)


def path(given: Any, what: str, *, hint: str, error: type[CoconetError] = ProgramError) -> Path:
    """`given` as a path: a non-empty string or what `os.fspath` makes one."""
    if isinstance(given, str | os.PathLike):
        found = os.fspath(given)
        if isinstance(found, str) and found and "\0" not in found:
            return Path(found)
    raise refusal(what, given, "it is a path", hint, error)


@contextmanager
def file_access(verb: str, where: Path, error: type[CoconetError] = ProgramError) -> Iterator[None]:
    """A file or folder that cannot be read or written is one error that names it, whatever its cause."""
    try:
        yield
    except OSError as found:
        at = found.filename or where
        raise error(
            f"cannot {verb} {os.fspath(where)!r}: {found.strerror or found} ({at})",
            rule="it is a path that this user may read and write, on a disk with room",
            where=str(caller_site() or ""),
            hint="another path, or make the folder first",
        ) from None
