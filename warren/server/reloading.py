"""Apply to a running broker what SIGHUP may change: the level of the log, and all of TLS.

1. A reload reads what a start would read: the file, the environment and the flags of this process. One mistake in them
   keeps all settings as they are. The log has every mistake.
2. The files that the settings of TLS name are always read again: they may change without the settings. If they are
   unusable, the context and the settings of TLS stay as they are. Connections keep what they were accepted with.
3. Other settings that have changed wait for the next start. The log names them at every reload until then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from warren.server import logs
from warren.server.network.tls import ServerTls
from warren.server.settings import KEYS, Settings
from warren.server.settings_reader import values_of
from warren.server.start_errors import SettingsError

LOG_LEVEL: Final = "log_level"
TLS: Final = tuple(key for key in KEYS if key.startswith("tls."))

log = logs.get_logger("settings")


def reloaded(settings: Settings, read: Callable[[], Settings], tls: ServerTls | None) -> Settings:
    """Apply the settings that `read` returns instead of `settings`, as far as possible; return those in force.

    `tls` has the context of all listeners, if any speaks TLS.
    """
    found = settings
    try:
        found = read()
    except SettingsError as error:
        reason = "; ".join(str(error).splitlines())
        log.error("the settings cannot be read again; those in use are kept", reason=reason)
    else:
        _tell_of_others(settings, found)
        logs.set_level(found.log_level, "SIGHUP")
        log.info("the settings were read again")
    taken = [LOG_LEVEL]
    in_force = settings.tls
    if tls is None or tls.reload(found.tls):
        taken += TLS
        in_force = found.tls
    origins = {**settings.origins, **{key: found.origins[key] for key in taken if key in found.origins}}
    return replace(settings, log_level=found.log_level, tls=in_force, origins=origins)


def _tell_of_others(settings: Settings, found: Settings) -> None:
    in_use = values_of(settings)
    others = [key for key, value in values_of(found).items() if key not in (LOG_LEVEL, *TLS) and value != in_use[key]]
    if others:
        log.warning("settings have changed that take effect at the next start", settings=", ".join(others))
