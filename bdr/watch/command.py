"""`bdr watch`: which runs, at which address, and until when."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import sys
import threading
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from bdr.errors import UsageError
from bdr.watch.board import Board

if TYPE_CHECKING:
    import uvicorn

FIRST_PORT = 8000
PORTS = 50  # how many are tried before giving up


def watch_runs(runs: list[Path], host: str, port: int | None, exposed: bool, open_page: bool | None) -> None:
    """Serve the page until Ctrl-C."""
    check_runs(runs)
    check_host(host, exposed)
    board = Board(runs)
    server = make_server(board, host)
    with listening(host, port) as listener:
        address = address_of(listener)
        typer.echo(f"watching {', '.join(map(str, runs))} at {address} (Ctrl-C ends it)")
        if open_page or (open_page is None and has_screen()):
            threading.Timer(0.5, webbrowser.open, [address]).start()
        with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again when all is closed
            server.run(sockets=[listener])


def check_runs(runs: list[Path]) -> None:
    for path in runs:
        if not path.is_dir():
            raise UsageError(f"{path} is not a folder: name the folder that the runs are in, or will be in")


def check_host(host: str, exposed: bool) -> None:
    """Refuse a host that others can reach, unless the user has said that they may look, too."""
    if is_loopback(host):
        return
    if not exposed:
        raise UsageError(
            f"--host {host} would show the runs to everyone who reaches this machine, without a password. Rather use "
            f"ssh -L {FIRST_PORT}:127.0.0.1:{FIRST_PORT} MACHINE where you sit; or add --exposed, if you want that"
        )
    typer.echo(f"warning: everyone who reaches {host} can look at these runs; there is no password", err=True)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listening(host: str, port: int | None) -> socket.socket:
    """A socket at the wanted port, or at the first free one from 8000 on."""
    last: OSError | None = None
    for number in [port] if port is not None else range(FIRST_PORT, FIRST_PORT + PORTS):
        try:
            return bound(host, number)
        except (OSError, OverflowError) as error:
            last = error if isinstance(error, OSError) else OSError(0, "ports are 0 to 65535")
    wanted = f"port {port}" if port is not None else f"any port from {FIRST_PORT} to {FIRST_PORT + PORTS - 1}"
    raise UsageError(f"cannot listen at {host}, {wanted}: {last.strerror if last else ''}; name another with --port")


def bound(host: str, port: int) -> socket.socket:
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()  # from here on nobody else gets this port
    except BaseException:
        listener.close()
        raise
    return listener


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def has_screen() -> bool:
    """Whether a browser would open a window, and open it where the user sits."""
    here = sys.stdout.isatty() and not os.environ.get("SSH_CONNECTION")
    return here and (sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")))


def make_server(board: Board, host: str = "127.0.0.1") -> uvicorn.Server:
    try:
        import uvicorn

        from bdr.watch.server import make_app
    except ImportError as error:
        raise UsageError(f"bdr watch needs {error.name}, which is not installed: pip install 'bdr[watch]'") from error
    app = make_app(board, {host.lower()})
    # open streams would keep the server alive for ever
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1, lifespan="on")
    server = uvicorn.Server(config)
    app.state.pulse.leaving = lambda: server.should_exit
    return server
