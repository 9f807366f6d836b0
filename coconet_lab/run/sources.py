"""Source lines for tracebacks that come from a rank, which has a function's code but not the cell it was written in."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

# What cloudpickle names the file of a function that it sends by value.
_FRAME = re.compile(r'^(?P<indent> *)File "<dynamic-code>", line (?P<line>\d+), in (?P<name>\S+)$', re.MULTILINE)
_PLACE = re.compile(r"<dynamic-code>:(?P<line>\d+)")


def add_sources(text: str, function: Callable[..., Any]) -> str:
    """`text` with file names and lines put back into the frames of `function` and of functions inside it.

    Parameters
    ----------
    text : str
        A traceback from a rank, or a ``file:line`` of one.
    function : callable
        The function that was sent there.
    """
    codes = {code.co_name: code for code in _codes(getattr(function, "__code__", None))}

    def frame(match: re.Match[str]) -> str:
        code = codes.get(match["name"])
        if code is None:
            return match[0]
        line = linecache.getline(code.co_filename, int(match["line"])).strip()
        head = f'{match["indent"]}File "{code.co_filename}", line {match["line"]}, in {match["name"]}'
        return f"{head}\n{match['indent']}  {line}" if line else head

    def place(match: re.Match[str]) -> str:
        number = int(match["line"])
        holders = [code for code in codes.values() if number in {line for _, _, line in code.co_lines()}]
        if not holders:
            return match[0]
        line = linecache.getline(holders[0].co_filename, number).strip()
        return f"line {number} of '{holders[0].co_name}'{f': {line}' if line else ''}"

    return _PLACE.sub(place, _FRAME.sub(frame, text))


def _codes(code: CodeType | None) -> Iterator[CodeType]:
    """`code` and the codes of the functions written inside it."""
    if isinstance(code, CodeType):
        yield code
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from _codes(constant)
