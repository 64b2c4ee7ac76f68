"""Folders of a user who has a home, none, or one that may not be written."""

import errno
import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest

from sloserve.core import user_folders
from sloserve.core.errors import ConfigError
from sloserve.core.user_folders import MOST_SOCKET_BYTES, folder_for_sockets, home, socket_folder, user_folder

VARIABLE = "XDG_CACHE_HOME"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder, where the environment names no other."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    return tmp_path / f"sloserve-{os.getuid()}"


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without HOME, and without an entry in the password file."""

    def unknown(cls: type[Path]) -> NoReturn:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", classmethod(unknown))


def test_the_variable_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "named"))
    assert user_folder(VARIABLE, ".cache") == tmp_path / "named" / "sloserve"
    assert (tmp_path / "named" / "sloserve").is_dir()


def test_then_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_folder(VARIABLE, ".cache") == tmp_path / ".cache" / "sloserve"


@pytest.mark.usefixtures("homeless")
def test_without_a_home_it_is_a_private_one(temporary: Path) -> None:
    assert home() is None
    assert user_folder(VARIABLE, ".cache") == temporary == user_folder(VARIABLE, ".cache")
    assert temporary.stat().st_mode & 0o777 == 0o700


def test_so_it_is_with_a_home_that_cannot_be_written(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")  # below it no folder can be made, not even by root
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    assert user_folder(VARIABLE, ".cache") == temporary


def test_a_folder_that_was_named_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file"))
    with pytest.raises(
        ConfigError, match=r"^XDG_CACHE_HOME .*/file: cannot be written: Not a directory; name a folder"
    ):
        user_folder(VARIABLE, ".cache")


@pytest.mark.usefixtures("homeless")
@pytest.mark.parametrize("kind", ["open", "link", "file"])
def test_a_temporary_folder_that_others_may_write_is_refused(temporary: Path, kind: str, tmp_path: Path) -> None:
    if kind == "open":
        temporary.mkdir()
        temporary.chmod(0o777)
    elif kind == "link":
        (tmp_path / "theirs").mkdir()
        temporary.symlink_to(tmp_path / "theirs")
    else:
        temporary.write_text("")
    with pytest.raises(ConfigError, match="; set XDG_CACHE_HOME to a folder"):
        user_folder(VARIABLE, ".cache")


@pytest.mark.usefixtures("homeless")
def test_a_temporary_folder_of_another_user_is_refused(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = os.getuid() + 1
    temporary.with_name(f"sloserve-{other}").mkdir(mode=0o700)
    monkeypatch.setattr(user_folders.os, "getuid", lambda: other)
    with pytest.raises(ConfigError, match="may be written by others"):
        user_folder(VARIABLE, ".cache")


def test_sockets_fit_into_their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path of a socket has at most 107 bytes, which a runtime folder or a temporary folder may exceed."""
    deep = tmp_path / ("d" * 90)
    deep.mkdir()
    for variable, folder in (("XDG_RUNTIME_DIR", str(deep)), ("XDG_RUNTIME_DIR", "")):
        monkeypatch.setenv(variable, folder)
        monkeypatch.setattr(tempfile, "gettempdir", lambda: str(deep))
        made = socket_folder()
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(made / ("s" * 31)))
        assert made.stat().st_mode & 0o777 == 0o700
        shutil.rmtree(made)


def test_a_short_runtime_folder_holds_the_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        assert socket_folder().parent == Path(short)


def test_without_a_folder_for_sockets_the_error_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(**_: object) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(tempfile, "mkdtemp", denied)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/d" * 40)
    with pytest.raises(ConfigError, match=r"too long by 18 bytes.*/tmp cannot be written: Permission denied; set XDG"):
        socket_folder()


SOCKETS = "SOCKETS_OF_A_LIBRARY"


@pytest.mark.parametrize(("runtime", "found"), [("", "/tmp"), ("/", "/"), ("/d" * 40, "/tmp")])
def test_sockets_of_a_library_leave_a_long_temporary_folder(
    runtime: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_folders.os, "access", lambda *_: True)
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    short, long = "/" + "d" * 69, "/" + "d" * 70
    for folder, expected in ((short, short), (long, found)):
        monkeypatch.setattr(tempfile, "gettempdir", lambda folder=folder: folder)
        assert folder_for_sockets(SOCKETS, 37) == expected
        assert len(expected) + 37 <= MOST_SOCKET_BYTES


def test_a_folder_named_for_sockets_is_kept_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SOCKETS, "/named")
    assert folder_for_sockets(SOCKETS, 37) == "/named"
    monkeypatch.setenv(SOCKETS, "/" + "d" * 70)
    with pytest.raises(ConfigError, match=r"its 71 bytes are too many .* leaves 70 to its folder; name a shorter"):
        folder_for_sockets(SOCKETS, 37)


def test_without_a_folder_for_a_library_the_error_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_folders.os, "access", lambda *_: False)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/" + "d" * 70)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    with pytest.raises(ConfigError, match=f"too long by 1 bytes.*/tmp cannot be written; set {SOCKETS} or TMPDIR"):
        folder_for_sockets(SOCKETS, 37)
