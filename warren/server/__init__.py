"""The shell around the engine: sockets, time, threads, files, the database, start and stop.

    application     puts everything together, and runs it    cli, commands      the command `warren`
    settings        the settings                             settings_reader    where a value comes from
    message_store   the threads of the store                 management         the interface for plugins
    supervision     exceptions in tasks                      paging             messages to disk if memory is short

`network/` has sockets and the reactor, `logins/` passwords and tokens, `catalogue/` the metadata in SQL, `definitions/`
their import and export. `draining/` serves readers and `staging/` writers that need exactly once, `copies/` makes
backups.
"""
