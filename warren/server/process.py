"""The process of `warren serve`: signals, the service manager, resource limits, and what is printed at the start.

It has the process to itself. `warren.testing` runs an `Application` in a thread instead.

Signals: SIGTERM or Ctrl-C stop the application, the same again at once; SIGHUP reads the settings again.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Final

import trio

from warren import __version__
from warren.msgstore.files.file_system import OsFileSystem
from warren.server.application import STOP_DEADLINE_S, Application
from warren.server.cyclic_collector import bound_collector, pause_collector
from warren.server.data_dir import DataDir
from warren.server.descriptors import raise_limit
from warren.server.logins.authenticator import LOOPBACK_ONLY
from warren.server.logs import get_logger
from warren.server.management import Plugin
from warren.server.recovered_messages import check_file_size_limit, messages_directory, recover_messages
from warren.server.replication import Replication
from warren.server.service_manager import ServiceManager
from warren.server.settings import DEFAULT_ORIGIN, Settings
from warren.server.standard_streams import OUTPUT
from warren.server.supervision import ESSENTIAL
from warren.server.threads import STORE, in_thread

log = get_logger("server")

# Time left after the deadline to close files and to end the interpreter.
STOP_GRACE_S: Final = 2.0
# How soon a thread gets the interpreter from the busy loop: the committer needs it for a moment before each commit.
SWITCH_INTERVAL_S: Final = 0.0005
# Signals that end a process which ignores them, and that are never sent to a broker on purpose. Some systems lack the
# last two.
STRAY_SIGNALS: Final[tuple[signal.Signals, ...]] = tuple(
    getattr(signal, name)
    for name in ("SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGPWR")
    if hasattr(signal, name)
)


async def serve(
    settings: Settings, plugins: Sequence[Plugin] = (), read_again: Callable[[], Settings] | None = None
) -> int:
    """Run the broker with its plugins until it is told to stop; return the exit code.

    `read_again` returns the settings as they are later, for SIGHUP; it raises SettingsError.

    Raises:
        StartError: something outside the program prevents it, said in one line.
    """
    for number in STRAY_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    with DataDir.open(settings.data_dir):
        return await serve_locked(settings, plugins, read_again)


async def serve_locked(
    settings: Settings,
    plugins: Sequence[Plugin] = (),
    read_again: Callable[[], Settings] | None = None,
    replication: Replication | None = None,
    epoch: int | None = None,
    store_id: bytes = b"",
) -> int:
    """Do what `serve` does, in a data directory that the caller has locked; with followers when `replication` is given.

    `epoch`: the epoch that begins, if not the next one. `store_id`: 16 bytes, for a store that does not exist yet.

    Raises:
        StartError: as for `serve`.
    """
    # SQLAlchemy is a third of all imports. A program with its own catalogue does not need it.
    from warren.server import histories, store_versions
    from warren.server.catalogue.catalogue import Catalogue

    directory = messages_directory(settings.data_dir)
    check_file_size_limit(directory, settings.store.segment_bytes)
    descriptors = raise_limit()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    pause_collector()
    with store_versions.told(directory):
        # On an empty store, the loaded definitions are the only contents.
        catalogue = Catalogue.open(
            settings.catalogue_url(),
            first_contents=settings.load_definitions is None,
            first_user=settings.default_user,
            first_password=settings.default_pass,
        )
        files = OsFileSystem(str(directory))
        # Not on the loop: other nodes may have to hear of this one meanwhile.
        recover_all = partial(recover_messages, settings, files, descriptors.store_handles, epoch, store_id)
        recovered = await in_thread(STORE, recover_all)
    if epoch is None:
        histories.compare(catalogue, recovered, directory, accept_loss=settings.accept_loss)
    application = Application(
        settings,
        catalogue,
        files,
        plugins,
        descriptors=descriptors,
        replication=replication,
        recovered=recovered,
        clock=None if replication is None else replication.clock,
        marked=settings.data_dir,
    )

    def note_version() -> None:
        application.messages.versions = store_versions.note(directory, is_new=recovered.recovery.is_new)

    tasks = application.tasks
    manager = ServiceManager.from_environment(os.environ)
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, *STRAY_SIGNALS) as signals:
        async with trio.open_nursery() as nursery:
            obey = partial(_obey, signals, application, manager, read_again)
            nursery.start_soon(tasks.keep, "signals", obey, ESSENTIAL)
            nursery.start_soon(tasks.keep, "memory watch", application.watch_memory)
            nursery.start_soon(tasks.keep, "freed memory", application.return_freed_memory)
            nursery.start_soon(tasks.keep, "watchdog", manager.keep_alive)
            with store_versions.told(directory):
                exit_code = await application.run(
                    lambda: _serving(settings, application, manager, is_new=catalogue.was_empty), note_version
                )
            nursery.cancel_scope.cancel()
    return exit_code


async def _obey(
    signals: AsyncIterator[int],
    application: Application,
    manager: ServiceManager,
    read_again: Callable[[], Settings] | None,
) -> None:
    async for number in signals:
        if number == signal.SIGHUP:
            with manager.reloading():
                application.reload(read_again)
        elif number in STRAY_SIGNALS:
            log.warning("signal ignored", signal=signal.Signals(number).name)
        else:
            application.stop()
            # If the process hangs past this time, it writes where, and ends. Without memory for the thread that waits
            # until then, it stops all the same.
            with contextlib.suppress(RuntimeError, MemoryError):
                faulthandler.dump_traceback_later(STOP_DEADLINE_S + STOP_GRACE_S, exit=True)
            manager.stopping()


def _serving(settings: Settings, application: Application, manager: ServiceManager, *, is_new: bool) -> None:
    """Say that it serves; `is_new`: the metadata store has just got its first contents."""
    bound_collector()
    places = ", ".join(application.places())
    manager.ready(f"listening on {places}")
    lines = [f"Warren {__version__}, AMQP 0-9-1", f"  listening   {places}"]
    pages = application.pages()
    if pages:
        lines.append(f"  web UI      {', '.join(pages)}")
    if is_new:
        lines.append(f"  first user  {_first_user(settings)}")
    lines += [
        f"  data        {settings.data_dir.absolute()}",
        f"  stop        Ctrl-C, or kill -TERM {os.getpid()}",
    ]
    OUTPUT.put("\n".join(lines) + "\n")


def _first_user(settings: Settings) -> str:
    """Return the first user of a new broker; a password that an operator has chosen is not shown."""
    user = settings.default_user
    everybody_knows = settings.origins.get("default_pass", DEFAULT_ORIGIN) == DEFAULT_ORIGIN
    password = f"password {settings.default_pass}" if everybody_knows else "with the password of default_pass"
    return ", ".join([user, password, *(["from this machine only"] if user in LOOPBACK_ONLY else [])])
