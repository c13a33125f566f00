"""Who calls: the tenant of an API key, or, where no keys are configured, of a header."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus

from starlette.datastructures import Headers

from relaygr.config.settings import ApiKey
from relaygr.core.errors import ConfigError, RequestError
from relaygr.core.ids import DEFAULT_TENANT, check_name
from relaygr.serving.errors import HttpError

TENANT_HEADER = "x-tenant"
_LEAST_KEY_CHARACTERS = 16


@dataclass(frozen=True, slots=True)
class Caller:
    """A tenant, and whether it may change what is served."""

    tenant: str
    admin: bool


class Gatekeeper:
    """Tells callers by their headers; every configured key is compared, however early one matches."""

    def __init__(self, keys: Sequence[ApiKey]) -> None:
        """ConfigError for a short or repeated key, which it does not show, or a tenant that is no name."""
        self._keys: list[tuple[bytes, Caller]] = []
        for place, entry in enumerate(keys):
            path = f"serving.keys[{place}]"
            if len(entry.key) < _LEAST_KEY_CHARACTERS:
                raise ConfigError(f"{path}.key", f"has fewer than {_LEAST_KEY_CHARACTERS} characters")
            if not all("!" <= char <= "~" for char in entry.key):
                raise ConfigError(
                    f"{path}.key", "holds what no header can carry: printable ASCII without blanks"
                )
            digest = _digest(entry.key)
            if any(digest == other for other, _ in self._keys):
                raise ConfigError(f"{path}.key", "is the same as an earlier one")
            try:
                tenant = check_name("tenant", entry.tenant)
            except RequestError as error:
                raise ConfigError(path, str(error)) from error
            self._keys.append((digest, Caller(tenant, entry.admin)))

    def caller(self, headers: Headers) -> Caller:
        """Who sent these headers.

        Raises:
            HttpError: 401 for no key or an unknown one, where keys are configured.
            RequestError: the header names no tenant.
        """
        if not self._keys:
            return Caller(check_name(TENANT_HEADER, headers.get(TENANT_HEADER, DEFAULT_TENANT)), True)
        sent = _sent_key(headers)
        if sent is None:
            raise HttpError(
                HTTPStatus.UNAUTHORIZED, "key_missing", "an API key is needed", field="authorization"
            )
        digest, found = _digest(sent), None
        for other, caller in self._keys:
            if hmac.compare_digest(digest, other):
                found = caller
        if found is None:
            raise HttpError(
                HTTPStatus.UNAUTHORIZED, "key_unknown", "the API key is not known", field="authorization"
            )
        named = headers.get(TENANT_HEADER)
        if named is not None and named != found.tenant:
            raise HttpError(
                HTTPStatus.FORBIDDEN, "tenant", "the API key is another tenant's", field=TENANT_HEADER
            )
        return found


def check_admin(caller: Caller) -> None:
    """HttpError with 403 unless the caller may change what is served."""
    if not caller.admin:
        raise HttpError(HTTPStatus.FORBIDDEN, "admin", "the API key may not do this", field="authorization")


def _sent_key(headers: Headers) -> str | None:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return headers.get("x-api-key") or None


def _digest(key: str) -> bytes:
    # Digests have one length, which a comparison in constant time needs.
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
