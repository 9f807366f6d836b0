"""`coconet-lab lab`: JupyterLab on the notebooks, with this environment's own programs and no way in from outside."""

from __future__ import annotations

import argparse
import os
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from coconet_lab.cli.usage import UsageError
from coconet_lab.doctor.host import which
from coconet_lab.errors import ToolError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `coconet-lab lab`."""
    parser.add_argument("--port", type=int, default=8888, help="port on 127.0.0.1; the next free one if it is taken")
    parser.add_argument("--no-browser", action="store_true", help="print the address instead of opening a browser")
    parser.add_argument("--notebooks", type=Path, help="folder to open; without it, the notebooks of this checkout")


def run(options: argparse.Namespace) -> int:
    """Start JupyterLab and stay until it ends; its exit status is ours."""
    if not 0 <= options.port < 2**16:
        raise UsageError(
            f"there is no port {options.port}",
            rule=f"a port is a number from 0 (any free one) to {2**16 - 1}",
            where="coconet-lab lab",
            hint="coconet-lab lab --port 8888",
        )
    folder = notebooks_folder(options.notebooks)
    process = subprocess.Popen(lab_command(folder, options.port, options.no_browser), env=_environment())
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:  # the terminal sent it to JupyterLab too, which asks back and saves: wait for it
            continue


def lab_command(folder: Path, port: int, no_browser: bool) -> Sequence[str]:
    """The command line of JupyterLab: full path, loopback only, nothing fetched from outside.

    Parameters
    ----------
    folder : Path
        What it opens.
    port : int
        Tried first.
    no_browser : bool
        Print the address only.

    Returns
    -------
    sequence of str
        Program and arguments.

    Raises
    ------
    ToolError
        If JupyterLab is not installed.

    Examples
    --------
    >>> "--ip=127.0.0.1" in lab_command(Path("notebooks"), 8888, True)
    True
    """
    program = which("jupyter-lab")
    if program is None:
        raise ToolError(
            "JupyterLab is not installed in this environment",
            rule="`coconet-lab lab` opens the notebooks with the jupyter-lab beside its own Python",
            where=f"environment {sysconfig.get_path('scripts')}",
            hint="make setup",
        )
    arguments = [program, "--ip=127.0.0.1", f"--port={port}", f"--ServerApp.root_dir={folder.resolve()}"]
    arguments += ["--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    arguments += ["--no-browser"] if no_browser else []
    arguments += ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    return arguments


def notebooks_folder(asked: Path | None) -> Path:
    """The folder to open: `asked`, else `notebooks/` of the current folder, else of the checkout the package is in.

    Raises
    ------
    ToolError
        If there is no such folder.

    Examples
    --------
    >>> notebooks_folder(Path(".")).name
    ''
    """
    places = [asked] if asked is not None else [Path("notebooks"), Path(__file__).parents[2] / "notebooks"]
    for place in places:
        if place.is_dir():
            return place
    raise ToolError(
        f"there is no folder {places[0]} to open",
        rule="`coconet-lab lab` opens a folder of notebooks",
        where=f"looked in {', '.join(str(place) for place in places)}",
        hint="coconet-lab lab --notebooks PATH",
    )


def _environment() -> dict[str, str]:
    """This process's environment with its scripts first, so that kernels find `mpiexec` and their own `python3`."""
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    return {**os.environ, "PATH": path}
