"""A torch module whose parameters are the arrays of a model that numpy serves, under their names."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from relaygr.listwise.arrays import Float32


class ArrayModule(nn.Module):
    """Holds one parameter an array. Names with dots stand as they are in `of` and `arrays`."""

    def __init__(self, arrays: Mapping[str, Float32]) -> None:
        super().__init__()
        self._names = tuple(arrays)
        for name, values in arrays.items():
            self.register_parameter(_key(name), nn.Parameter(torch.from_numpy(values.copy())))

    def of(self, name: str) -> Tensor:
        """The parameter of one array."""
        found: Tensor = getattr(self, _key(name))
        return found

    def arrays(self) -> dict[str, Float32]:
        """All arrays as they are now; copies."""
        return {name: np.array(self.of(name).detach().numpy(), dtype=np.float32) for name in self._names}


def _key(name: str) -> str:
    return name.replace(".", "__")
