"""Reads what control planes have recorded of their requests: sums, exports, traces for replay."""
