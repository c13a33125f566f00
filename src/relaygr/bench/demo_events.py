"""The events of the demonstration: given, made, or read from a repository, and enough to show something."""

from __future__ import annotations

from pathlib import Path

from relaygr.bench.demo_stats import TOP
from relaygr.bench.retrieval import RetrievalSpec
from relaygr.core.errors import ConfigError
from relaygr.data.dataset import Events
from relaygr.data.readers.history import GitReader
from relaygr.data.split import Split
from relaygr.data.synth import SynthSpec, synthesize
from relaygr.data.write import check_target, write_events
from relaygr.training.catalogue import Catalogue, catalogue_before


def synthetic_events(folder: Path, spec: SynthSpec) -> Events:
    """Generated into `folder`."""
    source = "relaygr demo, synthetic"
    return write_events(folder, synthesize(spec), name="synthetic", source=source, licence="CC0-1.0")


def git_events(folder: Path, repository: Path, seed: int) -> Events:
    """The history of `repository`, written into `folder`; the same commit and seed give the same bytes.

    Raises:
        DataError: it is no repository, or its history holds no events.
        ConfigError: git is missing, or `folder` holds something else.
    """
    check_target(folder)
    # A key that anyone can know: two runs shall be equal, and the events stay where the repository is.
    read = GitReader(salt=f"relaygr demo {seed}").read(repository)
    return write_events(folder, read.table, name=repository.resolve().name, source=read.source, licence="")


def catalogue(events: Events, split: Split) -> Catalogue:
    """The items that retrieval may find.

    Raises:
        ConfigError: there are so few that nothing could be shown with them.
    """
    found, floor = catalogue_before(events, split.valid_end_s), RetrievalSpec().floor
    small = f"{events.path} is too small: "
    if int(found.counts.max()) < floor:
        raise ConfigError(
            "events",
            f"{small}none of the {len(found)} items before the test part occurs {floor} times, so nothing "
            "can be retrieved",
        )
    if len(found) <= TOP:
        # Every order of them has the same items at its top.
        raise ConfigError(
            "events", f"{small}{len(found)} items before the test part, and ranking needs more than {TOP}"
        )
    return found
