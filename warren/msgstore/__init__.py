"""The shared append-only message store and the per-queue index."""
