"""The shell around the engine: sockets, time, threads, files, the database, start and stop.

    application     puts everything together, and runs it    cli, commands      the command `warren`
    settings        what can be set                          settings_reader    where a value comes from
    message_store   the threads of the store                 management         what plugins are given
    supervision     what an exception in a task means        paging             from memory to disk when it is short

`network/` has sockets and the reactor, `logins/` passwords and tokens, `catalogue/` the metadata in SQL, `definitions/`
their import and export, `draining/` and `staging/` readers and writers that need exactly once, `copies/` backups.
"""
