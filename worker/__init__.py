"""The service that runs the models."""

from pathlib import Path

import orchid_compiled

orchid_compiled.use(__name__, Path(__file__).parent)
