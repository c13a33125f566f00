"""Choose the kernel of linear attention for a device, once, and say why."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch

from relaygr.core.errors import BackendError
from relaygr.kernels.cpu import CpuRecurrent
from relaygr.kernels.cpu.heap import keep_freed_memory
from relaygr.kernels.recurrent import RecurrentKernel

log = logging.getLogger("relaygr.kernels")


@dataclass(frozen=True, slots=True)
class RecurrentChoice:
    """The chosen kernel, and why."""

    kernel: RecurrentKernel
    reason: str


def choose_recurrent(device: torch.device | str = "cpu") -> RecurrentChoice:
    """The kernel for `device`; freed memory stays in the process, as a step's blocks are MiB large.

    Raises:
        BackendError: there is none for this device.
    """
    kind = torch.device(device).type
    if kind != "cpu":
        raise BackendError(f"linear attention has no kernel for the device {kind!r}")
    kept = "kept in" if keep_freed_memory() else "not kept in"
    choice = RecurrentChoice(CpuRecurrent(), f"cpu: the only one for this device; freed memory is {kept} it")
    log.info("linear attention by %s", choice.reason)
    return choice
