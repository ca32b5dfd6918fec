"""The OpenAPI document is complete, and the server does what it says."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS
from starlette.testclient import TestClient

from server.conftest import bearer
from titans.server import KeyRing
from titans.server.keys import RIGHTS

VERBS = ("get", "post", "delete")


@pytest.fixture
def document(client: TestClient) -> dict:
    return client.get("/openapi.json").json()


def operations(document: dict) -> Iterator[tuple[str, dict]]:
    for path, item in document["paths"].items():
        for verb in VERBS:
            if verb in item:
                yield f"{verb} {path}", item[verb]


def test_every_operation_is_described_with_its_errors(document: dict):
    found = dict(operations(document))
    assert len(found) >= 14
    for name, operation in found.items():
        assert operation["description"], name
        assert {"401", "403", "413", "422", "429", "503"} <= set(operation["responses"]), name
        for status, answer in operation["responses"].items():
            assert answer["description"] and answer["content"], (name, status)
        for parameter in operation.get("parameters", []):
            assert parameter["schema"], name
        if "/v1/" in name:
            assert operation["security"], name
    assert document["components"]["securitySchemes"]


@schemathesis.serializer("application/x-ndjson")
def ndjson(_: schemathesis.SerializationContext, value: object) -> bytes:
    return value.encode("utf-8", "replace") if isinstance(value, str) else repr(value).encode()


# The plugin of schemathesis for pytest does not know this version of pytest: by hand, then.
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_schemathesis_finds_nothing(
    live: Callable[..., AbstractContextManager[str]], ring: KeyRing, mode: GenerationMode
):
    _, token = ring.make("all", ["ann"], RIGHTS)
    with live(rate=1e6) as url:
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
        for found in schema.get_all_operations():
            operation = found.ok()
            if mode == GenerationMode.NEGATIVE and operation.path in ("/health", "/metrics"):
                continue  # they take nothing that could be wrong
            check(operation.as_strategy(generation_mode=mode), bearer(token))


def check(cases: SearchStrategy[schemathesis.Case], headers: dict[str, str]) -> None:
    """Call the server with cases of one operation; it must do as the document says."""

    @settings(
        max_examples=5,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def run(case: schemathesis.Case) -> None:
        # A schema cannot say that a time must exist, or that exactly one field must be given.
        left_out = [CHECKS.get_one("positive_data_acceptance")]
        case.call_and_validate(headers=headers, excluded_checks=left_out)

    run()
