"""How Orchid is run; what was compiled of the services is found before anything imports them."""

from deploy import compiled

compiled.use_all()
