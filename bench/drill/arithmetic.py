"""The drill's fixture: what short and long requests ask of so many workers, in CPU-ms a second."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Kind:
    """Requests of one size: their rate, and what one takes on the full and the compact variant.

    `eligible` is the share that the compact variant may answer.
    """

    name: str
    per_s: float
    full_ms: float
    compact_ms: float
    eligible: float


@dataclass(frozen=True, slots=True)
class Fixture:
    """A mix of requests before `units` of a core's time each, of which `protection` may be used.

    `surge` multiplies the rates; qualities are those of the variants and the floor of what the
    compact one may answer.
    """

    kinds: tuple[Kind, ...]
    units: float
    protection: float
    surge: float
    full_quality: float
    compact_quality: float
    floor: float

    @property
    def protected(self) -> float:
        """CPU-ms a second that may be used."""
        return self.units * 1000.0 * self.protection

    def offered(self, factor: float = 1.0) -> float:
        """CPU-ms a second of all requests on the full variant, at so many times their rates."""
        return factor * sum(kind.per_s * kind.full_ms for kind in self.kinds)

    def saved(self, factor: float = 1.0) -> float:
        """CPU-ms a second that the compact variant saves when it answers all it may."""
        return factor * sum(
            kind.per_s * kind.eligible * (kind.full_ms - kind.compact_ms) for kind in self.kinds
        )

    def left(self, factor: float = 1.0) -> float:
        """What is offered then."""
        return self.offered(factor) - self.saved(factor)

    def share(self, cpu_ms_per_s: float) -> float:
        """Of what may be used."""
        return cpu_ms_per_s / self.protected

    def scaled(self, units: float, time: float) -> Fixture:
        """The same shares on so many units, with requests that take `time` times as long."""
        kinds = tuple(
            replace(
                kind,
                per_s=kind.per_s * units / self.units / time,
                full_ms=kind.full_ms * time,
                compact_ms=kind.compact_ms * time,
            )
            for kind in self.kinds
        )
        return replace(self, kinds=kinds, units=units)


# Given are rates, full costs and what the compact variant saves altogether; its costs are chosen
# so that they save that: 24.8 ms of a short request, 228.4 of a long one.
FIXTURE = Fixture(
    kinds=(
        Kind("short", 140.0, 56.8, 32.0, 0.6),
        Kind("long", 18.0, 467.6, 239.2, 0.5),
    ),
    units=24,
    protection=0.7,
    surge=1.25,
    full_quality=0.92,
    compact_quality=0.86,
    floor=0.84,
)
