"""Where a control plane was bound, so that the next one is found there too."""

from __future__ import annotations

from dataclasses import dataclass

from deploy.process import Child


@dataclass(frozen=True, slots=True)
class Doors:
    """Addresses of one control plane, and the URL of its status page; empty: not served."""

    grpc: str = ""
    http: str = ""
    metrics: str = ""
    page_url: str = ""

    @staticmethod
    def of(child: Child, address: str) -> Doors:
        """Those of a control plane that has said that it serves gRPC at `address`."""
        return Doors(address, child.http_address, child.metrics_address, child.page_url)

    def overrides(self) -> dict[str, str]:
        """Configuration keys that make another control plane listen at the same addresses."""
        kept = {
            "listen": self.grpc,
            "http_listen": self.http,
            "metrics_listen": self.metrics,
            "status_listen": self.page_url.rpartition("//")[2],
        }
        return {key: address for key, address in kept.items() if address}
