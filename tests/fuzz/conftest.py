"""Schemathesis' plugin, which no other tests need: pyproject.toml has pytest load none by itself."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.import_plugin("schemathesis.pytest.plugin")
