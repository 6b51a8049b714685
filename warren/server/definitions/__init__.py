"""Read files of definitions (topology, users and policies), compare them with the broker, and import them."""
