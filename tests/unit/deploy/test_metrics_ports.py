"""Each process of a cluster gets a port of its own for its metrics."""

from __future__ import annotations

import json
import socket
from contextlib import closing
from pathlib import Path

from deploy.metrics_ports import TARGETS, MetricsPorts, write_targets
from deploy.state import ClusterRecord, WorkerRecord


def listener() -> socket.socket:
    taken = socket.create_server(("127.0.0.1", 0))
    return taken


def test_ports_follow_and_taken_ones_are_passed_over() -> None:
    with closing(listener()) as taken:
        port = taken.getsockname()[1]
        ports = MetricsPorts(f"127.0.0.1:{port}")
        first = ports.take(())
        second = ports.take({first})
    numbers = [int(address.rpartition(":")[2]) for address in (first, second)]
    assert port < numbers[0] < numbers[1]
    # What a process that is gone had is given again.
    assert ports.take({second}) != second


def test_the_port_that_was_asked_for_is_given_once_as_it_is() -> None:
    with closing(listener()) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ports = MetricsPorts(address, exact=True)
        assert ports.take(()) == address
        assert ports.take({address}) != address


def test_no_first_address_serves_nothing_and_port_0_leaves_the_choice() -> None:
    assert MetricsPorts("").take(()) == ""
    anywhere = MetricsPorts("127.0.0.1:0")
    assert {anywhere.take(()), anywhere.take({"127.0.0.1:0"})} == {"127.0.0.1:0"}


def test_targets_are_those_that_serve(tmp_path: Path) -> None:
    workers = (WorkerRecord("worker-0", 5, "h:1", "h:9465"), WorkerRecord("worker-1", 6, "h:2"))
    record = ClusterRecord(
        launcher_pid=1,
        launcher_started=0.0,
        controlplane_pid=2,
        phase="ready",
        message="",
        address="h:8900",
        policy="price",
        workers=workers,
        metrics="h:9464",
    )
    write_targets(tmp_path, record)
    found = json.loads((tmp_path / TARGETS).read_text())
    assert [(each["targets"], each["labels"]["component"]) for each in found] == [
        (["h:9464"], "controlplane"),
        (["h:9465"], "worker"),
    ]


def test_a_port_of_one_kind_of_process_is_given_to_no_other() -> None:
    with closing(listener()) as taken:
        ports = MetricsPorts(f"127.0.0.1:{taken.getsockname()[1]}")
    worker = ports.take((), "worker")
    decode = ports.take({worker}, "decode")
    # The worker was replaced and is gone: its port waits for another worker.
    assert ports.take({decode}, "decode") not in (worker, decode)
    assert ports.take({decode}, "worker") == worker


def test_targets_that_are_served_by_tls_say_so(tmp_path: Path) -> None:
    workers = (WorkerRecord("worker-0", 5, "h:1", "h:9465"),)
    record = ClusterRecord(
        1, 0.0, 2, "ready", "", "h:8900", "price", workers, metrics="h:9464", secure=("worker-0",)
    )
    write_targets(tmp_path, record)
    plane, worker = (each["labels"] for each in json.loads((tmp_path / TARGETS).read_text()))
    assert "__scheme__" not in plane and worker["__scheme__"] == "https"
