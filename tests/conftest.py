"""Tests run what was compiled of the services, as a deployment does."""

import deploy  # noqa: F401
