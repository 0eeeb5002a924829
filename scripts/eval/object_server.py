"""A web server of files that waits before each answer, and fails at times: nginx with its module for Lua.

Its link may be narrow: a pair of interfaces, which needs root and iproute2.

Debian: nginx and libnginx-mod-http-lua. `packages` is where they are installed, or were unpacked.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

STARTING_S = 10.0
QUEUE_MS = 50  # of a link: longer queues are dropped, as a switch does
LIBRARIES = ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu")


@dataclass(frozen=True)
class Answers:
    """Latency of a server, and the shares of requests that fail.

    Latencies are lognormal, with this median and 99th percentile in ms. `unavailable` requests get a 503,
    `stalled` ones wait 5 s more, and of `cut` ones the connection ends before the body. All bodies share
    a link of so many `megabits` per second, which needs root.
    """

    median_ms: float
    p99_ms: float
    unavailable: float = 0.0
    stalled: float = 0.0
    cut: float = 0.0
    megabits: int | None = None

    def lua(self) -> str:
        """Return the handlers of nginx."""
        return f"""
        access_by_lua_block {{
          local draw = math.random()
          if draw < {self.unavailable} then return ngx.exit(503) end
          ngx.ctx.cut = draw > 1 - {self.cut}
          local z = math.sqrt(-2 * math.log(1 - math.random())) * math.cos(2 * math.pi * math.random())
          ngx.sleep({self.median_ms} * math.exp(math.log({self.p99_ms / self.median_ms}) / 2.326 * z) / 1000)
          if draw > 0.5 and draw < 0.5 + {self.stalled} then ngx.sleep(5) end
        }}
        body_filter_by_lua_block {{ if ngx.ctx.cut then return ngx.ERROR end }}"""


@contextmanager
def object_server(served: Path, answers: Answers, packages: Path, folder: Path) -> Iterator[str]:
    """Yield the address of a server of a folder, which keeps its own files in another."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    libraries = ":".join(str(packages / one) for one in LIBRARIES)
    environment = {**os.environ, "LD_LIBRARY_PATH": libraries} if packages != Path("/") else None
    with narrow_link(answers.megabits) if answers.megabits else nullcontext(Link()) as link:
        listen = f"{link.address}:{port}"
        (folder / "nginx.conf").write_text(
            _configuration(served.resolve(), answers, packages, folder, listen)
        )
        nginx = (packages / "usr/sbin/nginx", "-p", folder, "-c", folder / "nginx.conf", "-g", "daemon off;")
        server = subprocess.Popen([*link.prefix, *nginx], env=environment)
        try:
            _wait((link.address, port), server)
            yield f"http://{listen}"
        finally:
            server.terminate()
            server.wait()


def _configuration(served: Path, answers: Answers, packages: Path, folder: Path, listen: str) -> str:
    modules = packages / "usr/lib/nginx/modules"
    kept = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    user = "user root root;" if os.geteuid() == 0 else ""  # the folder is private
    return f"""
    {user} load_module {modules}/ndk_http_module.so; load_module {modules}/ngx_http_lua_module.so;
    worker_processes 2; pid {folder}/nginx.pid; error_log {folder}/error.log; events {{}}
    http {{
      access_log off; sendfile on; lua_package_path "{packages}/usr/share/lua/5.1/?.lua;;";
      {" ".join(f"{one}_temp_path {folder}/{one};" for one in kept)}
      init_worker_by_lua_block {{ math.randomseed(ngx.now() * 1000 + ngx.worker.pid()) }}
      server {{ listen {listen}; root {served}; location / {{ {answers.lua()} }} }}
    }}"""


def _wait(address: tuple[str, int], server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + STARTING_S
    while True:
        try:
            socket.create_connection(address, 1).close()
        except OSError:
            if server.poll() is not None or time.monotonic() > until:
                raise OSError("nginx with its module for Lua did not start") from None
            time.sleep(0.05)
        else:
            return


@dataclass(frozen=True)
class Link:
    """Address of a server, and what to write before the command that starts it."""

    address: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()


@contextmanager
def narrow_link(megabits: int) -> Iterator[Link]:
    """Yield a link over which a server sends at most so many Mbit/s; raises OSError if it cannot be made."""
    number = os.getpid()
    space, near, far = f"iobench-{number}", f"ionear{number}", f"iofar{number}"
    network = f"10.213.{number >> 8 & 255}"
    host, address = (f"{network}.{(number & 63) * 4 + last}" for last in (1, 2))
    inside = ("ip", "netns", "exec", space)
    try:
        _do("ip", "netns", "add", space)
        _do("ip", "link", "add", near, "type", "veth", "peer", "name", far, "netns", space)
        _do("ip", "addr", "add", f"{host}/30", "dev", near)
        _do("ip", "link", "set", near, "up")
        _do("ip", "-n", space, "addr", "add", f"{address}/30", "dev", far)
        _do("ip", "-n", space, "link", "set", far, "up")
        bucket = ("rate", f"{megabits}mbit", "burst", "1mb", "latency", f"{QUEUE_MS}ms")
        _do(*inside, "tc", "qdisc", "add", "dev", far, "root", "tbf", *bucket)
        yield Link(address, inside)
    finally:
        subprocess.run(["ip", "netns", "del", space], capture_output=True)


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
