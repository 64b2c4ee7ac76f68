import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.store.databases import Store, postgres, server, sqlite

_NUMBER = itertools.count()


@pytest.fixture(scope="session")
def postgres_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with server(tmp_path_factory.mktemp("postgres")) as address:
        yield address


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "sqlite":
        with sqlite(tmp_path) as opened:
            yield opened
    else:
        with postgres(request.getfixturevalue("postgres_address"), f"test_{os.getpid()}_{next(_NUMBER)}") as opened:
            yield opened
