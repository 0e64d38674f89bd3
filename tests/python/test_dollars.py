"""A loader's statistics price its requests where the store has a price."""

from __future__ import annotations

from typing import Any

import pytest

import foreload as fl
from foreload import cost
from foreload._run import dollars as _dollars
from foreload.torch import DataLoader


@pytest.mark.parametrize(
    ("url", "options", "sheet"),
    [
        ("s3://bucket/prefix", {}, "s3"),
        ("s3://bucket/prefix", {"endpoint": "https://s3.eu-west-1.amazonaws.com"}, "s3"),
        ("gs://bucket", {}, "gcs"),
        ("az://container/prefix", {"account_name": "a"}, "azure"),
        ("s3://bucket", {"aws_endpoint_url": "http://127.0.0.1:9000"}, None),
        ("https://example.org/data", {}, None),
        ("/data", {}, None),
        ("file:///data", {}, None),
    ],
)
def test_requests_have_the_price_of_their_store(url: str, options: dict[str, str], sheet: str | None) -> None:
    expected = sheet and cost.price(cost.Usage(class_b_requests=1_000_000), sheet).requests
    assert _dollars.of_requests(url, options, 1_000_000) == expected
    assert expected is None or expected > 0


def test_stats_tell_what_the_requests_cost(home: Any) -> None:
    data = fl.open("s3://data/fixed")
    loader = DataLoader(data, 16, cache=fl.Cache(ram="32MB"))
    list(loader)
    assert "request_dollars" not in loader.stats(), "an endpoint of one's own has no price"
    options = loader.run.dataset.source.call["storage_options"]
    for name in [name for name in options if "endpoint" in name]:
        del options[name]
    stats = loader.stats()
    gets = stats["requests"] + stats["retries"]
    assert gets > 0
    assert stats["request_dollars"] == cost.price(cost.Usage(class_b_requests=gets), "s3").requests
