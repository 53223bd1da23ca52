"""A tenant inside its reservation beside one that floods, on a live cluster, in either lane."""
