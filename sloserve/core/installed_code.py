"""Tells one installation of packages from another, also if their versions are equal."""

import hashlib
from collections.abc import Sequence
from importlib import metadata


def digest_of_code(packages: Sequence[str]) -> str:
    """Return a digest of the installed versions and files of packages; one that is not installed counts as empty."""
    digest = hashlib.sha256()
    for name in packages:
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        files = [f"{file} {file.hash.value if file.hash else file.size}" for file in found.files or ()]
        digest.update("\n".join((name, found.version, *files)).encode())
    return digest.hexdigest()
