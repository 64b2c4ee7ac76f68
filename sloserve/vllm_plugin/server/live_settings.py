"""The settings that a server follows, and changes of them while it runs.

A change is checked whole before anything follows it. Then every engine rank follows it or none does, and after them
every API process or none: the process that makes the change publishes it in a file beside the pages of this host, the
others look for it twice a second, and each shows on its board which version it follows. If one does not follow in time,
the earlier settings are published again, and the ranks go back.

Requests that an engine has keep their class and targets. A request that comes while a change is on its way is read by
the settings before or after it. Nothing is kept for the next start: then the file and the flags count.
"""

import asyncio
import json
import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sloserve.core.clock import Clock
from sloserve.core.errors import ConfigError, EngineError
from sloserve.core.json_log import say, warn
from sloserve.engine.metrics import page_folder
from sloserve.engine.metrics.process_page import Boards
from sloserve.scheduler.class_settings import CLASSES
from sloserve.scheduler.config import SOURCE, reread
from sloserve.scheduler.live_settings import LIVE, changes, check_live, in_order, in_words
from sloserve.scheduler.settings import KEY, PluginSettings, plugin_settings
from sloserve.vllm_plugin.server import engine_control
from sloserve.vllm_plugin.server.recurring import Recurring
from sloserve.vllm_plugin.server.server_lock import ServerLock

