"""gRPC runs on fewer threads where it can and nobody said otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from deploy.transport import FEWER_THREADS, SWITCH, as_it_comes, choose


def test_it_is_chosen_where_nothing_is_said() -> None:
    environment: dict[str, str] = {}
    choose(environment, "1.85.3")
    assert environment == {SWITCH: FEWER_THREADS}


def test_what_the_environment_says_holds() -> None:
    environment = {SWITCH: "something_else"}
    choose(environment, "1.85.3")
    assert environment == {SWITCH: "something_else"}
    assert as_it_comes(environment) == environment


@pytest.mark.parametrize("installed", ["1.79.0", "1.99.1", "2.0.0", "unknown", "1"])
def test_versions_that_may_not_know_it_are_left_alone(installed: str) -> None:
    environment: dict[str, str] = {}
    choose(environment, installed)
    assert environment == {}


def test_a_process_of_ours_can_be_told_to_leave_it() -> None:
    environment = {"PATH": "/bin"}
    choose(environment, "1.85.3")
    told = as_it_comes(environment)
    choose(told, "1.85.3")
    assert told == {"PATH": "/bin", SWITCH: ""}


def test_the_library_hears_of_it_and_has_nothing_to_say() -> None:
    program = "import deploy, grpc.aio, os; print(os.environ.get('GRPC_EXPERIMENTS')); "
    program += "grpc.insecure_channel('127.0.0.1:1').close()"
    environment = {key: value for key, value in os.environ.items() if key != SWITCH}
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.stdout.strip() in (FEWER_THREADS, "None")
    assert done.stderr == ""
