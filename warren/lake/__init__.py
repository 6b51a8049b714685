"""Tables that follow queues: what comes into a stream, or is drained from a queue, as rows of Iceberg and Delta tables.

    source.py      what is read next, and its rows            asks the broker
    decoder.py     rows of a table out of rows of messages    decides
    table.py       what any table can do                      a protocol
    iceberg_table.py, delta_table.py                          write
    follower.py    what is committed when, and by whom        decides; the others do it

It knows the broker as `warren.spark_bridge` does, by its HTTP API, and runs where no broker is installed.
"""
