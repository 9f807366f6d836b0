"""What will work on a machine, judged from its facts alone: each line says why, and how to get it where it is a no."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coconet_lab.doctor.facts import Fact


@dataclass(frozen=True, slots=True)
class Ability:
    """Something a user may want to do here, whether it will work, and why."""

    name: str
    works: bool
    why: str
    get: str = ""


# What one can do, the facts it stands on, and why it works when all of them are there.
_NEEDS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("build, transform and prove programs", ("python",), "Python and NumPy are all it takes"),
    ("draw graphs", ("graphviz",), "Graphviz lays them out"),
    ("run CPU kernels", ("numba",), "Numba compiles them; no C compiler"),
    ("run on MPI ranks", ("mpi", "cluster", "numba"), "two ranks were started and counted each other"),
    ("share windows larger than 64 MiB", ("shared_memory",), "/dev/shm has the room"),
    ("open the notebooks and the explorer", ("jupyter",), "coconet-lab lab"),
    ("run the browser tests", ("browser", "playwright", "jupyter"), "Chromium starts"),
    ("compile CUDA kernels", ("nvrtc",), "NVRTC needs no GPU"),
    ("run on a GPU", ("gpus", "cupy"), "CuPy reaches it"),
    ("run across GPUs", ("gpus", "cupy", "nccl"), "CuPy and NCCL reach them"),
    ("compare with torch.distributed", ("torch",), "the bench extra is installed"),
)


def abilities(facts: Sequence[Fact]) -> tuple[Ability, ...]:
    """What will work where these facts hold.

    Parameters
    ----------
    facts : sequence of Fact
        What `examine` found.

    Returns
    -------
    tuple of Ability
        Every ability, in the order of the report, the missing ones with their reason.

    Examples
    --------
    >>> [ability.works for ability in abilities([Fact("python", True, "3.12.1")])][:2]
    [True, False]
    """
    known = {fact.name: fact for fact in facts}
    return tuple(_judge(name, needs, why, known) for name, needs, why in _NEEDS)


def _judge(name: str, needs: Sequence[str], why: str, known: dict[str, Fact]) -> Ability:
    missing = [known.get(need, Fact(need, False, f"{need} was not examined")) for need in needs]
    missing = [fact for fact in missing if not fact.present]
    if missing:
        reasons = "; ".join(f"{fact.name}: {fact.text}" for fact in missing)
        ways = dict.fromkeys(fact.get for fact in missing if fact.get)
        return Ability(name, False, reasons, "; ".join(ways))
    if name == "run across GPUs" and known["gpus"].amount < 2:
        return Ability(name, False, "one GPU: two are needed to exchange anything")
    if name == "run on MPI ranks":
        return Ability(name, True, f"{why}; {_pace(known)}")
    return Ability(name, True, why)


def _pace(known: dict[str, Fact]) -> str:
    cores = known["cores"].amount if "cores" in known else 0
    return f"up to {cores} at full speed, more take turns" if cores else "the number of cores is not known"
