"""Compiles the modules on a request's path with mypyc; run by CMake and by `make`.

    python -m deploy.compiled.build [--into DIR] [--work DIR] [PACKAGE ...]

For each package DIR (where packages are installed, by default) gets one library,
`orchid_compiled/<module><suffix>` for each of its modules, and a record of the sources. A
package whose record is of its present sources is left as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from deploy.compiled import FOLDER, SUFFIX, SWITCH, digest_of

ROOT = Path(__file__).resolve().parents[2]

# What every request passes through, and the arithmetic it rests on; the rest gains nothing.
PACKAGES = {
    "controlplane": (
        "errors.py",
        "accounts.py",
        "work.py",
        "ends.py",
        "counters.py",
        "histogram.py",
        "measures.py",
        "pending.py",
        "second_looks.py",
        "expiry.py",
        "lag.py",
        "pump.py",
        "redispatch.py",
        "deployed.py",
        "dispatcher.py",
        "members.py",
        "registry.py",
        "policy/*.py",
        "policy/tenancy/*.py",
        "records/demand.py",
        "records/estimates.py",
        "records/recorder.py",
        "rpc/asks.py",
        "rpc/catalogue.py",
        "rpc/convert.py",
        "rpc/gathering.py",
        "rpc/intake.py",
        "rpc/local_stream.py",
        "rpc/oip.py",
        "rpc/oip_message.py",
        "rpc/oip_request.py",
        "rpc/oip_response.py",
        "rpc/oip_stream.py",
        "rpc/statistics.py",
        "rpc/streams.py",
        "rpc/wire.py",
        "rpc/worker_client.py",
    ),
    "worker": (
        "errors.py",
        "records.py",
        "histogram.py",
        "measures.py",
        "decode.py",
        "stock_decode.py",
        "jobs.py",
        "loop.py",
        "outbox.py",
        "waiting.py",
        "runs.py",
        "execution.py",
        "watchdog.py",
        "generation/answer.py",
        "generation/generation.py",
        "generation/lane.py",
        "generation/loop.py",
        "generation/mailbox.py",
        "generation/openings.py",
        "generation/records.py",
        "generation/penalties.py",
        "generation/sampling.py",
        "generation/steps.py",
        "generation/stops.py",
        "generation/text.py",
        "scheduling/*.py",
        "rpc/convert.py",
        "rpc/execute.py",
        "rpc/generate.py",
        "rpc/generation.py",
        "rpc/local_stream.py",
    ),
}

# Provisioning is no part of a request's path.
_LEFT_OUT = ("__init__.py", "provision.py", "queueing.py")

# The types it uses are those of the build's own requirements, wherever it is run.
_CONFIG = """\
[mypy]
python_version = {version}
explicit_package_bases = True
follow_imports = silent
ignore_missing_imports = True
disable_error_code = misc,no-any-return,import-untyped

[mypy-opentelemetry.*,psutil.*,pydantic.*,tokenizers.*]
follow_imports = skip
"""

_SETUP = """\
import sys
from setuptools import setup
from mypyc.build import mypycify

config, group, *modules = sys.argv[3:]
del sys.argv[3:]
extensions = mypycify(
    ["--config-file", config, *modules], opt_level="2", debug_level="0", group_name=group
)
setup(name=group, packages=[], ext_modules=extensions)
"""


class BuildError(Exception):
    """A module cannot be compiled."""


def modules_of(package: str) -> list[Path]:
    """The files of a package that are compiled."""
    files = [path for pattern in PACKAGES[package] for path in (ROOT / package).glob(pattern)]
    return sorted(path for path in files if path.name not in _LEFT_OUT)


def build(package: str, work: Path, into: Path) -> None:
    """Compiles one package; raises BuildError with what the compiler said."""
    digest = digest_of(ROOT / package)
    if _recorded(package, into) == digest:
        return
    files = modules_of(package)
    shutil.rmtree(work, ignore_errors=True)
    made = work / "lib"
    work.mkdir(parents=True)
    (work / "mypy.ini").write_text(
        _CONFIG.format(version=f"{sys.version_info.major}.{sys.version_info.minor}")
    )
    (work / "setup.py").write_text(_SETUP)
    # mypyc names modules by their place below the working directory.
    for each in (package, "protos"):
        (work / each).symlink_to(ROOT / each)
    names = [path.relative_to(ROOT).as_posix() for path in files]
    command = [sys.executable, "setup.py", "build_ext", f"--build-lib={made}"]
    command += ["mypy.ini", f"orchid_{package}", *names]
    with (work / "log").open("wb") as log:
        result = subprocess.run(
            command,
            cwd=work,
            check=False,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "MYPY_CACHE_DIR": os.devnull},
        )
    if result.returncode:
        said = (work / "log").read_text(errors="replace").splitlines()
        faults = [line for line in said if "error:" in line and not line.startswith("gcc ")]
        raise BuildError("\n".join((faults or said)[-40:]))
    _install(package, digest, made, into)


def _recorded(package: str, into: Path) -> str:
    """The sources that what was made before is of; empty when nothing was."""
    try:
        record = json.loads((into / FOLDER / f"{package}{SUFFIX}.json").read_bytes())
    except OSError:
        return ""
    return str(record["digest"])


def _install(package: str, digest: str, made: Path, into: Path) -> None:
    folder = into / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    record = folder / f"{package}{SUFFIX}.json"
    # Without a record nobody takes what is half replaced.
    record.unlink(missing_ok=True)
    for old in folder.glob(f"{package}.*{SUFFIX}"):
        old.unlink()
    modules = []
    for path in sorted((made / package).rglob(f"*{SUFFIX}")):
        name = ".".join(path.relative_to(made).parts).removesuffix(SUFFIX)
        _replace(path, folder / f"{name}{SUFFIX}")
        modules.append(name)
    for path in made.glob(f"*{SUFFIX}"):
        _replace(path, into / path.name)
    record.write_text(json.dumps({"digest": digest, "modules": modules}, indent=1) + "\n")


def _replace(source: Path, target: Path) -> None:
    """Put a file in place of another, which running processes keep as it was."""
    fresh = target.with_name(f"{target.name}.new")
    shutil.copy2(source, fresh)
    fresh.replace(target)


def main() -> None:
    """Parse the command line and build."""
    parser = argparse.ArgumentParser(prog="deploy.compiled.build")
    parser.add_argument("packages", nargs="*", default=sorted(PACKAGES))
    parser.add_argument("--into", type=Path, default=Path(sysconfig.get_path("platlib")))
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "compiled")
    options = parser.parse_args()
    for package in options.packages:
        sys.stdout.write(f"compiling the hot modules of {package}: a minute or so\n")
        sys.stdout.flush()
        try:
            build(package, options.work.resolve() / package, options.into.resolve())
        except BuildError as error:
            sys.stderr.write(f"{error}\n{package} cannot be compiled; {SWITCH}=0 leaves it out\n")
            raise SystemExit(1) from None


if __name__ == "__main__":
    main()