logger = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 0.5
"""Seconds between looks of an API process for settings that another one published."""
FOLLOWED_WITHIN_S: Final = 10.0
"""Seconds within which every API process has to follow a change."""
_LOOK_AGAIN_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class InForce:
    """Settings that are in force.

    Args:
        settings: The settings.
        section: The settings that users wrote, from which ``settings`` were made.
        version: Number of changes since the start.
        changed_at_s: Time of the last change in epoch seconds; ``None`` before the first.
        changed_by: Origin of the last change; ``None`` before the first.
    """

    settings: PluginSettings
    section: Mapping[str, Any]
    version: int = 0
    changed_at_s: float | None = None
    changed_by: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the settings for an operator."""
        return {
            "version": self.version,
            "changed_at_s": self.changed_at_s,
            "changed_by": self.changed_by,
            "live": list(LIVE),
            "settings": self.settings.as_config(),
        }


class LiveSettings:
    """The settings that one API process follows.

    Attributes:
        now: The settings in force here.
        lock: The lock under which the process changes its server.
    """

    def __init__(
        self, additional_config: Mapping[str, Any] | None, processes: int, boards: Boards, clock: Clock
    ) -> None:
        """Follow the settings with which the server started, or later ones that another process has published.

        Args:
            additional_config: vLLM's additional configuration.
            processes: Number of API processes of the server.
            boards: Boards of the API processes.
            clock: Clock of this process.
        """
        section = dict((additional_config or {}).get(KEY, {}))
        self.now = InForce(plugin_settings(additional_config), section)
        self.lock = ServerLock()
        self._processes, self._boards, self._clock = processes, boards, clock
        self._followers: list[Callable[[PluginSettings], None]] = []
        self._changing: set[asyncio.Task[dict[str, Any]]] = set()
        self._seen: tuple[int, int] | None = None  # the published file when it was last read
        self._looking = Recurring(self._look_again, LOOK_EVERY_S)
        if processes > 1:
            self._looking.begin()

    def tell(self, follower: Callable[[PluginSettings], None]) -> None:
        """Have ``follower`` called with other settings, which are valid and so must not raise."""
        self._followers.append(follower)

    def alone(self) -> Any:
        """Return a context in which no other change of the server is made, by whichever of its API processes."""
        is_only = self._processes < 2
        return self.lock.held(None if is_only else lambda: page_folder.lock_file(page_folder.page_folder()))

    async def merge(self, engine: Any, patch: Mapping[str, Any], by: str) -> dict[str, Any]:
        """Change the settings by a JSON merge patch (RFC 7396): ``null`` removes what users wrote.

        A setting that cannot change is an error even if its value stays.

        Args:
            engine: The engine client.
            patch: The patch.
            by: Origin of the change, for the log.

        Returns: the settings in force, and what has changed.

        Raises: ConfigError for settings that are not valid or need a restart, and nothing has changed; EngineError if a
        rank or a process did not follow: it says which, and whether the others went back.
        """
        for name in patch:
            if name not in LIVE:
                raise ConfigError(f"{name}: is not one of the settings that can change: {', '.join(LIVE)}")
        # A request may be cancelled, as when the server stops or a middleware of the operator's ends it. A change is
        # not: the ranks would follow it without the API processes.
        changing = asyncio.ensure_future(self._merge(engine, patch, by))
        self._changing.add(changing)
        changing.add_done_callback(self._changing.discard)
        return await asyncio.shield(changing)

    async def _merge(self, engine: Any, patch: Mapping[str, Any], by: str) -> dict[str, Any]:
        async with self.alone():
            self._look()
            section = _merged(self.now.section, patch)
            if section.get(CLASSES) == {}:  # the last class that was set is removed: the built-in ones are left
                del section[CLASSES]
            return await self._change(engine, section, by)

    async def _change(self, engine: Any, section: Mapping[str, Any], by: str) -> dict[str, Any]:
        """Make every rank and every API process follow other settings, or none; see :meth:`merge`."""
        self._look()
        before = self.now
        section = in_order(section, before.settings.classes)
        settings = plugin_settings({KEY: section})
        check_live(before.settings, settings)
        changed = changes(before.settings, settings)
        if changed:
            new = InForce(settings, section, before.version + 1, round(self._clock.now_s(), 3), by)
            undo = await engine_control.set_settings(engine, section)
            unfollowed = await self._publish(new)
            if unfollowed is not None:
                self._take_back(before)
                failed = await engine_control.undo(engine, undo)
                raise EngineError(
                    f"the settings were not changed: {unfollowed}; "
                    + (f"not every rank went back to its earlier settings: {failed}" if failed else "all went back")
                )
            self._adopt(new)
        say(f"settings changed by {by}, version {self.now.version}: {in_words(changed)}", by=by)
        return self.now.as_json() | {"changed": {".".join(key): list(pair) for key, pair in changed.items()}}

    def _adopt(self, new: InForce) -> None:
        for follower in self._followers:
            try:
                follower(new.settings)
            except Exception:
                logger.exception("sloserve: a part of the server keeps earlier settings")
        self.now = new
        self._boards.own.follows(new.version)

    # What one of several API processes publishes, and the others follow.

    async def _publish(self, new: InForce) -> str | None:
        """Publish settings; return why the other API processes do not follow them, ``None`` once all do."""
        if self._processes < 2:
            return None
        if self._boards.own.memory is None:
            return "this API process has no page that the others read"
        try:
            _write(new)
        except OSError as error:
            return f"they cannot be published: {error}"
        last_s = self._clock.monotonic_s() + FOLLOWED_WITHIN_S
        self._boards.own.follows(new.version)
        while self._clock.monotonic_s() < last_s:
            if all(board.version >= new.version for board in self._boards.look()):
                return None
            await asyncio.sleep(_LOOK_AGAIN_S)
        return f"an API process did not follow within {FOLLOWED_WITHIN_S:.0f} s"

    def _take_back(self, before: InForce) -> None:
        """Publish earlier settings again, as a later version than the one that not all processes followed."""
        again = InForce(before.settings, before.section, before.version + 2, before.changed_at_s, before.changed_by)
        if self._processes > 1:
            try:
                _write(again)
            except OSError:
                logger.exception("sloserve cannot publish the earlier settings again")
        self._adopt(again)

    def _look_again(self) -> bool:
        self._look()
        return True

    def _look(self) -> None:
        """Follow what another process published since the last look."""
        if self._processes < 2:
            return
        try:
            file = page_folder.settings_file(page_folder.page_folder())
            found = file.stat()
            if (seen := (found.st_mtime_ns, found.st_ino)) == self._seen:
                return
            self._seen = seen  # also of a file that cannot be read, which is reported once
            published = json.loads(file.read_bytes())
            section, version = published["section"], int(published["version"])
            if version > self.now.version:
                settings = plugin_settings({KEY: section})
                self._adopt(InForce(settings, section, version, published["changed_at_s"], published["changed_by"]))
        except FileNotFoundError:
            return
        except OSError:  # such as too many open files: the file itself may be right
            self._seen = None
            logger.exception("sloserve cannot read the settings that another API process published")
        except (ValueError, KeyError, TypeError, ConfigError):
            logger.exception("sloserve cannot read the settings that another API process published")

    # The file of --slo-config, which is read again on SIGHUP.

    def listen(self, engine: Any, rank: int) -> None:
        """Read the file of settings again whenever SIGHUP comes, if the server has one.

        One of several API processes does so for all; the process that started them passes the signal on.

        Args:
            engine: The engine client.
            rank: Number of this API process, from 0.
        """
        source = os.environ.get(SOURCE)
        if (
            source is None
            or rank
            or _hangups_are_ignored()
            or threading.current_thread() is not threading.main_thread()
        ):
            return
        reading: set[asyncio.Task[None]] = set()

        at_terminal = _has_terminal()

        def hang_up() -> None:
            if at_terminal and not _has_terminal():
                _end()
                return
            task = asyncio.get_running_loop().create_task(self._reread(engine, source))
            reading.add(task)
            task.add_done_callback(reading.discard)

        try:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hang_up)
        except (RuntimeError, NotImplementedError):  # no loop, or one without signals
            logger.info("the file of settings is not read again on SIGHUP: no event loop takes signals here")

    async def _reread(self, engine: Any, source: str) -> None:
        try:
            # Read under the lock: of two hang-ups at once, the one that changes the settings last has read last.
            async with self.alone():
                effective = await asyncio.to_thread(reread, source)
                await self._change(engine, effective.section, "SIGHUP")
        except (ConfigError, EngineError) as error:
            warn(f"SIGHUP: the settings stay as they are: {error}")
        except Exception:
            logger.exception("SIGHUP: the settings stay as they are")


def pass_on_hangups() -> None:
    """Pass SIGHUP on to the API process that reads the file of settings again, until one does in this process.

    Without a handler the signal would end the server, as it still does where the server's terminal is gone. Where it is
    ignored from the start, as under nohup, that stays: the processes that this one starts would not ignore a signal
    that it handles, and would end with the terminal.
    """
    if _hangups_are_ignored():
        say("SIGHUP is ignored, as under nohup, and does not read the file of settings again")
        return

    at_terminal = _has_terminal()

    def pass_on(number: int, frame: Any) -> None:
        if at_terminal and not _has_terminal():
            _end()
            return
        try:
            first = next(iter(page_folder.page_files(page_folder.page_folder(), page_folder.API)), None)
            if first is not None and first.pid != os.getpid():
                os.kill(first.pid, signal.SIGHUP)
                return
        except OSError as error:  # it has ended since, or its pages cannot be read
            warn(f"SIGHUP: no API process could be asked to read the file of settings again: {error}")
            return
        _warn_of_start()

    signal.signal(signal.SIGHUP, pass_on)


def outlast_hangups() -> None:
    """Have SIGHUP not end this API process, which another one started, before it reads the file of settings again."""
    is_main = threading.current_thread() is threading.main_thread()
    if SOURCE in os.environ and is_main and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, lambda number, frame: _warn_of_start())


def _hangups_are_ignored() -> bool:
    return signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def _has_terminal() -> bool:
    """Return whether this process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _end() -> None:
    """End this process as SIGTERM does: its terminal is gone, and the server would hold its device unseen."""
    logger.warning(
        "SIGHUP: the terminal is gone, so the server ends; start it under nohup, setsid or systemd to keep it"
    )
    os.kill(os.getpid(), signal.SIGTERM)


def _warn_of_start() -> None:
    warn("SIGHUP: the server still starts, and has read its settings; send it again once it serves")


def _write(new: InForce) -> None:
    file = page_folder.settings_file(page_folder.page_folder())
    text = json.dumps(
        {
            "version": new.version,
            "section": new.section,
            "changed_at_s": new.changed_at_s,
            "changed_by": new.changed_by,
        }
    )
    unfinished = file.with_suffix(page_folder.UNFINISHED)
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(fd, "w", encoding="utf-8") as out:
        out.write(text)
    Path(unfinished).replace(file)


def _merged(section: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``section`` with a JSON merge patch applied."""
    found = dict(section)
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        elif isinstance(value, Mapping):
            below = found.get(name)
            found[name] = _merged(below if isinstance(below, Mapping) else {}, value)
        else:
            found[name] = value
    return found
