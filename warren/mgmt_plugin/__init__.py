"""Management over HTTP: RabbitMQ's API, the web UI, metrics for Prometheus, and the data port.

    plugin      opens the ports                            routes       who may ask what, and who answers
    api         from a request to its answer               operators    who is asking, by login or session
    listing     sorted, filtered, in pages                 audit        who changed what
    openapi     the API as a document, made of `routes`

`http/` knows nothing of a broker, `resources/` has a file for each subject of the API, `metrics/` what is counted over
time, `static/` the web UI. `data_listener` and `local_listener` have the data port alone, for readers elsewhere.
"""
