"""The service that owns the queues and decides."""

from pathlib import Path

import orchid_compiled

orchid_compiled.use(__name__, Path(__file__).parent)
