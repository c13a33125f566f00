"""What has to be said wherever figures of a dataset are shown."""

from __future__ import annotations

from collections.abc import Sequence

from relaygr.core.errors import ConfigError
from relaygr.data.dataset import Meta

_MOVIELENS = (
    "MovieLens data of GroupLens Research: F. Maxwell Harper and Joseph A. Konstan. 2015. The MovieLens "
    "Datasets: History and Context. ACM Transactions on Interactive Intelligent Systems (TiiS) 5, 4, Article "
    "19. https://doi.org/10.1145/2827872"
)
_DEVELOPMENT = (
    "The authors of this data set call it a development set, not fit for shared research results: read the "
    "figures as a check of the method, not as results."
)
_UNNAMED = (
    "The name does not say which edition this is. The authors of MovieLens call its ml-latest editions "
    "development sets, not fit for shared research results."
)
_STABLE = ("ml-100k", "ml-1m", "ml-10m", "ml-20m", "ml-25m", "ml-32m")


def notes_for(meta: Meta, given: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """The notes that are known for a dataset by its name and source, then those of `given` for its name."""
    words = f"{meta.name} {meta.source}".lower()
    found = []
    if "ml-latest" in words:
        found.append(_DEVELOPMENT)
    elif "movielens" in words and not any(edition in words for edition in _STABLE):
        found.append(_UNNAMED)
    if "ml-latest" in words or "movielens" in words:
        found.append(_MOVIELENS)
    return (*found, *(text for name, text in given if name == meta.name))


def parse_notes(option: str, texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """NAME=TEXT of each; ConfigError, naming `option`, for a text of another form."""
    found = []
    for text in texts:
        name, equals, note = text.partition("=")
        if not (name.strip() and equals and note.strip()):
            raise ConfigError(option, f"{text!r} must have the form NAME=TEXT")
        found.append((name.strip(), " ".join(note.split())))
    return tuple(found)
