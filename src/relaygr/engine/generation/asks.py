"""A checked request: its prompt, its plan, the catalogue version it is bound to, and what it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from relaygr.core.state import Ref
from relaygr.engine.generation.prompts import Asked, Prompt
from relaygr.generation.catalogue.artefact import Catalogue
from relaygr.generation.catalogue.errors import LoadError
from relaygr.generation.catalogue.pinned import PinnedCatalogue
from relaygr.generation.catalogue.tokens import PromptTemplate, SidTokenMap, Tokenizer
from relaygr.generation.search import SearchPlan

Tokenize: TypeAlias = Callable[[str], Sequence[int]]
"""The tokens of a text; may raise RequestError."""

ELEMENT_BYTES = 4  # of an ancestor, and of a logit


@dataclass(frozen=True, slots=True)
class KvUse:
    """Bytes that one request holds, or by the formula would.

    Attributes:
        shared: keys and values of the prompt, whole pages.
        unshared: of its beams, a slot for each beam of each fed round.
        index: of their ancestors.
        scratch: of the logits of its widest round.
        state: recurrent state of the prompt and its last rows before the convolutions, of linear layers.
        records: on linear layers, of each beam of each fed round.
    """

    shared: int
    unshared: int
    index: int
    scratch: int
    state: int = 0
    records: int = 0


@dataclass(slots=True, eq=False)
class GenerateAsk:
    """A checked request; `close` lets its catalogue version go."""

    prompt: Prompt
    refs: tuple[Ref, ...]
    pinned: PinnedCatalogue | None
    plan: SearchPlan | None
    asked: Asked
    use: KvUse

    @property
    def request_id(self) -> str:
        return self.plan.request_id if self.plan is not None else ""

    @property
    def owner(self) -> tuple[str, str]:
        return self.prompt.tenant, self.prompt.user

    @property
    def deadline_ms(self) -> float | None:
        return self.asked.request.deadline_ms if self.asked.request is not None else None

    @property
    def tokens(self) -> int:
        return len(self.prompt)

    @property
    def rows(self) -> int:
        return self.plan.widths.rows if self.plan is not None else 0

    def close(self) -> None:
        if self.pinned is not None:
            self.pinned.close()


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """How text and codes become tokens of the model.

    Attributes:
        codes: of catalogues that do not say so themselves.
        token: the id of one whole token, for catalogues that name tokens by their text.
        tokenize: makes prompts of texts; None refuses them.
        template: around the codes of a history, for catalogues that have none.
        history_tokens: longest prompt of a history that the model was trained on; 0 sets no limit.
        codebooks: digest of those whose codes the model was trained on; empty if unknown.
    """

    codes: SidTokenMap | None = None
    token: Tokenizer | None = None
    tokenize: Tokenize | None = None
    template: PromptTemplate = field(default_factory=PromptTemplate)
    history_tokens: int = 0
    codebooks: str = ""

    def of(self, catalogue: Catalogue) -> SidTokenMap:
        """The tokens of a catalogue's codes.

        Raises:
            LoadError, ConfigError: nobody says what they are, or what is said is no map.
        """
        spec = catalogue.header.tokens
        if spec is not None:
            return spec.resolve(catalogue.index.sizes, self.token)
        if self.codes is None:
            raise LoadError("neither the catalogue nor the model says which token a code is")
        return self.codes

    def template_of(self, catalogue: Catalogue) -> PromptTemplate:
        """What stands around codes in a prompt: as the catalogue says, else the model."""
        own = catalogue.header.template
        return own if own != PromptTemplate() else self.template


@dataclass(frozen=True, slots=True)
class Room:
    """The memory of all requests together: pages of prompts; bytes of beams, and of scratch."""

    pages: int
    beam_bytes: int
    scratch_bytes: int
