"""Found by PySpark itself: with Warren installed, ``spark.read.format("warren")`` works without another word."""

from warren.spark_bridge.source import WarrenDataSource as DefaultSource

__all__ = ["DefaultSource"]
