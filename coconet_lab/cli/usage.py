"""What was typed wrong, told like every other refusal of the lab: four lines, and exit status 2."""

from __future__ import annotations

import argparse
import difflib
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from coconet_lab.errors import CoconetError


class UsageError(CoconetError):
    """A command line that names something the lab does not have, or that cannot be read."""


class Parser(argparse.ArgumentParser):
    """An argument parser that refuses in four lines instead of printing its usage and leaving."""

    def error(self, message: str) -> NoReturn:
        """Raise `UsageError` with argparse's sentence and this command's usage."""
        usage = " ".join(self.format_usage().removeprefix("usage: ").split())
        raise UsageError(message, rule=usage, where=self.prog, hint=f"{self.prog} --help")


def known(kind: str, name: str, names: Iterable[str], *, where: str, hint: str) -> str:
    """`name`, if it is one of `names`; else a `UsageError` that lists the nearest ones.

    Parameters
    ----------
    kind : str
        What is being named: ``"workload"``, ``"schedule"``.
    name : str
        What was typed.
    names : iterable of str
        All there are.
    where, hint : str
        The command it was typed to, and one that works.

    Returns
    -------
    str
        `name` itself.

    Examples
    --------
    >>> known("workload", "adam", ["adam", "lamb"], where="coconet-lab bench", hint="coconet-lab bench adam")
    'adam'
    """
    everything = list(names)
    if name in everything:
        return name
    near = difflib.get_close_matches(name, everything, n=3, cutoff=0.5)
    found = f"there is no {kind} {name!r}" + (f"; near it: {', '.join(map(repr, near))}" if near else "")
    raise UsageError(found, rule=f"a {kind} is one of {', '.join(everything)}", where=where, hint=hint)


def check_file(path: Path, where: str) -> None:
    """Refuse a file that could not be written, before anything is measured for it; none is left behind."""
    is_new = not path.exists()
    try:
        with path.open("a"):
            pass
    except OSError as error:
        raise _unwritable(path, error, where, f"mkdir -p {path.parent}, or another file") from None
    if is_new:
        path.unlink()


def check_folder(path: Path, where: str) -> None:
    """Make a folder, or refuse one in which nothing could be written."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise _unwritable(path, error, where, "--out out") from None


def _unwritable(path: Path, error: OSError, where: str, hint: str) -> UsageError:
    return UsageError(
        f"cannot write {str(path)!r}: {error.strerror or error}",
        rule="results go where this user may write, and that is tried before anything runs",
        where=where,
        hint=hint,
    )
