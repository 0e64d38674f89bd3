"""What a job's requests cost so far, by the list prices of its store.

The shipped price sheets (`foreload.cost`) price requests by class; every GET is of class B. Stores that charge otherwise or not at all have no
price here: files, web servers, and endpoints that aren't the cloud's own.
"""

from __future__ import annotations

from collections.abc import Mapping

from foreload import _core

#: By scheme: the price sheet, and what the cloud's own endpoints have in their names.
_CLOUDS = {
    "s3": ("s3", ".amazonaws.com"),
    "gs": ("gcs", ".googleapis.com"),
    "az": ("azure", ".windows.net"),
}


def of_requests(url: str, options: Mapping[str, str], requests: int) -> float | None:
    """Prices GETs.

    Args:
        url: The data set's URL.
        options: The store's options.
        requests: How many there were.

    Returns:
        Dollars; None where there is no price.
    """
    sheet, host = _CLOUDS.get(_core.scheme(url) or "", (None, ""))
    endpoints = [value for name, value in options.items() if "endpoint" in name.lower()]
    if sheet is None or not all(host in endpoint for endpoint in endpoints):
        return None
    # Only when somebody asks: it imports the simulator's half.
    from foreload.cost import Usage, price

    return price(Usage(class_b_requests=requests), sheet).requests
