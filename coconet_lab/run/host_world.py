"""On how many hosts ranks are, from what each of them says."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from coconet_lab.errors import ClusterError


def host_count(names: Sequence[str]) -> int:
    """How many hosts the ranks are on, for `lower(program, hosts=…)`.

    Parameters
    ----------
    names : sequence of str
        The host of every rank, in rank order.

    Raises
    ------
    ClusterError
        Ranks of one host that do not follow one another, or hosts with more ranks than others.

    Examples
    --------
    >>> host_count(["a", "a", "b", "b"])
    2
    """
    runs = [(name, len(list(ranks))) for name, ranks in groupby(names)]
    if len({name for name, _ in runs}) < len(runs) or len({count for _, count in runs}) > 1:
        shown = ", ".join(f"{name}: {count}" for name, count in runs[:6]) + (", …" if len(runs) > 6 else "")
        raise ClusterError(
            f"the ranks lie unevenly on their hosts ({shown})",
            rule="every host has equally many ranks, and those of a host follow one another",
            where=f"{len(names)} ranks on {len({name for name, _ in runs})} hosts",
            hint="as many slots for every host in the host file; Slurm: --ntasks-per-node=…, --distribution=block",
        )
    return max(len(runs), 1)
