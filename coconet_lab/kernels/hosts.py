"""Which ranks of a program are on one host: consecutive ones, equally many on every host."""

from __future__ import annotations

from dataclasses import dataclass

from coconet_lab.arguments import whole
from coconet_lab.errors import ProgramError


@dataclass(frozen=True, slots=True)
class Hosts:
    """The ranks of a program on hosts.

    Parameters
    ----------
    ranks, groups : int
        As the program's.
    count : int
        Hosts. A group lies on one of them, or has all ranks of several.

    Raises
    ------
    ProgramError
        A placement that is not like that.

    Examples
    --------
    >>> placement = Hosts(ranks=8, groups=1, count=2)
    >>> placement.span, placement.local
    (2, 4)
    """

    ranks: int
    groups: int
    count: int

    def __post_init__(self) -> None:
        whole(self.count, "the number of hosts", least=1, hint="hosts=2")
        if self.ranks % self.count:
            raise self._error(f"{self.ranks} ranks do not spread evenly over {self.count} hosts", "ranks", self.count)
        if self.group_ranks % self.per_host and self.per_host % self.group_ranks:
            found = f"groups of {self.group_ranks} ranks do not fit hosts of {self.per_host}"
            raise self._error(found, "ranks of a group", self.per_host)

    def _error(self, found: str, what: str, unit: int) -> ProgramError:
        return ProgramError(
            found,
            rule="every host has equally many consecutive ranks, and a group lies on one host or fills several",
            where=f"placement of {self.ranks} ranks in {self.groups} group{'' if self.groups == 1 else 's'}",
            hint=f"a multiple of {max(unit, 1)} {what}: schedule.with_ranks(…, groups=…), or other hosts for the ranks",
        )

    @property
    def per_host(self) -> int:
        """Ranks of a host."""
        return self.ranks // self.count

    @property
    def group_ranks(self) -> int:
        """Ranks of a process group."""
        return self.ranks // self.groups

    @property
    def span(self) -> int:
        """Hosts of a group."""
        return max(1, self.group_ranks // self.per_host)

    @property
    def local(self) -> int:
        """Ranks of a group on each of its hosts."""
        return self.group_ranks // self.span

    def together(self, group: int, other: int) -> bool:
        """Whether rank k of two groups is on one host, for every k."""
        return self.span == 1 and group * self.group_ranks // self.per_host == other * self.group_ranks // self.per_host

    def host(self, rank: int) -> int:
        """The host of a rank of all ranks."""
        return rank // self.per_host
