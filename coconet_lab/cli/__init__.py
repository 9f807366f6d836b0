"""The `coconet-lab` command."""

from coconet_lab.cli.app import main

__all__ = ["main"]
