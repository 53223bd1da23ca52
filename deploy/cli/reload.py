"""`orchid reload`: the running control plane reads its configuration again."""

from __future__ import annotations

import os
import signal
import time
from typing import Annotated

import typer

from deploy.cli.output import DEFAULT_STATE, StateOption, connection_remedy, fail

_LOOK_S = 0.05


def reload(
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the answer.")] = 10.0,
    state: StateOption = DEFAULT_STATE,
) -> None:
    """Have the local cluster take the tenants of its changed configuration, without a restart.

    All of the new configuration is checked first; when something is wrong with it the old one
    stays in force. What else changed takes a restart, as the log says.
    """
    from deploy.fleet import FleetError, fetch_status
    from deploy.state import StateDirectory

    record = StateDirectory(state).read()
    if record is None or not record.address:
        fail(f"nothing runs from {state}", "kill -HUP PID does the same to a process elsewhere")
    try:
        before = fetch_status(record.address).reloads
        os.kill(record.controlplane_pid, signal.SIGHUP)
        end = time.monotonic() + timeout
        while (now := fetch_status(record.address).reloads) == before:
            if time.monotonic() > end:
                fail(f"no answer within {timeout:g} s; the control plane's log may say why")
            time.sleep(_LOOK_S)
    except (FleetError, ProcessLookupError) as error:
        fail(str(error), connection_remedy(str(error), ""))
    if now.refused > before.refused:
        fail(f"the old configuration stays in force: {now.fault}")
    typer.echo("the new configuration is in force")
