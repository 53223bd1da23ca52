"""Measures what is deployed, so what was compiled of the services is what it imports too."""

import deploy  # noqa: F401
