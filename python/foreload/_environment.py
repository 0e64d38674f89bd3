"""The environment variables that the package reads, all of them.

`FORELOAD_RAM`, `FORELOAD_DISK` (default budgets, as `Cache` takes them), `FORELOAD_CACHE_DIR` (where indexes and logs go); those of
torchrun (`RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE`, `TORCHELASTIC_RUN_ID`, `MASTER_ADDR`, `MASTER_PORT`) and of other launchers
(`_launcher`); and those of the clouds that name endpoints and credentials. The clouds' are read here and not by the agent alone, because an agent that still runs
was started with the variables of an earlier shell.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from foreload.errors import InvalidError

#: By scheme: variable -> names by which the same option may be given in `storage_options`.
_AWS: dict[str, tuple[str, ...]] = {
    "AWS_ACCESS_KEY_ID": ("access_key_id", "key"),
    "AWS_SECRET_ACCESS_KEY": ("secret_access_key", "secret"),
    "AWS_SESSION_TOKEN": ("session_token", "token", "security_token"),
    "AWS_REGION": ("region", "default_region", "region_name"),
    "AWS_DEFAULT_REGION": ("region", "default_region", "region_name"),
    "AWS_ENDPOINT_URL": ("endpoint", "endpoint_url", "endpoint_url_s3"),
    "AWS_ENDPOINT_URL_S3": ("endpoint", "endpoint_url", "endpoint_url_s3"),
    "AWS_PROFILE": ("profile", "profile_name"),
    "AWS_CA_BUNDLE": ("ca_file", "ca_bundle", "verify"),
    "AWS_ALLOW_HTTP": ("allow_http",),
    "AWS_ROLE_ARN": ("role_arn",),
    "AWS_WEB_IDENTITY_TOKEN_FILE": ("web_identity_token_file",),
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": ("container_credentials_relative_uri",),
    "AWS_CONTAINER_CREDENTIALS_FULL_URI": ("container_credentials_full_uri",),
}
_GOOGLE: dict[str, tuple[str, ...]] = {
    "GOOGLE_APPLICATION_CREDENTIALS": ("application_credentials", "service_account", "service_account_key", "token")
}
_AZURE: dict[str, tuple[str, ...]] = {
    "AZURE_STORAGE_ACCOUNT_NAME": ("account_name", "storage_account_name", "account"),
    "AZURE_STORAGE_ACCOUNT_KEY": ("account_key", "storage_account_key", "access_key"),
    "AZURE_STORAGE_SAS_TOKEN": ("sas_token", "storage_sas_token"),
    "AZURE_CLIENT_ID": ("client_id",),
    "AZURE_CLIENT_SECRET": ("client_secret",),
    "AZURE_TENANT_ID": ("tenant_id",),
}
_CLOUDS: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {
    **dict.fromkeys(("s3", "s3a", "s3n"), ("aws_", _AWS)),
    **dict.fromkeys(("gs", "gcs"), ("google_", _GOOGLE)),
    **dict.fromkeys(("az", "azure", "abfs", "abfss", "adl"), ("azure_", _AZURE)),
}
#: Options that say who we are: given any of them, what the environment says about that is of somebody else.
_IDENTITY = frozenset(
    "access_key_id key secret_access_key secret session_token token profile profile_name anonymous anon skip_signature no_sign_request".split()  # noqa: SIM905
)


def get(name: str) -> str | None:
    """A variable, if it is set to something."""
    return os.environ.get(name) or None


def number(name: str) -> int | None:
    """A variable that holds a number."""
    text = get(name)
    return int(text) if text is not None and text.isdigit() else None


def as_text(options: Mapping[str, Any]) -> dict[str, str]:
    """Options as the agent takes them; what is None isn't given."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
        if value is not None
    }


def storage_options(url: str, given: Mapping[str, str]) -> dict[str, str]:
    """Adds what the environment says about a store to the options that were given, which win.

    Args:
        url: The data set's URL.
        given: Options of the caller.

    Returns:
        All of them.

    Raises:
        InvalidError: Half a pair of keys is given.
    """
    prefix, known = _CLOUDS.get(url.partition("://")[0].lower() if "://" in url else "", ("", {}))
    names = {name.lower().removeprefix(prefix) for name in given}
    if known is _AWS:
        _check_pair(names)
    identified = bool(names & _IDENTITY)
    found: dict[str, str] = {}
    for variable, aliases in known.items():
        value = get(variable)
        ours = identified and not _IDENTITY.isdisjoint(aliases)
        # The first of two variables for one option wins, but for the service's own endpoint.
        if value is None or ours or not names.isdisjoint(aliases):
            continue
        if variable.endswith("_S3"):
            found[aliases[0]] = value
        else:
            found.setdefault(aliases[0], value)
    if "profile" in found and "access_key_id" in found:
        del found["profile"]
    return {**found, **given}


def _check_pair(names: set[str]) -> None:
    """Refuses half a pair of S3 keys: with the other half of somebody else it would be ignored, or refused by the store as theirs."""
    pair = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    parts = (*pair, "AWS_SESSION_TOKEN")
    given = {part: names & set(_AWS[part]) for part in parts}
    missing = [part.removeprefix("AWS_").lower() for part in pair if not given[part]]
    if missing and any(given.values()):
        found = ", ".join(sorted(set().union(*given.values())))
        raise InvalidError(
            f"storage_options: {found} without {' and '.join(missing)}; give both keys, or neither to have the environment's"
        )
