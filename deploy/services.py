"""Runs one service in this process: configuration in, serving until it is told to stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.access import Access, AccessError, access_from
from deploy.budget import decode_share
from deploy.config import ConfigError, load_config
from worker.cpu_plan import OversubscribedError, check_threads, read_cpu_plan

if TYPE_CHECKING:
    from controlplane.config import ControlPlaneConfig
    from worker.config import WorkerConfig

SERVICES = ("controlplane", "worker")


def worker_config(
    config: Path | None, env: Mapping[str, str], overrides: Mapping[str, Any]
) -> WorkerConfig:
    """The settings a worker would start with; raises ConfigError."""
    from worker.config import WorkerConfig

    settings = load_config(WorkerConfig, "worker", config, env, overrides)
    if settings.worker_class == "decode":
        threads = decode_share(read_cpu_plan(), encoders=False)
        return decode_config(config, env, overrides, threads=threads)
    return settings


def decode_config(
    config: Path | None, env: Mapping[str, str], overrides: Mapping[str, Any], *, threads: int
) -> WorkerConfig:
    """The settings a decode worker would start with; raises ConfigError.

    What the `decode:` section does not say is as the `worker:` section has it, but for the class,
    the `threads`, and what is said of encoders' models, variants and CPUs.
    """
    from worker.config import WorkerConfig

    defaults = {
        "worker_class": "decode",
        "intra_op_threads": threads,
        "models": (),
        "variants": (),
        "cpus": (),
    }
    return load_config(
        WorkerConfig, "decode", config, env, overrides, base="worker", defaults=defaults
    )


def controlplane_config(
    config: Path | None, env: Mapping[str, str], overrides: Mapping[str, Any]
) -> ControlPlaneConfig:
    """The settings a control plane would start with; raises ConfigError."""
    from controlplane.config import ControlPlaneConfig

    return load_config(ControlPlaneConfig, "controlplane", config, env, overrides)


@dataclass(frozen=True, slots=True)
class LauncherAccess:
    """How a launcher reaches its control plane and its workers."""

    controlplane: Access
    workers: Access


def launcher_access(
    config: Path | None, env: Mapping[str, str], overrides: Mapping[str, Any]
) -> LauncherAccess:
    """What the environment says of access, and beyond that the control plane's own certificates.

    Raises ConfigError, and AccessError when there is no authority to trust.
    """
    tls = controlplane_config(config, env, overrides).tls
    own = access_from(env)
    if own.encrypted or not (tls.serves or tls.dials):
        return LauncherAccess(own, own if tls.dials else replace(own, tls=False, ca=""))
    if not tls.ca:
        raise AccessError(
            "the launcher must know whom to trust: set controlplane.tls.ca, or ORCHID_TLS_CA"
        )
    shown = replace(own, ca=tls.ca, certificate=tls.certificate, key=tls.key)
    return LauncherAccess(shown, replace(shown, server_name=tls.server_name or own.server_name))


@dataclass(frozen=True, slots=True)
class ServedModels:
    """Names of the models to serve, by the class of worker that serves them."""

    encoders: frozenset[str]
    generators: frozenset[str]

    @property
    def all(self) -> frozenset[str]:
        """Every one of them."""
        return self.encoders | self.generators


def served_models(config: WorkerConfig) -> ServedModels:
    """The models that workers with these settings serve; those nobody can read are encoders."""
    from worker.models.errors import ManifestError
    from worker.models.manifest import GENERATION, load_manifest

    generators = set()
    names = frozenset(config.models) or repository_models(config)
    for name in names:
        with suppress(ManifestError):
            if load_manifest(config.repository / name).task == GENERATION:
                generators.add(name)
    return ServedModels(names - generators, frozenset(generators))


def repository_models(config: WorkerConfig) -> frozenset[str]:
    """Names of the models that the repository of these settings holds."""
    return frozenset(path.parent.name for path in config.repository.glob("*/manifest.json"))


def serve(
    service: str,
    *,
    config: Path | None,
    env: Mapping[str, str],
    overrides: Mapping[str, Any],
    ready: Callable[[str], None],
    http_ready: Callable[[str], None] | None = None,
    metrics_ready: Callable[[str], None] | None = None,
    page_ready: Callable[[str], None] | None = None,
) -> None:
    """Runs "controlplane" or "worker" until a signal ends it.

    `ready` is called once with the address that was bound, before it `http_ready`,
    `metrics_ready` and `page_ready` with those of HTTP, metrics and the status page where they are
    served. Raises ConfigError (also for more threads than there are granted cores), and
    SystemExit(1) when the service cannot start.
    """
    if service == "controlplane":
        from controlplane.__main__ import main as run_controlplane
        from controlplane.config import ControlPlaneConfig
        from controlplane.reload import BadConfig

        def read() -> ControlPlaneConfig:
            try:
                return load_config(ControlPlaneConfig, service, config, env, overrides)
            except ConfigError as error:
                raise BadConfig(str(error)) from None

        chosen = load_config(ControlPlaneConfig, service, config, env, overrides)
        run_controlplane(
            chosen,
            ready=ready,
            http_ready=http_ready,
            metrics_ready=metrics_ready,
            page_ready=page_ready,
            read=read,
        )
    else:
        from worker.__main__ import main as run_worker

        settings = worker_config(config, env, overrides)
        try:
            check_threads(read_cpu_plan(), 1, settings.intra_op_threads)
        except OversubscribedError as error:
            raise ConfigError(f"worker.intra_op_threads: {error}") from None
        run_worker(settings, ready=ready, metrics_ready=metrics_ready)
