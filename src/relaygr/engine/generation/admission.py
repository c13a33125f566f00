"""From requests to work: validated, bound to one catalogue version, with what each needs of the memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from relaygr.config.generator import GeneratorConfig
from relaygr.core.errors import ConfigError, RequestError
from relaygr.core.ids import Fingerprint, Tenant, tenant
from relaygr.engine.columns import Int64
from relaygr.engine.generation.asks import ELEMENT_BYTES, GenerateAsk, KvUse, Vocabulary
from relaygr.engine.generation.memory import GeneratorMemory
from relaygr.engine.generation.prompts import Asked, Prompt, prompt_of_items, window_items
from relaygr.engine.history import UserHistory
from relaygr.generation.catalogue.errors import CatalogueError, FilterError, UnavailableError
from relaygr.generation.catalogue.filters import Wanted
from relaygr.generation.catalogue.history import Unknown
from relaygr.generation.catalogue.index import ItemId
from relaygr.generation.catalogue.pinned import PinnedCatalogue
from relaygr.generation.catalogue.tokens import SidTokenMap
from relaygr.generation.catalogue.versions import Catalogues
from relaygr.generation.columns import HeadPlan
from relaygr.generation.errors import (
    CatalogUnavailableError,
    FilterFailedError,
    GenerateError,
    InvalidRequestError,
    KvBudgetError,
    TooLongError,
    TooWideError,
)
from relaygr.generation.normalise import Normalization
from relaygr.generation.requests import GenerateRequest
from relaygr.generation.results import ItemLimits
from relaygr.generation.search import SearchPlan
from relaygr.generation.widths import Widths, resolve_widths
from relaygr.models.decoder.config import DecoderConfig

_TOKEN_CHARACTERS = 32  # of a text that is read, for each token that a prompt may have


@dataclass(frozen=True, slots=True)
class _Version:
    """What does not change for the requests of one catalogue version."""

    tokens: SidTokenMap
    heads: HeadPlan
    repeats: bool  # whether items stand under several semantic ids


class Admission:
    """Checks requests against one decoder, its catalogues and the limits; holds nothing of them.

    Args:
        memory: what requests take of each pool.
    """

    def __init__(
        self,
        shape: DecoderConfig,
        model_fp: Fingerprint,
        catalogues: Catalogues,
        config: GeneratorConfig,
        memory: GeneratorMemory,
        vocabulary: Vocabulary | None = None,
    ) -> None:
        self._shape, self._model_fp, self._catalogues, self._config = shape, model_fp, catalogues, config
        self._memory, self._room = memory, memory.room
        self._vocabulary = vocabulary or Vocabulary()
        self._versions: dict[int, _Version] = {}
        self._lock = threading.Lock()  # around what is known of versions

    def check(self, asked: Asked) -> GenerateAsk:
        """The request with its prompt and plan, bound to the catalogue that is served now.

        Raises:
            GenerateError: see its kinds.
        """
        request_id = asked.request.request_id if asked.request is not None else ""
        try:
            pinned = self._catalogues.pin()
        except UnavailableError as error:
            raise CatalogUnavailableError(request_id, str(error)) from error
        try:
            return self._checked(asked, pinned, request_id)
        except BaseException as error:
            pinned.close()
            raise _typed(request_id, error) from error

    @property
    def reads_texts(self) -> bool:
        return self._vocabulary.tokenize is not None

    def window_items(self) -> int:
        """Items of a prompt at most, by the catalogue that is served; UnavailableError without one."""
        with self._catalogues.pin() as pinned:
            template, levels = self._vocabulary.template_of(pinned.catalogue), pinned.index.levels
            return window_items(template, levels, self._longest_history(levels))

    def _checked(self, asked: Asked, pinned: PinnedCatalogue, request_id: str) -> GenerateAsk:
        if asked.request is not None:
            self._check_filters(asked.request)
        version = self._of_version(pinned)
        levels = pinned.index.levels
        prompt = self._prompt(asked, pinned, version.tokens, self._longest(levels))
        refs = prompt.refs(self._model_fp, self._config.page_tokens)
        if asked.request is None:
            use = self._memory.use(self._pages(prompt), ())
            self._check_pages(prompt, "history", request_id)
            pinned.close()  # the prompt is tokens now
            return GenerateAsk(prompt, refs, None, None, asked, use)
        request = asked.request
        # What the catalogue cannot give takes no memory and none of the budgets.
        nodes = [pinned.index.nodes(level) for level in range(1, levels + 1)]
        widths = self._widths(request, levels).within(nodes)
        use = self._use(prompt, widths, max(pinned.index.sizes), request.normalization)
        self._check_memory(use, prompt, request)
        wanted = Wanted(
            allow=request.allow, deny=request.deny, seen=asked.excluded(), filters=request.filters
        )
        plan = SearchPlan(
            request_id,
            pinned.index,
            version.heads,
            widths,
            request.normalization,
            pinned.filter(wanted),
            ItemLimits(request.max_items_per_sid, request.max_items, version.repeats),
            request.seed,
        )
        # The plan has the places of what was seen.
        return GenerateAsk(prompt, refs, pinned, plan, replace(asked, seen=None), use)

    def _check_filters(self, request: GenerateRequest) -> None:
        limit = self._config.max_filter_items
        for field, ids in (("allow", request.allow or ()), ("deny", request.deny)):
            if len(ids) > limit:
                raise InvalidRequestError(
                    request.request_id, f"{len(ids)} items, limit {limit}", field=field, limit=limit
                )

    def _longest(self, levels: int) -> int:
        """Most prompt tokens; the codes behind it take positions as well."""
        return min(self._config.max_prompt_tokens, self._shape.max_positions - (levels - 1))

    def _longest_history(self, levels: int) -> int:
        """Most tokens of a prompt of items."""
        longest, trained = self._longest(levels), self._vocabulary.history_tokens
        return min(longest, trained) if trained else longest

    def _of_version(self, pinned: PinnedCatalogue) -> _Version:
        with self._lock:
            known = self._versions.get(pinned.version.number)
            if known is None:
                tokens = self._vocabulary.of(pinned.catalogue)
                repeats = bool((np.diff(pinned.index.by_id) == 0).any())
                known = _Version(
                    tokens,
                    HeadPlan(tokens, self._shape.vocab_size, level_heads=self._shape.level_heads),
                    repeats,
                )
                self._versions[pinned.version.number] = known
                for number in sorted(self._versions)[: -2 * self._config.keep_versions]:
                    del self._versions[number]
        return known

    def _prompt(self, asked: Asked, pinned: PinnedCatalogue, codes: SidTokenMap, longest: int) -> Prompt:
        request, owner = asked.request, tenant(asked.tenant)
        if asked.history is not None and (request is None or request.user is not None):
            history = asked.history
            if request is not None and request.user != history.user:
                raise RequestError("user", f"is {request.user!r}, the history is of {history.user!r}")
            prompt = self._of_items(history.items, pinned, codes, history.tenant, asked.unknown, history)
            field = "user"
        elif request is None or request.user is not None:
            raise RequestError("user", "has no history")
        elif request.history is not None:
            prompt = self._of_items(request.history, pinned, codes, owner, asked.unknown)
            field = "history"
        else:
            text = request.text
            field = "token_ids" if text is None else "text"
            found = request.token_ids if text is None else self._tokens_of(text, request.request_id, longest)
            tokens = np.array(found, dtype=np.int64)
            tokens.flags.writeable = False
            prompt = Prompt(tokens, owner, "")
            self._check_tokens(prompt, field, request.request_id, longest)
        if not len(prompt):
            raise RequestError(field, "leaves an empty prompt")
        return prompt

    def _of_items(
        self,
        items: Sequence[ItemId] | Int64,
        pinned: PinnedCatalogue,
        codes: SidTokenMap,
        owner: Tenant,
        unknown: Unknown | None,
        history: UserHistory | None = None,
    ) -> Prompt:
        config = self._config
        return prompt_of_items(
            pinned,
            codes,
            self._vocabulary.template_of(pinned.catalogue),
            items,
            unknown or config.unknown_items,
            self._longest_history(pinned.index.levels),
            config.anchor_stride,
            tenant=owner,
            user="" if history is None else history.user,
            first_sequence=0 if history is None else history.first_sequence,
        )

    def _tokens_of(self, text: str, request_id: str, longest: int) -> Sequence[int]:
        if self._vocabulary.tokenize is None:
            raise RequestError("text", "the model has no tokenizer here")
        # Tokenizers hold the interpreter while they read, and so everybody else up.
        limit = _TOKEN_CHARACTERS * longest
        if len(text) > limit:
            message = f"{len(text)} characters, limit {limit}"
            raise TooLongError(request_id, message, field="text", limit=limit)
        return self._vocabulary.tokenize(text)

    def _check_tokens(self, prompt: Prompt, field: str, request_id: str, longest: int) -> None:
        if len(prompt) > longest:
            raise TooLongError(
                request_id, f"{len(prompt)} tokens, limit {longest}", field=field, limit=longest
            )
        limit = self._shape.vocab_size - 1
        wrong = np.flatnonzero((prompt.tokens < 0) | (prompt.tokens > limit))
        if len(wrong):
            at = int(wrong[0])
            raise InvalidRequestError(
                request_id, f"{prompt.tokens[at]} is over {limit}", field=f"{field}[{at}]", limit=limit
            )

    def _widths(self, request: GenerateRequest, levels: int) -> Widths:
        config = self._config
        most = max(config.max_beam_width, config.max_results)
        widths = resolve_widths(
            request.beam_width, request.num_results, levels, max_width=most, request_id=request.request_id
        )
        named = "beam_width" if request.num_results is None else "num_results"
        for width, limit, field in (
            (widths.rows, config.max_beam_width, "beam_width"),
            (widths.results, config.max_results, named),
        ):
            if width > limit:
                raise TooWideError(
                    request.request_id, f"{width} is over the limit of {limit}", field=field, limit=limit
                )
        return widths

    def _pages(self, prompt: Prompt) -> int:
        return -(-len(prompt) // self._config.page_tokens)

    def _use(self, prompt: Prompt, widths: Widths, codes: int, normalization: Normalization) -> KvUse:
        columns = self._shape.vocab_size if normalization is Normalization.FULL else codes
        scratch = ELEMENT_BYTES * widths.rows * columns
        return self._memory.use(self._pages(prompt), widths.fed, widths.rows, scratch)

    def _check_pages(self, prompt: Prompt, field: str, request_id: str) -> None:
        pages, limit = self._pages(prompt), self._room.pages
        if pages > limit:
            message = f"{len(prompt)} prompt tokens take {pages} pages, there are {limit}"
            raise KvBudgetError(request_id, message, field=field, limit=limit)

    def _check_memory(self, use: KvUse, prompt: Prompt, request: GenerateRequest) -> None:
        names = ("user", "history", "token_ids", "text")
        field = next(name for name in names if getattr(request, name) is not None)
        self._check_pages(prompt, field, request.request_id)
        room = self._room
        for name, need, limit in (
            ("beams", use.unshared + use.records, room.beam_bytes),
            ("logits and ancestors", use.index + use.scratch, room.scratch_bytes),
        ):
            if need > limit:
                message = f"{name} take {need} bytes, limit {limit}"
                raise KvBudgetError(request.request_id, message, field="beam_width", limit=limit)


def _typed(request_id: str, error: BaseException) -> BaseException:
    """The error of a request that `error` ended at its admission; itself if nobody foresaw it."""
    if isinstance(error, GenerateError):
        return error
    if isinstance(error, RequestError):
        return InvalidRequestError(request_id, error.reason, field=error.field)
    if isinstance(error, FilterError):
        return FilterFailedError(request_id, str(error))
    if isinstance(error, (CatalogueError, ConfigError)):
        return CatalogUnavailableError(request_id, str(error))
    return error
