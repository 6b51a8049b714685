"""What is counted over time, and the pages of Prometheus."""
