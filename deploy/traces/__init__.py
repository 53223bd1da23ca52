"""Traces that the processes of a local cluster have kept as files: read, measured, shown."""
