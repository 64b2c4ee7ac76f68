"""The fake endpoint of the client's tests."""

from tests.client.conftest import _server, fake

__all__ = ["_server", "fake"]
