"""boto3 clients that are set up as our own sources are: for writing an index, and for comparisons."""

from typing import Any

#: Our storage options and the arguments of `boto3.client` that mean the same.
_NAMES = {
    "endpoint": "endpoint_url",
    "region": "region_name",
    "access_key_id": "aws_access_key_id",
    "secret_access_key": "aws_secret_access_key",
    "session_token": "aws_session_token",
    "ca_file": "verify",
}


def client(url: str, given: dict[str, str]) -> Any:
    """An S3 client.

    Args:
        url: What it will be used for.
        given: Storage options; those of the environment are added.

    Returns:
        The client.
    """
    import boto3
    from botocore import UNSIGNED
    from botocore.config import Config

    from foreload._settings import environment as _environment

    found = _environment.storage_options(url, given)
    arguments: dict[str, Any] = {ours: found[name] for name, ours in _NAMES.items() if name in found}
    if found.get("anonymous") == "true":
        arguments["config"] = Config(signature_version=UNSIGNED)
    return boto3.Session(profile_name=found.get("profile")).client("s3", **arguments)
