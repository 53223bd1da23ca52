"""What a control plane says of its cascades, as plain values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from protos.orchid.v1 import fleet_pb2


@dataclass(frozen=True, slots=True)
class CascadeView:
    """What second answers said of the first ones of a class; see `orchid.v1.CascadeStatus`."""

    request_class: str
    on: bool
    agreement: float
    floor: float
    answers: int
    compared: int
    shadows: int

    def line(self) -> str:
        """One line for people."""
        name = f"class {self.request_class}" if self.request_class else "requests of no class"
        state = "on" if self.on else "OFF: other requests than the evidence was measured on"
        seen = (
            f"; second answers agree {self.agreement:.3f}, at least {self.floor:.3f} is asked for "
            f"({self.compared} compared)"
            if self.compared
            else ""
        )
        return f"cascades for {name}: {state}; {self.answers} first answers{seen}"


def cascade_views(messages: Iterable[fleet_pb2.CascadeStatus]) -> tuple[CascadeView, ...]:
    """The cascades of a pool."""
    return tuple(
        CascadeView(
            request_class=message.request_class,
            on=message.on,
            agreement=message.agreement,
            floor=message.floor,
            answers=message.answers,
            compared=message.compared,
            shadows=message.shadows,
        )
        for message in messages
    )
