"""What is told of requests: their timelines, and the spans of those that are recorded."""
