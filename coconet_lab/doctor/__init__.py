"""What a machine has, what will therefore work, and how to get what is missing."""

from coconet_lab.doctor.abilities import Ability, abilities
from coconet_lab.doctor.facts import Fact, examine
from coconet_lab.doctor.host import Answer, Host, this_host

__all__ = ["Ability", "Answer", "Fact", "Host", "abilities", "examine", "this_host"]
