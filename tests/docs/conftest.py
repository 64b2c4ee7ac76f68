"""``--update-docs``: write the generated parts of the documentation anew instead of comparing them; read the diff."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-docs", action="store_true", help="write the generated tables of the docs anew")


@pytest.fixture
def update_docs(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-docs", default=False))
