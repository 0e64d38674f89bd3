"""Credentials that a provider hands out, and their renewal.

A provider is a callable that answers with storage options (`access_key_id`, `secret_access_key`, `session_token`, ...), and, if they expire,
`expires_at` (seconds since 1970, or a `datetime`); or a boto3 session. It is asked when a data set is opened and again shortly before
expiry, from whatever call comes along then: there is no thread. A provider travels to workers only if it can be pickled; otherwise
the process that made the loader renews for all before they expire, since the agent holds one set of credentials for a data set.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Mapping
from typing import Any

from foreload.errors import DeniedError, InvalidError

#: What `open` takes as `credential_provider`: a callable or a boto3 session.
Provider = Callable[[], Mapping[str, Any]] | Any
#: Renewed so long before they expire: a request may wait for its turn and be repeated.
_EARLY_S = 300.0
#: Credentials without an expiry are asked for again after this long.
_UNKNOWN_S = 900.0


class Credentials:
    """What a provider said last.

    Args:
        provider: The provider.
    """

    def __init__(self, provider: Provider) -> None:
        if not callable(provider) and not hasattr(provider, "get_credentials"):
            raise InvalidError(
                "credential_provider: give a callable that answers with storage options, or a boto3 session"
            )
        self._provider = provider
        self._due = 0.0

    def is_due(self) -> bool:
        """Whether to ask the provider again."""
        return time.time() >= self._due

    def ask(self) -> dict[str, str]:
        """Asks the provider.

        Returns:
            Storage options.

        Raises:
            DeniedError: The provider has none, or failed.
            InvalidError: Its answer isn't a dict of storage options.
        """
        try:
            options = self._provider() if callable(self._provider) else _of_boto3(self._provider)
        except Exception as error:
            raise DeniedError(f"the credential provider failed: {error}") from error
        if not isinstance(options, Mapping):
            raise InvalidError(
                f"credential_provider: it answered with {options!r}, and would answer with a dict of storage options, such as access_key_id and "
                "secret_access_key"
            )
        options = dict(options)
        names = {name.lower().removeprefix("aws_") for name, value in options.items() if value is not None}
        if names.isdisjoint({"access_key_id", "key"}) != names.isdisjoint({"secret_access_key", "secret"}):
            raise InvalidError(
                "credential_provider: it answered with one of access_key_id and secret_access_key, and would answer with both"
            )
        expires = options.pop("expires_at", None)
        if isinstance(expires, dt.datetime):
            expires = expires.timestamp()
        if not isinstance(expires, (int, float, type(None))):
            raise InvalidError(
                f"credential_provider: expires_at is {expires!r}; give seconds since 1970, or a datetime"
            )
        now = time.time()
        # Of short-lived ones at least half of the life is used, or a provider that caches would be asked at each batch.
        self._due = (
            now + _UNKNOWN_S if expires is None else max(float(expires) - _EARLY_S, now + (float(expires) - now) / 2)
        )
        return {name: str(value) for name, value in options.items() if value is not None}


def _of_boto3(session: Any) -> dict[str, Any]:
    found = session.get_credentials()
    if found is None:
        raise DeniedError("the boto3 session has no credentials")
    frozen = found.get_frozen_credentials()
    return {
        "access_key_id": frozen.access_key,
        "secret_access_key": frozen.secret_key,
        "session_token": frozen.token,
        "expires_at": getattr(found, "_expiry_time", None),
    }
