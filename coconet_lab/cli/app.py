"""The table of commands; a command's module is imported only when it is the one that was asked for."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from coconet_lab.cli.usage import Parser, UsageError, known
from coconet_lab.errors import CoconetError

_PROG = "coconet-lab"


@dataclass(frozen=True, slots=True)
class Command:
    """One command.  Its module has ``add_arguments(parser) -> None`` and ``run(arguments) -> int``, the exit status."""

    name: str
    summary: str
    example: str

    @property
    def module(self) -> str:
        """Where it lives: ``coconet_lab.cli.<name>``."""
        return f"coconet_lab.cli.{self.name}"


# Adding a command: a module with its name in this folder, and one line here.
COMMANDS: tuple[Command, ...] = (
    Command("demo", "the main job in a minute: programs, proofs, kernels on ranks, pictures", "coconet-lab demo"),
    Command(
        "bench", "measure a workload's schedules and its baselines", "coconet-lab bench adam --ranks 2 --sizes 2^20"
    ),
    Command("doctor", "what this machine has, and what will therefore work", "coconet-lab doctor --json"),
    Command("lab", "open JupyterLab on the notebooks", "coconet-lab lab --no-browser --port 8890"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one `coconet-lab` command; refusals are four lines on stderr, never a traceback.

    Parameters
    ----------
    arguments : sequence of str or None
        What was typed after `coconet-lab`; None takes ``sys.argv``.

    Returns
    -------
    int
        0 done, 1 refused by the lab, 2 typed wrong, 130 interrupted.

    Examples
    --------
    >>> main(["doctor", "--no-such-option"])
    2
    """
    typed = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _dispatch(typed)
    except UsageError as error:
        print(f"{_PROG}: {error}", file=sys.stderr)
        return 2
    except CoconetError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\n{_PROG}: interrupted; nothing is left running", file=sys.stderr)
        return 130


def _dispatch(typed: Sequence[str]) -> int:
    parser = Parser(prog=_PROG, description="Programs that mix computation and communication, transformed and run.")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    width = max(len(command.name) for command in COMMANDS)
    listed = "\n".join(f"  {command.name:<{width}}  {command.summary}" for command in COMMANDS)
    parser.epilog = f"commands:\n{listed}\n\nexample:\n  {COMMANDS[0].example}"
    parser.add_argument("command", metavar="COMMAND", help="one of the commands below")
    if not typed or typed[0] in ("-h", "--help"):
        parser.print_help()
        return 0
    if typed[0].startswith("-"):
        parser.error(f"a command comes first, not {typed[0]!r}")
    names = [command.name for command in COMMANDS]
    name = known("command", typed[0], names, where=" ".join([_PROG, *typed]), hint=f"{_PROG} --help")
    return _run(COMMANDS[names.index(name)], typed[1:])


def _run(command: Command, rest: Sequence[str]) -> int:
    module = importlib.import_module(command.module)
    parser = Parser(
        prog=f"{_PROG} {command.name}",
        description=f"{command.summary[0].upper()}{command.summary[1:]}.",
        epilog=f"example:\n  {command.example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    try:
        options = parser.parse_args(rest)
    except SystemExit as end:  # --help leaves this way
        return int(end.code or 0)
    return int(module.run(options))
