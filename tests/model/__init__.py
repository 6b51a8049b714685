"""Random commands against brokers and containers that are small enough to be obviously right."""
