"""Every way the lab says no: four short lines that name what was asked, what was found, the rule and a way out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class CoconetError(Exception):
    """Something the lab refuses or could not do, told in the user's own names.

    Parameters
    ----------
    found : str
        What was asked and what was found, in one sentence without a full stop.
    rule : str
        The rule that was broken, with the paper's section where there is one.
    where : str
        The program, step, cell or line it happened in.
    hint : str
        A call the user can paste.

    Examples
    --------
    >>> print(LayoutError("cannot add 'g' and 'm'", rule="one layout", where="cell 4", hint="reduce_scatter(g)"))
    cannot add 'g' and 'm'
      rule: one layout
      in:   cell 4
      try:  reduce_scatter(g)
    """

    def __init__(self, found: str, *, rule: str = "", where: str = "", hint: str = "") -> None:
        super().__init__(found, rule, where, hint)
        self.found, self.rule, self.where, self.hint = found, rule, where, hint

    def __str__(self) -> str:
        lines = [self.found]
        lines += [f"  {label:<5} {text}" for label, text in self._parts() if text]
        return "\n".join(lines)

    def _parts(self) -> Sequence[tuple[str, str]]:
        return ("rule:", self.rule), ("in:", self.where), ("try:", self.hint)

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process borders (ranks to notebook), so they rebuild from their four texts.
        return _rebuild, (type(self), self.found, self.rule, self.where, self.hint, self.__dict__.copy())

    def _render_traceback_(self) -> list[str]:
        """What IPython prints: the user's own line, then the four lines (``%tb`` still shows all)."""
        from coconet_lab.site import user_line

        line = user_line(self.__traceback__)
        return [*([line] if line else []), f"{type(self).__name__}: {self}"]


def _rebuild(
    kind: type[CoconetError], found: str, rule: str, where: str, hint: str, state: dict[str, Any]
) -> CoconetError:
    error = kind.__new__(kind)
    CoconetError.__init__(error, found, rule=rule, where=where, hint=hint)
    error.__dict__.update(state)
    return error


class ProgramError(CoconetError):
    """A program that is not one: unknown or doubled names, cycles, missing inputs, a wrong number of ranks."""


class LayoutError(CoconetError):
    """Layouts, shapes, dtypes or groups that do not go together."""


class IllegalTransform(CoconetError):  # noqa: N818 - the paper's word, and what users catch
    """A transformation that would change what the program means, or does not apply."""


class CodegenError(CoconetError):
    """An operation that has no kernel form for the asked target."""


class InputError(CoconetError):
    """Input values of a wrong name, shape, dtype or range."""


class ProofError(CoconetError):
    """A schedule whose values differ from its program's: output, rank, first index, both values, first step."""


class RankError(CoconetError):
    """A rank raised, died or did not come back before the deadline.

    ``tracebacks`` maps each rank that raised to its full traceback, as text.
    """

    tracebacks: dict[int, str]

    def __init__(
        self, found: str, *, rule: str = "", where: str = "", hint: str = "", tracebacks: dict[int, str] | None = None
    ) -> None:
        super().__init__(found, rule=rule, where=where, hint=hint)
        self.tracebacks = tracebacks or {}


class ClusterError(CoconetError):
    """A cluster that cannot start, is the wrong size, or has stopped."""


class ToolError(CoconetError):
    """A tool or device the machine does not have, or has too old."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a step is refused: one text for the exception, the greyed-out button and the tuner's log.

    Parameters
    ----------
    found, rule, hint : str
        As in `CoconetError`; `rule` carries the paper's section.
    way_out : object or None
        A step (a frozen transformation) that leads out, if there is one.
    applies : bool
        False where the step has nothing to do with its target at all; True for a near miss.
    """

    found: str
    rule: str
    hint: str = ""
    way_out: Any = None
    applies: bool = True

    def __str__(self) -> str:
        return str(CoconetError(self.found, rule=self.rule, hint=self.hint))
