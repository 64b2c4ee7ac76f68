"""The tiny models, made once for all tests of this folder, and engines of them."""

from collections.abc import Iterator

import pytest

from tests.equality.layouts.bench import bench_of
from tests.equality.layouts.models import ModelFolders
from tests.equality.test_real_engine import Bench


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> ModelFolders:
    return ModelFolders(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def bench(
    request: pytest.FixtureRequest, folders: ModelFolders, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    with bench_of(request.param, folders, tmp_path_factory.mktemp("none")) as found:
        yield found
