"""Opens a history store by its URL."""

from __future__ import annotations

from pathlib import Path

from relaygr.config.settings import StoreConfig
from relaygr.core.errors import ConfigError
from relaygr.data.stores.interface import HistoryStore
from relaygr.data.stores.lmdb import LmdbStore
from relaygr.data.stores.redis import RedisStore
from relaygr.data.stores.sqlite import SqliteStore

FORMS = "sqlite:///FILE, sqlite://memory, lmdb:///FOLDER or redis://HOST:PORT/DB"


def open_store(url: str, settings: StoreConfig | None = None) -> HistoryStore:
    """The store at `url`, made if there is none; the caller closes it.

    Args:
        url: `sqlite:///FILE`, `lmdb:///FOLDER`: relative to the working folder, absolute with a fourth
            slash, taken as it stands; `sqlite://memory`; `redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]`, or
            `rediss://` for TLS.
        settings: everything but the place, `settings.url` is not read; None stands for the defaults.

    Raises:
        ConfigError: of `store.url`: no such form, no such place, a package is missing (named with its extra).
        BackendError: the store is damaged or the server does not answer.
        OverloadError: another process holds it.
    """
    chosen = settings if settings is not None else StoreConfig()
    if url == "sqlite://memory":
        return SqliteStore(None, chosen)
    scheme, separator, rest = url.partition("://")
    if separator and scheme in ("redis", "rediss"):
        return RedisStore(url, chosen)
    if scheme in ("sqlite", "lmdb") and rest.startswith("/") and len(rest) > 1 and "\0" not in rest:
        path = Path(rest[1:])
        return SqliteStore(path, chosen) if scheme == "sqlite" else LmdbStore(path, chosen)
    # What is shown has no password in it, whatever the form.
    shown = f"{scheme}://..." if separator else "a text without ://"
    raise ConfigError("store.url", f"{shown} is none of {FORMS}")
