"""The rows of traces: files and row groups, tables, schemas, delivery sequences, sorting and compaction."""
