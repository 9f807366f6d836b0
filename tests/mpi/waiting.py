"""Waiting for what other processes do: often looked at, and never longer than a limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from coconet_lab.run.guard import is_alive


def wait_for(condition: Callable[[], Any], limit_s: float = 20.0) -> bool:
    """Whether `condition` came true within `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def no_process_left(pids: list[int], limit_s: float = 10.0) -> bool:
    """Whether all of `pids`, of which there must be some, have ended within `limit_s`."""
    return bool(pids) and wait_for(lambda: not [pid for pid in pids if is_alive(pid)], limit_s)
