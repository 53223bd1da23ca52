"""How Orchid is run; what was compiled of the services is found before anything imports them."""

import os

from deploy import compiled, transport

transport.choose(os.environ)
compiled.use_all()
