"""Exchange types, bindings and routing: which queues get a message."""
