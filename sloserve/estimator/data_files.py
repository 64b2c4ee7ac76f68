"""Files of data of this package, and of packages that are registered to add to them.

An entry point of the group ``sloserve.estimator`` names a package with files that lie as they do here: profiles in
``profiles/NAME.yaml``, costs of planning in ``planning_cost.yaml``. Either may be missing.
"""

import functools
import logging
from importlib import resources
from importlib.resources.abc import Traversable

from sloserve.core.registrations import registered

GROUP = "sloserve.estimator"

logger = logging.getLogger(__name__)


@functools.cache
def data_folders() -> tuple[Traversable, ...]:
    """Return the folder of this package, then the folders of the registered packages in the order of their names.

    A package that cannot be imported is logged and left out, since no request needs what it adds.
    """
    found: list[Traversable] = [resources.files("sloserve.estimator")]
    for name, package in sorted(registered(GROUP).items()):
        try:
            found.append(resources.files(package.module))
        except Exception as error:
            logger.warning(
                "profiles and planning costs of package %s are missing, since it cannot be imported (%s); repair it, "
                "or uninstall the distribution that registers %s = %s",
                package.module,
                error,
                name,
                package.value,
            )
    return tuple(found)
