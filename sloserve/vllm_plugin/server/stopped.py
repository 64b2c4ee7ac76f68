"""The error that ends a request when the server stops, in a form with which vLLM's routes can respond."""

from http import HTTPStatus

from vllm.exceptions import GenerationError, GracefulHTTPError

from sloserve.core.errors import ShuttingDown


class Stopped(GenerationError, GracefulHTTPError):
    """A request that a server gives up because it stops: 503, or an error event in a stream that has begun.

    A GenerationError ends a stream without a traceback in the log; a GracefulHTTPError keeps its status.
    """

    def __init__(self, message: str) -> None:
        GracefulHTTPError.__init__(self, message, HTTPStatus.SERVICE_UNAVAILABLE)
        self.status_code = HTTPStatus.SERVICE_UNAVAILABLE


def stopped(error: ShuttingDown) -> Exception:
    """Return ``error`` in a form with which vLLM's routes can respond."""
    answer = Stopped(str(error))
    answer.__cause__ = error
    return answer
