"""Builds every kustomization and validates each object against its API's own schema.

    python deploy/kubernetes/check.py [--version 1.33]

Run by `make check-kubernetes` in an environment that has the package kubernetes-validate, and of
cloudcoil the models of the operators' resources; kubectl or kustomize must be on the path.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pydantic
import yaml

HERE = Path(__file__).resolve().parent
# The operators' APIs that the components use, and where their resources are described.
OPERATORS = {
    "cert-manager.io/v1": "cloudcoil.models.cert_manager.v1",
    "keda.sh/v1alpha1": "cloudcoil.models.keda.v1alpha1",
    "monitoring.coreos.com/v1": "cloudcoil.models.prometheus_operator.v1",
}


def kustomizations() -> list[Path]:
    """Folders that can be applied by themselves; components cannot."""
    files = sorted(HERE.rglob("kustomization.yaml"))
    return [
        file.parent for file in files if yaml.safe_load(file.read_text())["kind"] != "Component"
    ]


def build(folder: Path) -> list[dict[str, Any]]:
    """The objects of a kustomization; ends the command when it cannot be built."""
    command = ["kubectl", "kustomize"] if shutil.which("kubectl") else ["kustomize", "build"]
    done = subprocess.run(
        [*command, str(folder)], check=False, capture_output=True, text=True, encoding="utf-8"
    )
    if done.returncode:
        raise SystemExit(f"{folder.relative_to(HERE)}: {done.stderr.strip()}")
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def check(objects: list[dict[str, Any]], version: str) -> list[str]:
    """What is wrong with the objects, one line each."""
    faults = []
    for each in objects:
        name = f"{each['kind']} {each['metadata']['name']}"
        if each["apiVersion"] in OPERATORS:
            faults += [f"{name}: {fault}" for fault in check_custom(each)]
            continue
        try:
            kubernetes_validate.validate(each, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            place = ".".join(str(part) for part in error.path)
            faults.append(f"{name}: {place}: {error.message}")
        except kubernetes_validate.SchemaNotFoundError:
            faults.append(f"{name}: Kubernetes {version} has no {each['apiVersion']}")
    return faults


def check_custom(each: dict[str, Any]) -> list[str]:
    """What is wrong with an operator's resource."""
    described = importlib.import_module(OPERATORS[each["apiVersion"]])
    try:
        made = getattr(described, each["kind"]).model_validate(each)
    except pydantic.ValidationError as error:
        found = error.errors(include_url=False)
        return [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in found]
    # What a model does not know it drops.
    kept = made.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return [f"{path}: unknown" for path in dropped(each, kept, "")]


def dropped(given: Any, kept: Any, path: str) -> Iterator[str]:
    """Where `given` has keys that `kept` has not."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for key, value in given.items():
            place = f"{path}.{key}" if path else str(key)
            if key in kept:
                yield from dropped(value, kept[key], place)
            else:
                yield place
    elif isinstance(given, list) and isinstance(kept, list):
        for index, (value, other) in enumerate(zip(given, kept, strict=False)):
            yield from dropped(value, other, f"{path}.{index}")


def main() -> int:
    """Exit code 1 when anything is wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--version", default="1.33")
    version = parser.parse_args().version
    faulty = 0
    for folder in kustomizations():
        objects = build(folder)
        faults = check(objects, version)
        counted = sorted(Counter(each["kind"] for each in objects).items())
        kinds = ", ".join(f"{n} {kind}" for kind, n in counted)
        sys.stdout.write(f"{folder.relative_to(HERE)}: {kinds}\n")
        for fault in faults:
            sys.stdout.write(f"  {fault}\n")
        faulty += len(faults)
    return 1 if faulty else 0


if __name__ == "__main__":
    sys.exit(main())
