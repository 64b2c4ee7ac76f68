"""What ends a request that a server gives up because it stops, in a form that vLLM's routes can answer with."""

from http import HTTPStatus

from vllm.exceptions import GenerationError, GracefulHTTPError

from sloserve.core.errors import ShuttingDown


class Stopped(GenerationError, GracefulHTTPError):
    """A request that a server gives up because it stops: 503, or an error event in a stream that has begun.

    As a GenerationError it ends a stream without a traceback in the log, as a GracefulHTTPError it keeps its status.
    """

    def __init__(self, message: str) -> None:
        GracefulHTTPError.__init__(self, message, HTTPStatus.SERVICE_UNAVAILABLE)
        self.status_code = HTTPStatus.SERVICE_UNAVAILABLE


def stopped(error: ShuttingDown) -> Exception:
    """``error`` in a form that vLLM's routes can answer with."""
    answer = Stopped(str(error))
    answer.__cause__ = error
    return answer
