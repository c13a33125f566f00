"""From the path of a checkpoint to published names and tensors, with tables of other files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from relaygr.core.errors import ConfigError
from relaygr.models.imports.names import Source
from relaygr.models.imports.reading import Contents, read_values
from relaygr.models.imports.research import ITEMS
from relaygr.models.imports.tables import COLLECTION, collected

_META_FILE, _META_TABLES, _INDEX = "non_sparse.ckpt", "sparse", ".metadata"
_NVIDIA_FILE = Path("torch_module") / "model.0.pth"
_STATES = ("dense_dict", "model_state_dict", "state_dict")
_WRAPPER = "module."


def read_source(path: Path) -> Contents:
    """A checkpoint's tensors under their names without wrappers: of a file, or of a folder as published.

    Raises:
        ConfigError: there is no such file, the folder is of another kind, or nothing in it can be read.
    """
    if not path.is_dir():
        return _state(path, read_values(path))
    if (path / _META_FILE).is_file():
        dense = _state(path / _META_FILE, read_values(path / _META_FILE))
        if not (path / _META_TABLES / _INDEX).is_file():
            return dense
        # Here and not above: torch's package takes more than a second to load, which every command would pay.
        from relaygr.models.imports.sharded import read_sharded

        read = read_sharded(path / _META_TABLES)
        sparse = _named(read.values)
        both = sorted(dense.values.keys() & sparse.keys())
        if both:
            raise ConfigError(str(path), f"{', '.join(both)} stand in {_META_FILE} and in {_META_TABLES}")
        return Contents(dense.values | sparse, dense.files + read.files)
    if (path / _NVIDIA_FILE).is_file():
        return _state(path / _NVIDIA_FILE, read_values(path / _NVIDIA_FILE))
    raise ConfigError(str(path), f"is a folder without {_META_FILE} or {_NVIDIA_FILE}; name a file")


def add_tables(contents: Contents, source: Source, tables: Sequence[str]) -> Contents:
    """Add tables given as `name=file[:key]`.

    Raises:
        ConfigError: the form is wrong, a file or key cannot be read, or the table is there already.
    """
    values, files = dict(contents.values), list(contents.files)
    for text in tables:
        name, equals, place = text.partition("=")
        if not (name and equals and place):
            raise ConfigError("--tables", f"{text!r} must have the form name=file or name=file:key")
        target = ITEMS if source == "research" else f"{COLLECTION}{name}.weight"
        if target in values:
            raise ConfigError("--tables", f"table {name!r} is given twice or is in the checkpoint ({target})")
        path, key = _place(place)
        read = read_values(path)
        values[target] = _pick(path, read, name, key)
        files += [file for file in read.files if file not in files]
    return Contents(values, tuple(files))


def _state(path: Path, contents: Contents) -> Contents:
    """The state dict of a file, whatever else stands beside it."""
    values: dict[str, object] = contents.values
    for key in _STATES:
        inner = values.get(key)
        if isinstance(inner, dict):
            values = {str(name): value for name, value in inner.items()}
            break
    if not any(isinstance(value, Tensor) for value in values.values()):
        shown = ", ".join(list(values)[:5])
        raise ConfigError(
            str(path), f"holds no state dict: no tensors, nor {', '.join(_STATES)}; it has {shown}"
        )
    return Contents(_named(values), contents.files)


def _named(values: dict[str, object]) -> dict[str, object]:
    """Names without what wraps a model in training, and of tables without what wraps their collection."""
    named: dict[str, object] = {}
    for name, value in values.items():
        bare = name.removeprefix("sparse_dict.")
        while bare.startswith(_WRAPPER):
            bare = bare.removeprefix(_WRAPPER)
        bare = collected(bare)
        if bare in named:
            raise ConfigError(name, f"is {bare} once more")
        named[bare] = value
    return named


def _place(text: str) -> tuple[Path, str]:
    """File and key; a colon that belongs to the file's name is not a separator."""
    head, colon, key = text.rpartition(":")
    if colon and not Path(text).exists():
        return Path(head), key
    return Path(text), ""


def _pick(path: Path, contents: Contents, name: str, key: str) -> Tensor:
    values = contents.values
    if not key and len(values) == 1:
        (key,) = values
    elif not key:
        wanted = (name, f"{name}.weight", f"{COLLECTION}{name}.weight")
        found = [one for one in values if collected(one) in wanted]
        key = found[0] if len(found) == 1 else name
    value = values.get(key)
    if not isinstance(value, Tensor):
        raise ConfigError(
            str(path), f"has no tensor {key!r} for table {name!r}; it has {', '.join(list(values)[:20])}"
        )
    return value
