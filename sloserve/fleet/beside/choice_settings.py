"""Settings of a choice between servers that others started: what is known of their models, and how long to wait."""

from typing import Annotated, Final

from pydantic import Field

from sloserve.core.files.model import Allowed
from sloserve.estimator.step_time.profile import load_profile
from sloserve.fleet.file_sections import Count, EngineFlags, Section, Text
from sloserve.fleet.gateway.prediction import Pace
from sloserve.fleet.planning.snapshot import serving_with

DEVICE: Final = "server"
"""Kind of device of all servers: the profile of a model says on which device it was measured."""
_COUNT: Final = Allowed("a whole number >= 1")


class ServedModel(Section):
    """A model of the servers.

    Args:
        profile: Name or file of its profile, by which times are predicted; without one, numbers of tokens are compared.
        flags: Flags of vLLM with which its servers were started, if they differ from the profile's.
    """

    profile: Annotated[Text | None, Allowed("the name or file of a profile")] = None
    flags: Annotated[EngineFlags, Allowed("a mapping of vLLM's flags")] = EngineFlags()


class ChoiceSection(Section):
    """How servers are chosen.

    Args:
        hold_max_s: Longest wait, in seconds, of a request while all servers run as many requests as they can at a time;
            the earliest deadline is served first. Afterwards it goes to a server's queue. 0 for no wait, since
            gateways may wait for a choice for less.
        max_held: The most requests that may wait so.
        affinity: Whether a prompt goes where its prefix was sent before, as far as that pays.
        shed: Classes of which requests are refused with 429 in place of going to a queue of a server.
    """

    hold_max_s: Annotated[float, Field(strict=True, ge=0.0, le=600.0), Allowed("a number of seconds from 0 to 600")] = (
        0.0
    )
    max_held: Annotated[Count, _COUNT] = 1024
    affinity: Annotated[bool, Field(strict=True), Allowed("true or false")] = True
    shed: Annotated[tuple[Text, ...], Allowed("a list of classes")] = ()


def pace_of(model: ServedModel) -> tuple[Pace, int | None]:
    """Return the speed of a model, and how many requests one of its servers runs at a time if it is known.

    Raises: ConfigError if its profile cannot be read.
    """
    if model.profile is None:
        return Pace(None), model.flags.max_num_seqs
    serving = serving_with(load_profile(model.profile), model.flags)
    return Pace(serving), serving.engine.max_num_seqs
