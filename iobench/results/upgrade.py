"""Records of older versions in the shape of the current one."""

from __future__ import annotations

from typing import Any

# version 1 kept all settings side by side; these belonged to one loader
_OPTIONS = {
    "dataloader": (
        "fetch",
        "num_workers",
        "prefetch_factor",
        "start_method",
        "pin_memory",
        "non_blocking",
    ),
    "native": ("pin_memory", "non_blocking"),
    "stream": ("threads", "direct"),
}
_CHOSEN = ("order", "batch_size", "block_bytes", "window_bytes", "seed")
_TIMES = ("open_s", "first_batch_s", "wait_s", "wait_p50_s", "wait_p99_s", "stages", "beside_s", "spans_s")


def to_current(body: dict[str, Any]) -> dict[str, Any]:
    """The body of a record of version 1 as one of version 2: a round was one epoch then.

    KeyError where it lacks what every record had.
    """
    arm, cache = body["arm"], body["cache"]
    return {
        **{name: body[name] for name in ("run", "time", "round", "dataset", "cache", "machine")},
        "case": _case(body, arm, cache),
        "timing": {
            "samples": body["samples"],
            "logical_bytes": body["logical_bytes"],
            "epochs_s": body["epoch_s"],
            **{name: body[name] for name in _TIMES if name in body},
        },
        "processor": {
            "cpu_s": body["cpu_s"],
            "major_faults": body["major_faults"],
            "steal_s": body.get("stolen_s"),
        },
        "disk": {"read_bytes": body["disk_bytes"], "device_read_bytes": body.get("device_disk_bytes")},
        "memory": {
            "peak_bytes": body["memory_bytes"],
            "device_allocated_bytes": body["gpu_allocated_bytes"],
            "device_reserved_bytes": body["gpu_reserved_bytes"],
        },
        "snapshots": body.get("system"),
        **{name: body.get(name) for name in ("loss", "limit", "shuffledness")},
        "record_version": 2,
    }


def _case(body: dict[str, Any], arm: dict[str, Any], cache: dict[str, Any]) -> dict[str, Any]:
    options = {name: arm[name] for name in _OPTIONS.get(arm["loader"], ()) if name in arm}
    return {
        "format": arm["variant"],
        "loader": arm["loader"],
        "options": options,
        **{name: arm[name] for name in _CHOSEN if name in arm},
        "device": body["device"],
        "cache": cache["mode"],
        "model": body["model"],
        "strict": True,  # version 1 waited for the device after each step
        "profile": body.get("stages") is not None,
        "isolated": False,
        "world_size": 1,
    }
