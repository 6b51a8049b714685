"""Links between brokers: dynamic shovels, federated exchanges and federated queues, with RabbitMQ's parameters.

A link is a client of two brokers. It knows this one only through `host.Host` and an AMQP connection like any other.

    supervisor      which links should exist; starts, restarts and stops them; their status
    shovel          the parameter and the life of a shovel
    upstreams       the parameters of federation; which upstreams a policy names
    exchange_federation, queue_federation    one link of each kind
    transfer        deliveries of one channel become publishes on another, with an ack mode
    amqp_client     `warren.amqp_client` on trio        address_guard   where it may connect to
    amqp_uri        URIs                                forwarding      the headers that a link writes
    validation      RabbitMQ's error texts for parameters

Tables that follow streams and queues (`warren.lake`) are links as well, but run in a process beside the broker:

    lake_jobs       which tables should exist; keeps them running; their status
    lake_host       the broker around them
    lake_process    starts the process, listens to it, ends it
"""
