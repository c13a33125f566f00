"""How a model of semantic ids is used, beside its weights: tokens of codes, prompts, and whose ids."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from relaygr.core.errors import BackendError, ConfigError
from relaygr.generation.catalogue.index import Int64s, Whole
from relaygr.generation.catalogue.tokens import PromptTemplate, SidTokenMap, TokenSpec

RECIPE_FILE = "generation.json"
FORMAT_VERSION = 1


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `generation.json` holds.

    Attributes:
        sizes: codes of each level.
        sid_token_map: which model token stands for which code.
        template: tokens around the codes of a history.
        max_prompt_tokens: of a prompt, template included; older items are left out.
        sids: digest of the build of semantic ids that the model was trained on.
        codebooks: digest of its codebooks, which items that are added leave as they are; empty if unknown.
    """

    format_version: int = FORMAT_VERSION
    sizes: tuple[int, ...]
    sid_token_map: TokenSpec
    template: PromptTemplate
    max_prompt_tokens: int
    sids: str
    codebooks: str = ""

    @property
    def levels(self) -> int:
        return len(self.sizes)

    @property
    def max_items(self) -> int:
        """Items of the longest prompt."""
        template = self.template
        ends = len(template.before) + len(template.after)
        each = self.levels + len(template.item_before) + len(template.item_after)
        return max((self.max_prompt_tokens - ends) // each, 0)

    def token_map(self) -> SidTokenMap:
        """The map; ConfigError when it does not fit the sizes. Maps by pattern need a tokenizer instead."""
        return self.sid_token_map.resolve(self.sizes)

    def prompt(self, codes: Whole, token_map: SidTokenMap) -> Int64s:
        """The prompt of the newest items of a history of codes [n, L], oldest first. [tokens]"""
        newest = codes[max(len(codes) - self.max_items, 0) :]
        return self.template.tokens(newest, token_map)


def save_recipe(recipe: Recipe, folder: Path) -> None:
    """Write `generation.json`, whole or not at all; BackendError when the file system refuses."""
    file = folder / RECIPE_FILE
    temporary = file.with_name(file.name + ".tmp")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(recipe), indent=2) + b"\n")
        os.replace(temporary, file)
    except OSError as error:
        raise BackendError(f"cannot write {file}: {error.strerror or error}") from error


def open_recipe(folder: Path) -> Recipe:
    """The recipe of the model in `folder`.

    Raises:
        ConfigError: there is none, or it does not say what it must.
    """
    path = folder / RECIPE_FILE
    try:
        recipe = msgspec.json.decode(path.read_bytes(), type=Recipe)
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(str(path), str(error)) from error
    if recipe.format_version != FORMAT_VERSION:
        raise ConfigError(
            str(path), f"has format {recipe.format_version}, this release reads {FORMAT_VERSION}"
        )
    if not recipe.sizes or min(recipe.sizes) < 1:
        raise ConfigError(str(path), f"sizes {list(recipe.sizes)}, wanted at least one level of 1 or more")
    return recipe
