"""What a command can end with: exit codes that scripts may rely on, and the one error that carries them."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """How the process ends; 130 is Ctrl-C and 141 a closed pipe, as everywhere."""

    OK = 0
    FAILED = 1  # the broker refused, or what was asked for did not happen
    USAGE = 2  # the command line, a file or a profile is wrong; nothing was sent
    UNREACHABLE = 3  # no connection, no answer in time, or no management API behind the URL
    REFUSED = 4  # wrong credentials, or the user may not do this
    NOT_FOUND = 5  # what the command names does not exist
    CHECK_FAILED = 6  # the broker answered, and it is not well
    INTERRUPTED = 130
    UNREAD = 141  # the reader of the output has closed the pipe, as `head` does: the code of SIGPIPE


class CtlError(Exception):
    """Ends the command with `exit_code`; `reason` is the one line for standard error."""

    def __init__(self, reason: str, exit_code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(reason)
        self.reason = reason
        self.exit_code = exit_code


def usage_error(reason: str) -> CtlError:
    """Return the error of a command that was given something it cannot use."""
    return CtlError(reason, ExitCode.USAGE)
