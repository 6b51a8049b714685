"""The log as the engine sees it: messages, records, indexes, segments, compaction. No disk."""
