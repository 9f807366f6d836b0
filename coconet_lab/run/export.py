"""A schedule as a folder that runs without a notebook: a program for mpiexec, its kernels, a benchmark (design §5a)."""

from __future__ import annotations

import os
import string
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from coconet_lab.errors import CodegenError, ProgramError
from coconet_lab.ir.ops import Custom
from coconet_lab.kernels.cuda_compile import OPTIONS, Variant
from coconet_lab.kernels.cuda_printer import print_kernel
from coconet_lab.kernels.kernel import Kernel
from coconet_lab.kernels.numba_printer import kernel_name, print_numba
from coconet_lab.schedule.schedule import Schedule

_MAIN = string.Template(
    '''\
# $title
# made by coconet_lab $version
#
#   mpiexec -n $ranks python main.py                 run, and check against the oracle
#   mpiexec -n $ranks python main.py --benchmark 20  then measure 20 runs at the program's own size
#
$script
#
# schedule.json holds the program and these steps. The kernels that run are kernels/*.py: change one and run again.
"""Run an exported schedule on MPI ranks."""

import argparse
import sys
from pathlib import Path

from coconet_lab.run.standalone import check, measure
from coconet_lab.run.world import MpiWorld
from coconet_lab.schedule.schedule import Schedule

RANKS = $ranks
SEED = $seed  # of the inputs, which every rank draws for itself
HERE = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser(description="Run an exported schedule and check it against the oracle.")
    parser.add_argument("--benchmark", type=int, default=0, metavar="N", help="measure N runs")
    parser.add_argument("--seed", type=int, default=SEED, help="of the inputs (default: %(default)s)")
    options = parser.parse_args()
    world = MpiWorld()
    is_first = world.rank == 0
    if world.size != RANKS:
        if is_first:
            sys.stderr.write(f"for {RANKS} ranks, not {world.size}: mpiexec -n {RANKS} python main.py\\n")
        return 2
    schedule = Schedule.load(HERE / "schedule.json")
    difference = check(schedule, world, HERE / "kernels", seed=options.seed)
    if is_first:
        sys.stdout.write(f"{difference or f'equal to the oracle on {RANKS} ranks'}\\n")
    if difference is None and options.benchmark > 0:
        timing = measure(schedule, world, HERE / "kernels", repeats=options.benchmark, seed=options.seed)
        if is_first:
            sys.stdout.write(f"{timing}\\n")
    return 0 if difference is None else 1


if __name__ == "__main__":
    raise SystemExit(main())
'''
)


def export(schedule: Schedule, directory: str | os.PathLike[str], *, seed: int = 0) -> Path:
    """Write a schedule as a folder: ``main.py`` for plain mpiexec, ``schedule.json``, and ``kernels/``.

    Parameters
    ----------
    schedule : Schedule
    directory : path
        Made if it is not there; files of an earlier export are replaced.
    seed : int
        Of the inputs that ``main.py`` runs on.

    Returns
    -------
    Path
        ``main.py``.

    Raises
    ------
    ProgramError
        A program with custom operators, whose Python functions cannot be written down.
    CodegenError
        An operation with no kernel.
    """
    program = schedule.base
    custom = [name for name, op in program.ops.items() if isinstance(op, Custom)]
    if custom:
        raise ProgramError(
            f"cannot export {program.name!r}: {custom[0]!r} is a custom operator",
            rule="an exported program is data; a custom operator's functions live in the notebook",
            where=f"schedule of program {program.name!r}",
            hint="write it with the lab's own operations, or run it with cl.Cluster(…).run(schedule)",
        )
    kernels = schedule.plan().kernels()
    files = {"schedule.json": schedule.to_json() + "\n", "main.py": _main_text(schedule, seed)}
    for kernel in kernels:
        files |= {f"kernels/{name}": text for name, text in _kernel_files(kernel, schedule.program.group_ranks)}
    folder = Path(directory)
    (folder / "kernels").mkdir(parents=True, exist_ok=True)
    for old in (folder / "kernels").glob("k_*.*"):
        if old.suffix in (".py", ".cu"):
            old.unlink()
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8", errors="surrogatepass")
    return folder / "main.py"


def _main_text(schedule: Schedule, seed: int) -> str:
    # `ascii` and the script's own quoting: no name of the user's ends a comment.
    count = len(schedule.steps)
    title = f"{schedule.base.name!a}, {count} step{'' if count == 1 else 's'}, {schedule.base.ranks} ranks"
    script = "\n".join(f"#   {ascii(line)[1:-1]}" for line in schedule.script().splitlines())
    version = metadata.version("coconet-lab")
    return _MAIN.substitute(title=title, version=version, script=script, ranks=schedule.base.ranks, seed=seed)


def _kernel_files(kernel: Kernel, ranks: int) -> Iterator[tuple[str, str]]:
    """File names and texts of a kernel: Python for Numba, and CUDA C++ with the line that builds it."""
    name, title = kernel_name(kernel), ascii(kernel.name)
    yield f"{name}.py", f"# kernel of {title}\n{print_numba(kernel)}\n"
    try:
        source = print_kernel(kernel)
    except CodegenError:
        return  # it has a form for the CPU alone
    options = " ".join((*OPTIONS, *Variant("sm_90").defines))
    head = (
        f"// kernel of {title}, as rank 0 of {ranks} runs it\n// build: nvcc -cubin -arch=sm_90 {options} {name}.cu\n"
    )
    yield f"{name}.cu", head + source.text
