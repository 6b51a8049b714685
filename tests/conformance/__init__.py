"""One claim per rule of the specification that binds the server, and per documented behaviour of RabbitMQ."""
