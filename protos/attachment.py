"""How a control plane says which one it is when it gives a worker work."""

# Metadata of Execute and Generate; the value is the id that the control plane's welcome carries.
CONTROLPLANE_KEY = "orchid-controlplane"
