"""The store: which credentials would be used, whether the clocks agree, whether the data set answers."""

import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path

from foreload import _core
from foreload._settings import environment as _environment
from foreload.cli.doctor.finding import Finding
from foreload.cli.output import human_bytes, human_count, human_seconds

#: S3 refuses requests whose time is off by more than 15 minutes.
_REFUSED_S = 900.0
_SUSPECT_S = 60.0

#: By scheme: variables that give credentials, in the order in which they are looked for, and what each means.
_VARIABLES: dict[str, tuple[tuple[str, str], ...]] = {
    "s3": (
        ("AWS_ACCESS_KEY_ID", "keys in the environment"),
        ("AWS_PROFILE", "a profile"),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "a web identity"),
        ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "the container's role"),
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "the container's role"),
    ),
    "gs": (("GOOGLE_APPLICATION_CREDENTIALS", "a service account file"),),
    "az": (
        ("AZURE_STORAGE_ACCOUNT_KEY", "an account key"),
        ("AZURE_STORAGE_SAS_TOKEN", "a shared access signature"),
        ("AZURE_CLIENT_ID", "a service principal"),
    ),
}
_IDENTITY = {
    "anonymous": "unsigned requests, as asked",
    "access_key_id": "keys from the options",
    "profile": "the profile {value!r}, as asked",
    "account_key": "an account key from the options",
    "sas_token": "a shared access signature from the options",
}


def scheme_of(url: str) -> str:
    """The family that a URL belongs to: `s3`, `gs`, `az`, `http` or `file`.

    Example:
        >>> scheme_of("s3a://bucket"), scheme_of("data/train")
        ('s3', 'file')
    """
    return (_core.scheme(url) or url.partition("://")[0].lower()).replace("https", "http")


def credentials(
    url: str, options: Mapping[str, str], environment: Mapping[str, str] = os.environ, home: Path | None = None
) -> Iterator[Finding]:
    """Which of the store's chain of credentials would be used; secrets are never shown."""
    scheme, name = scheme_of(url), "credentials"
    if scheme not in _VARIABLES:
        return
    named = _environment.canonical(url, options)
    for option, meaning in _IDENTITY.items():
        if value := named.get(option):
            yield Finding(name, "ok", meaning.format(value=value))
            return
    for variable, meaning in _VARIABLES[scheme]:
        if environment.get(variable):
            yield Finding(name, "ok", f"{meaning} ({variable})")
            return
    if place := _file(scheme, environment, home or Path.home()):
        yield Finding(name, "ok", f"found in {place}")
        return
    remedy = {
        "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, run `aws configure`, or pass --anonymous for a public bucket",
        "gs": "run `gcloud auth application-default login`, or pass --anonymous for a public bucket",
        "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or pass --anonymous for a public container",
    }[scheme]
    detail = "none in options, environment or files; only a role of this machine or container is left"
    yield Finding(name, "warn", detail, remedy)


def _file(scheme: str, environment: Mapping[str, str], home: Path) -> str | None:
    if scheme == "s3":
        named = environment.get("AWS_SHARED_CREDENTIALS_FILE")
        places = [Path(named)] if named else [home / ".aws/credentials", home / ".aws/config"]
    elif scheme == "gs":
        places = [home / ".config/gcloud/application_default_credentials.json"]
    else:
        places = []
    return next((str(place) for place in places if place.is_file()), None)


def endpoint_of(url: str, options: Mapping[str, str]) -> str | None:
    """The address that requests for a data set go to; None for a directory."""
    scheme = scheme_of(url)
    if scheme == "file":
        return None
    if scheme == "http":
        return "/".join(url.split("/")[:3])
    options = _environment.canonical(url, options)
    if value := options.get("endpoint"):
        return value
    if scheme == "gs":
        return "https://storage.googleapis.com"
    if scheme == "az":
        account = options.get("account_name")
        return f"https://{account}.blob.core.windows.net" if account else None
    return f"https://s3.{options.get('region', 'us-east-1')}.amazonaws.com"


def clock(url: str, options: Mapping[str, str], timeout_s: float = 5.0) -> Iterator[Finding]:
    """How far this clock is from the store's: signatures carry the time."""
    endpoint = endpoint_of(url, options)
    if endpoint is None:
        return
    request = urllib.request.Request(endpoint, method="HEAD")  # noqa: S310 (the store's address, from the user)
    before = time.time()
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:  # noqa: S310
            date = response.headers["Date"]
    except urllib.error.HTTPError as error:
        # An answer that refuses tells the time as well.
        date = error.headers["Date"]
    except OSError as error:
        reason = getattr(error, "reason", error)
        remedy = "check the address, the network, and HTTPS_PROXY/NO_PROXY"
        yield Finding("endpoint", "fail", f"{endpoint}: {reason}", remedy)
        return
    took = time.time() - before
    yield Finding("endpoint", "ok", f"{endpoint} answers in {human_seconds(took)}")
    if date:
        yield skew(time.time() - parsedate_to_datetime(date).timestamp() - took / 2)


def skew(seconds: float) -> Finding:
    """The finding for a clock that is this far ahead of the store's."""
    off = abs(seconds)
    if off <= 2:  # the header has whole seconds
        return Finding("clock", "ok", "agrees with the store's")
    detail = f"{human_seconds(off)} {'ahead of' if seconds > 0 else 'behind'} the store's"
    remedy = "set it, for example with `timedatectl set-ntp true`"
    if off > _REFUSED_S:
        return Finding("clock", "fail", detail, f"signed requests are refused beyond 15 minutes: {remedy}")
    return Finding("clock", "warn" if off > _SUSPECT_S else "ok", detail, remedy if off > _SUSPECT_S else "")


def proxy(environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Proxies that requests go through."""
    names = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy")
    if found := [f"{name}={environment[name].rpartition('@')[2]}" for name in names if environment.get(name)]:
        remedy = "NO_PROXY exempts hosts: a proxy between training and bucket costs throughput"
        yield Finding("proxy", "note", ", ".join(found), remedy)


def data_set(url: str, options: Mapping[str, str]) -> Iterator[Finding]:
    """Lists the data set, or finds its index, and reads the first sample that has any bytes: only that asks the store."""
    import foreload
    from foreload.cli.failure import message_of
    from foreload.errors import ForeloadError

    begun = time.perf_counter()
    try:
        dataset = foreload.open(url, storage_options=dict(options))
    except (ForeloadError, OSError, ValueError) as error:
        yield Finding("data set", "fail", message_of(error), "see the checks above; --option names storage options")
        return
    detail = f"{human_count(len(dataset))} samples in {human_seconds(time.perf_counter() - begun)}"
    yield Finding("data set", "ok", detail)
    for note, warns in dataset.source.opened().index.notes():
        yield Finding("data set", "warn" if warns else "note", note)
    lengths = dataset.lengths
    first = int(lengths.astype(bool).argmax())
    if not lengths[first]:
        yield Finding("first sample", "note", "all samples are empty: whether they may be read wasn't asked")
        return
    begun = time.perf_counter()
    try:
        read = len(dataset[first])
    except (ForeloadError, OSError, ValueError) as error:
        yield Finding(
            "first sample",
            "fail",
            message_of(error),
            "its name is known, from a listing or a saved index: reading it is denied, or the object is gone",
        )
        return
    yield Finding("first sample", "ok", f"{human_bytes(read)} in {human_seconds(time.perf_counter() - begun)}")
