"""Whether a catalogue fits the model that is to generate from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from relaygr.generation.catalogue.artefact import Catalogue
from relaygr.generation.catalogue.errors import LoadError
from relaygr.generation.catalogue.tokens import PromptTemplate, SidTokenMap, Tokenizer


def expect_levels(sizes: Sequence[int]) -> Callable[[Catalogue], None]:
    """A check that a catalogue has exactly these levels; it raises LoadError."""
    wanted = tuple(sizes)

    def check(catalogue: Catalogue) -> None:
        if catalogue.index.sizes != wanted:
            raise LoadError(f"levels of sizes {list(catalogue.index.sizes)}, the model has {list(wanted)}")

    return check


def expect_codebooks(expected: str) -> Callable[[Catalogue], None]:
    """A check that a catalogue's semantic ids are those that the model learned; it raises LoadError.

    Where either does not say whose they are, nothing is checked.
    """

    def check(catalogue: Catalogue) -> None:
        found = catalogue.header.codebooks
        if expected and found and found != expected:
            raise LoadError(f"its semantic ids are of codebooks {found}, the model learned {expected}")

    return check


def expect_tokens(
    expected: SidTokenMap | None, vocab_size: int, tokenizer: Tokenizer | None = None
) -> Callable[[Catalogue], None]:
    """A check of the tokens that a catalogue names, if it names any: the model's own, and in its vocabulary.

    It raises LoadError or ConfigError.
    """

    def check(catalogue: Catalogue) -> None:
        spec = catalogue.header.tokens
        if spec is None:
            if expected is None:
                raise LoadError("neither the catalogue nor the model says which token a code is")
            return
        found = spec.resolve(catalogue.index.sizes, tokenizer, vocab_size)
        found.check_vocabulary(vocab_size)
        if expected is None:
            return
        if len(expected.tables) != len(found.tables):
            raise LoadError(f"{len(found.tables)} levels, the model has {len(expected.tables)}")
        for level, (ours, theirs) in enumerate(zip(expected.tables, found.tables, strict=True), start=1):
            if not np.array_equal(ours, theirs):
                raise LoadError(f"level {level}: other tokens than the model's")

    return check


def expect_template(
    template_of: Callable[[Catalogue], PromptTemplate], vocab_size: int
) -> Callable[[Catalogue], None]:
    """A check that what stands around codes in prompts are tokens of the model; it raises LoadError."""

    def check(catalogue: Catalogue) -> None:
        template = template_of(catalogue)
        for name in template.__struct_fields__:
            for token in getattr(template, name):
                if not 0 <= token < vocab_size:
                    raise LoadError(f"template.{name}: token {token}, limit 0 to {vocab_size - 1}")

    return check
