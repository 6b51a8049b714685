"""Links between brokers: dynamic shovels, federated exchanges and federated queues, with RabbitMQ's parameters.

A link is a client of two brokers. It knows this one only through `host.Host` and an AMQP connection like any other.

    supervisor      which links there should be, starting, restarting, stopping, status
    shovel          parameter and life of a shovel
    upstreams       parameters of federation, which upstreams a policy names
    exchange_federation, queue_federation    one link each
    transfer        deliveries of one channel become publishes on another, with an ack mode
    amqp_client     `warren.amqp_client` on trio        address_guard   where it may connect to
    amqp_uri        URIs                                forwarding      the headers that a link writes
    validation      RabbitMQ's error texts for parameters

Tables that follow streams and queues (`warren.lake`) are links as well, but run in a process beside the broker:

    lake_jobs       which there should be, that they run, status         lake_host   the broker around them
    lake_process    the process: started, listened to, ended
"""
