"""Scalars on the GPU: one 8-byte slot each, read by kernels at every launch, so a new value captures nothing again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from coconet_lab.kernels.plan import Plan
from coconet_lab.run.cuda_device import import_cupy
from coconet_lab.run.cuda_memory import DeviceMemory
from coconet_lab.run.engine_scalars import scalar_values

Array = np.ndarray[Any, Any]


class DeviceScalars:
    """The scalars of a Plan, given and computed, on the host and on the GPU.

    Attributes
    ----------
    values : mapping of name to array
        As last put on the GPU; empty before.
    addresses : mapping of name to int
    """

    def __init__(self, plan: Plan, memory: DeviceMemory) -> None:
        self.plan = plan
        self.values: dict[str, Array] = {}
        self._given: dict[str, Any] = {}
        self._held = np.zeros(0, np.uint64)
        self._names = list(plan.scalar_types)
        self._start = memory.scratch(8 * max(1, len(self._names)))
        self.addresses = {name: self._start + 8 * n for n, name in enumerate(self._names)}

    def set(self, scalars: Mapping[str, Any], stream: Any) -> None:
        """Take new values for some; the others keep theirs. Those that have none yet may come later."""
        self._given.update(scalars)
        missing = [name for name, default in self.plan.scalar_inputs.items() if default is None]
        if scalars or all(name in self._given for name in missing):
            self._put(stream)

    def ready(self, stream: Any) -> None:
        """Before a run: every scalar has a value on the GPU.

        Raises
        ------
        InputError
            One has none.
        """
        if len(self.values) < len(self._names):
            self._put(stream)

    def _put(self, stream: Any) -> None:
        self.values = scalar_values(self.plan, self._given)
        held = np.zeros(max(1, len(self._names)), np.uint64)
        for n, name in enumerate(self._names):
            kind = np.float64 if self.plan.scalar_types[name].dtype.is_float else np.int64
            held[n] = self.values[name].astype(kind).view(np.uint64)
        runtime = import_cupy().cuda.runtime
        stream.synchronize()
        # In the stream of the launches: a plain copy may return before the GPU has the values, and the streams of a
        # Plan do not wait for the one it is in.
        runtime.memcpyAsync(self._start, held.ctypes.data, held.nbytes, runtime.memcpyHostToDevice, stream.ptr)
        self._held = held
