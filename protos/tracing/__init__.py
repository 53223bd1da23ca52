"""What both services share of tracing: trace contexts on the wire, spans, and where these go."""
