"""What a request states, read from the arguments that an engine gets with it."""

from collections.abc import Mapping
from typing import Any

from sloserve.core.rows import LENGTH_QUANTILES
from sloserve.core.slo import ClassTable
from sloserve.core.stated import StatedSLO
from sloserve.wire.xargs import parse_slo, predicted_length, stated_output_tokens


def read_stated(extra_args: Mapping[str, Any] | None, classes: ClassTable) -> StatedSLO:
    """What ``extra_args`` state. Raises: InvalidRequest, as :func:`~sloserve.wire.xargs.parse_slo` does."""
    slo, output_tokens = parse_slo(extra_args, classes), stated_output_tokens(extra_args)
    class_id = classes.names.index(slo.slo_class.name)
    return StatedSLO(slo, class_id, output_tokens, predicted_length(extra_args, len(LENGTH_QUANTILES)))
