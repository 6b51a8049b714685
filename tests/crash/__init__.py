"""The real broker, killed and stopped and robbed of its disk, against an exact record of what its clients saw."""
