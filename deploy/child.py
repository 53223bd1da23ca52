"""Entry of a process that a launcher starts: `python -m deploy.child SERVICE ...`.

It dies with its launcher, and writes the bound address to a file once it serves,
before it those of HTTP, metrics and the status page to others.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from deploy import lifeline
from deploy.config import ConfigError
from deploy.process import http_file, metrics_file, page_file
from deploy.services import SERVICES, serve


def main() -> int:
    """Exit code 2 marks a fault in the configuration: starting again cannot help."""
    parser = argparse.ArgumentParser(prog="deploy.child")
    parser.add_argument("service", choices=SERVICES)
    parser.add_argument("--lifeline", type=int, required=True)
    parser.add_argument("--address-file", type=Path, required=True)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--overrides", type=json.loads, default={})
    options = parser.parse_args()
    lifeline.watch(options.lifeline)

    def announce(address: str, file: Path = options.address_file) -> None:
        partial = file.with_suffix(".partial")
        partial.write_text(address)
        partial.replace(file)

    try:
        serve(
            options.service,
            config=options.config,
            env=os.environ,
            overrides=options.overrides,
            ready=announce,
            http_ready=lambda address: announce(address, http_file(options.address_file)),
            metrics_ready=lambda address: announce(address, metrics_file(options.address_file)),
            page_ready=lambda url: announce(url, page_file(options.address_file)),
        )
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
