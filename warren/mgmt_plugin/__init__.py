"""Management over HTTP: RabbitMQ's API, the web UI, metrics for Prometheus, and the data port.

    plugin      opens the ports                            routes       the permission and the handler of each path
    api         from a request to its answer               operators    the user of a request, by login or session
    listing     sorted, filtered, in pages                 audit        a log line for each change
    openapi     the API as a document, made of `routes`

`http/` does not depend on a broker, `resources/` has a file for each subject of the API, `metrics/` has the counters
over time, `static/` the web UI. `data_listener` and `local_listener` have the data port alone, for readers elsewhere.
"""
