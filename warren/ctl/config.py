"""The address of the broker and the user, gathered from flags, the environment and a profile.

1. A flag wins over ``WARREN_CTL_…``, that over the profile, that over the defaults of a fresh broker on this machine.
2. A password never has to stand on a command line: it comes from a file, the environment, a profile or a prompt.
3. A profile is a table of the configuration file; ``default`` names the one used without ``--profile``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from warren.ctl.client import Target, url_parts
from warren.ctl.exit_codes import usage_error

DEFAULT_URL: Final = "http://127.0.0.1:15672"
DEFAULT_VHOST: Final = "/"
DEFAULT_TIMEOUT_S: Final = 30.0
TIMEOUT_MIN_S: Final = 0.001
TIMEOUT_MAX_S: Final = 86_400.0  # systems have a limit of their own, which is an error of the first request
# What a profile may say, with the type of each; the same words are flags and environment variables.
KEYS: Final[Mapping[str, type]] = {
    "url": str,
    "username": str,
    "password": str,
    "password_file": str,
    "vhost": str,
    "cacert": str,
    "insecure": bool,
    "timeout": float,
}


def maybe_config_path(flags: Mapping[str, Any], environment: Mapping[str, str]) -> Path | None:
    """Return where the profiles are: the flag, the variable, or the user's configuration directory.

    None: the user has no home. In a container users have a number, and often nothing else.
    """
    named = flags.get("config") or environment.get("WARREN_CTL_CONFIG")
    if named:
        return Path(named)
    base = environment.get("XDG_CONFIG_HOME")
    try:
        return (Path(base) if base else Path.home() / ".config") / "warren" / "ctl.toml"
    except RuntimeError:
        return None


def gather(flags: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return every known key of `KEYS` that something sets, the nearest one winning.

    Raises:
        CtlError: a file that cannot be read, an unknown profile or key, or a value of the wrong type.
    """
    named = {key: environment.get(f"WARREN_CTL_{key.upper()}") for key in KEYS}
    from_environment = {key: _from_text(key, KEYS[key], text) for key, text in named.items() if text is not None}
    given = {key: value for key, value in flags.items() if key in KEYS}
    found: dict[str, Any] = {}
    for layer in (_profile(flags, environment), from_environment, given):
        another_user = "username" in layer and layer["username"] != found.get("username", layer["username"])
        if another_user or "password" in layer or "password_file" in layer:
            # The password of another user, or one that is farther away in the other form.
            found.pop("password", None)
            found.pop("password_file", None)
        found |= layer
    return found


def target(values: Mapping[str, Any]) -> Target:
    """Return where to connect with the gathered `values`; asks for a password when a user is given without one."""
    url = str(values.get("url", DEFAULT_URL))
    parts = url_parts(url)
    username, password = values.get("username"), _maybe_password(values)
    if parts.username is not None:
        username = username if username is not None else unquote(parts.username)
        if password is None and parts.password is not None:
            password = unquote(parts.password)
        url = url.replace(parts.netloc, parts.netloc.rpartition("@")[2], 1)
    if username is None:
        username = "guest"
        password = "guest" if password is None else password
    if password is None:
        password = _ask_password(username)
    timeout_s = float(values.get("timeout", DEFAULT_TIMEOUT_S))
    if not TIMEOUT_MIN_S <= timeout_s <= TIMEOUT_MAX_S:
        raise usage_error(f"timeout {timeout_s:g}: must be from {TIMEOUT_MIN_S:g} to {TIMEOUT_MAX_S:g} seconds")
    cacert = values.get("cacert")
    return Target(
        url,
        username,
        password,
        None if cacert is None else Path(cacert).expanduser(),
        bool(values.get("insecure", False)),
        timeout_s,
    )


def _maybe_password(values: Mapping[str, Any]) -> str | None:
    if values.get("password") is not None:
        return str(values["password"])
    file = values.get("password_file")
    if file is None:
        return None
    try:
        return Path(file).expanduser().read_text().partition("\n")[0].rstrip("\r")
    except (OSError, UnicodeDecodeError) as error:
        raise usage_error(f"password file {file}: {error}") from None


def _ask_password(username: str) -> str:
    if not sys.stdin.isatty():
        raise usage_error(f"no password for user {username}: use --password-file or WARREN_CTL_PASSWORD")
    from getpass import getpass

    return getpass(f"Password of {username}: ")


def _profile(flags: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    path = maybe_config_path(flags, environment)
    wanted = flags.get("profile") or environment.get("WARREN_CTL_PROFILE")
    explicit = wanted or flags.get("config") or environment.get("WARREN_CTL_CONFIG")
    if path is None and wanted:
        raise usage_error(f"no profile {wanted!r}: this user has no home directory, name its file with --config")
    if path is None or (not explicit and not path.exists()):
        return {}
    import tomllib

    try:
        with path.open("rb") as file:
            document = tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise usage_error(f"{path}: {error.strerror if isinstance(error, OSError) else error}") from None
    profiles = document.get("profiles", {})
    name = wanted or document.get("default")
    if name is None:
        return {}
    if not isinstance(profiles, dict) or not isinstance(profiles.get(name), dict):
        raise usage_error(f"{path}: no profile {name!r}")
    profile: dict[str, Any] = profiles[name]
    for key, value in profile.items():
        kind = KEYS.get(key)
        if kind is None:
            from difflib import get_close_matches

            near = get_close_matches(key, KEYS, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise usage_error(f"{path}: profile {name!r} has an unknown key {key!r}{hint}")
        if not isinstance(value, (int, float) if kind is float else kind) or (kind is float and value is True):
            raise usage_error(f"{path}: profile {name!r}: {key} must be of type {kind.__name__}")
    return dict(profile)


def _from_text(key: str, kind: type, text: str) -> Any:
    if kind is bool:
        if text.lower() not in ("1", "true", "yes", "0", "false", "no", ""):
            raise usage_error(f"WARREN_CTL_{key.upper()}={text}: must be true or false")
        return text.lower() in ("1", "true", "yes")
    try:
        return kind(text)
    except ValueError:
        raise usage_error(f"WARREN_CTL_{key.upper()}={text}: must be a number") from None
