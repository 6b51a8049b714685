"""The load tool `warren perf`: drives any broker of AMQP 0-9-1, MQTT or STOMP without ever being the slower side.

It shares codecs with the broker, and nothing else: `warren.amqp` with `warren.amqp_client`, and `warren.amqp10`.
Clients of others find what both sides would have wrong (`tests/compat`).

  client.py         one blocking connection: login, declarations
  flow.py           the flat-out path: publishers and consumers that count by offset arithmetic
  workload.py       the settings of a run, its topology, and the loop that drives the flow
  protocol_run.py   the same over other protocols: frames counted in runs of one length
  mqtt_flow.py      MQTT: packets, publishers, consumers
  stomp_flow.py     STOMP: the same
  backlog.py        numbered messages in long queues: put there, drained in order
  topic_patterns.py mixed topic bindings under a printed seed, and what they must match
  round_trip.py     one request and one reply at a time
  footprint.py      idle connections and declared queues: time and memory each
  meter.py          latency histogram, counters over the measured window
  process_stats.py  CPU and memory of the broker's process tree
  report.py         table, JSON, live line
  command.py        the command line
  choices.py        the words it knows: modes, exchange types
"""
