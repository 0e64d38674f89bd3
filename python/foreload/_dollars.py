"""What a job's requests cost so far, by the list prices of its store.

The shipped price sheets (`foreload.cost`) price requests by class; every GET is of class B. Stores that charge otherwise or not at all have no
price here: files, web servers, and endpoints that aren't the cloud's own.
"""

from __future__ import annotations

from collections.abc import Mapping

#: By scheme: the price sheet, and what the cloud's own endpoints have in their names.
_CLOUDS = {
    **dict.fromkeys(("s3", "s3a", "s3n"), ("s3", ".amazonaws.com")),
    **dict.fromkeys(("gs", "gcs"), ("gcs", ".googleapis.com")),
    **dict.fromkeys(("az", "azure", "abfs", "abfss", "adl"), ("azure", ".windows.net")),
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
    sheet, host = _CLOUDS.get(url.partition("://")[0].lower(), (None, ""))
    endpoints = [value for name, value in options.items() if "endpoint" in name.lower()]
    if sheet is None or not all(host in endpoint for endpoint in endpoints):
        return None
    # Only when somebody asks: it imports the simulator's half.
    from foreload.cost import Usage, price

    return price(Usage(class_b_requests=requests), sheet).requests
