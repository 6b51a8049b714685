"""Node's amqplib, one small script per scenario."""
