"""`coconet-lab doctor`: the machine's facts and what follows from them, for a person or as JSON."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict

from coconet_lab.doctor import Ability, Fact, abilities, examine, this_host

_WIDTH = 110


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `coconet-lab doctor`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")


def run(options: argparse.Namespace) -> int:
    """Examine this machine and print the report; 0 whatever was found, since a report is what was asked for."""
    facts = examine(this_host())
    verdicts = abilities(facts)
    print(as_json(facts, verdicts) if options.json else as_text(facts, verdicts))
    return 0


def as_json(facts: Sequence[Fact], verdicts: Sequence[Ability]) -> str:
    """The report as a JSON object with ``format``, ``facts`` and ``abilities``.

    Examples
    --------
    >>> as_json([], [])
    '{"format": 1, "facts": [], "abilities": []}'
    """
    return json.dumps(
        {"format": 1, "facts": [asdict(fact) for fact in facts], "abilities": [asdict(v) for v in verdicts]}
    )


def as_text(facts: Sequence[Fact], verdicts: Sequence[Ability]) -> str:
    """The report as two tables and the commands that get what is missing.

    Examples
    --------
    >>> print(as_text([Fact("cores", True, "2")], []))
    This machine has
      cores  2
    <BLANKLINE>
    What will work
    """
    rows = [(fact.name.replace("_", " "), fact.text if fact.present else f"- {fact.text}") for fact in facts]
    lines = ["This machine has", *_table(rows), "", "What will work"]
    lines += _table([(f"{'yes' if verdict.works else 'no':<3} {verdict.name}", verdict.why) for verdict in verdicts])
    missing = [(verdict.name, verdict.get) for verdict in verdicts if verdict.get]
    if missing:
        lines += ["", "How to get what is missing", *_table(missing)]
    return "\n".join(lines)


def _table(rows: Sequence[tuple[str, str]]) -> list[str]:
    width = max((len(name) for name, _ in rows), default=0)
    lines: list[str] = []
    for name, text in rows:
        first, *more = textwrap.wrap(text, _WIDTH - width, break_long_words=False, break_on_hyphens=False) or [""]
        lines.append(f"  {name:<{width}}  {first}")
        lines += [f"  {'':<{width}}  {line}" for line in more]
    return lines
