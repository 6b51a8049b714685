"""The states of a connection, and which may follow which.

    state              input that leads on                           state after
    AWAIT_HEADER       "AMQP" 0 0 9 1                                AWAIT_START_OK
    AWAIT_START_OK     start-ok with credentials                     CHECKING_LOGIN (the shell verifies them)
    CHECKING_LOGIN     the login is accepted                         AWAIT_TUNE_OK
                       the login is refused                          CLOSING or ENDED
    AWAIT_TUNE_OK      tune-ok within our limits                     AWAIT_OPEN
    AWAIT_OPEN         open of a vhost that the user may enter       RUNNING
    RUNNING            close from the peer                           CLOSING until all of it has ended, then ENDED
                       a ConnectionException, forced closure         CLOSING
    CLOSING            close, close-ok, or the deadline              ENDED

ENDED may follow any state: the socket is gone, or the peer made an error that is answered without a word. A connection
inside this process begins in RUNNING.
"""

from __future__ import annotations

from typing import Final

AWAIT_HEADER: Final = 0
AWAIT_START_OK: Final = 1
CHECKING_LOGIN: Final = 2
AWAIT_TUNE_OK: Final = 3
AWAIT_OPEN: Final = 4
RUNNING: Final = 5
CLOSING: Final = 6
ENDED: Final = 7

# As the management API shows them.
STATE_NAMES: Final = ("start", "starting", "securing", "tuning", "opening", "running", "closing", "closed")

NEXT_STATES: Final[tuple[tuple[int, ...], ...]] = (
    (AWAIT_START_OK, ENDED),  # AWAIT_HEADER
    (CHECKING_LOGIN, ENDED),  # AWAIT_START_OK
    (AWAIT_TUNE_OK, CLOSING, ENDED),  # CHECKING_LOGIN
    (AWAIT_OPEN, CLOSING, ENDED),  # AWAIT_TUNE_OK
    (RUNNING, CLOSING, ENDED),  # AWAIT_OPEN
    (CLOSING, ENDED),  # RUNNING
    (ENDED,),  # CLOSING
    (),  # ENDED
)
