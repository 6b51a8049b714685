"""The durable metadata in SQL, which follows the message log."""
