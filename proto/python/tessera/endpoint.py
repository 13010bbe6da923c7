# SPDX-License-Identifier: Apache-2.0
"""A daemon's endpoint, before anything was said: paths too long for a socket, reasons why nothing answers, keys."""
import os
import socket as sockets
from typing import Optional, Tuple


def shorten(endpoint: str) -> Tuple[str, Optional[int]]:
    """Shortens an ipc path that is too long for a socket's address: (endpoint through its opened folder, the folder's
    descriptor). Any other endpoint: (endpoint, None)."""
    if not endpoint.startswith("ipc://") or len(os.fsencode(endpoint)) <= 6 + 107:
        return endpoint, None
    path, name = os.path.split(endpoint[6:])  # as proto/wire/endpoint.c does
    folder = os.open(path, os.O_PATH | os.O_DIRECTORY)
    return f"ipc:///proc/self/fd/{folder}/{name}", folder


def absence(endpoint: str) -> Optional[str]:
    """The reason why nothing can answer at an endpoint. None if a process listens there, and always for tcp, about which
    nothing is known. Raises PermissionError if this user may not write to the socket, since waiting does not change that."""
    if not endpoint.startswith("ipc://"):
        return None
    folder = None
    try:
        address, folder = shorten(endpoint)
        with sockets.socket(sockets.AF_UNIX) as s:
            s.setblocking(False)
            s.connect(address[6:])
    except PermissionError:
        raise PermissionError(f"{endpoint}: this user may not write to the socket, which connecting requires: run this as "
                              "the user of prepd serve, or as a member of its group") from None
    except BlockingIOError:
        return None  # its queue is full, so a process is there
    except ConnectionRefusedError:
        return "no process listens on this socket: prepd serve has died; start it again"
    except OSError as e:
        return f"there is no socket ({e.strerror}): prepd serve is not running, or has another prepd.endpoint"
    finally:
        if folder is not None:
            os.close(folder)
    return None


def read_keys(folder: str) -> Tuple[bytes, ...]:
    """Reads a client's folder: (its public key, its secret key, the daemon's public key)."""
    try:
        with open(os.path.join(folder, "client.key"), encoding="ascii") as f:
            own = [line.split()[0].encode() for line in f.read().splitlines()[:2]]
        with open(os.path.join(folder, "daemon.pub"), encoding="ascii") as f:
            return *own, f.read().split()[0].encode()
    except OSError as e:
        raise type(e)(f"{e.filename}: cannot be read: {e.strerror}; on the daemon's machine run prepd keygen --out FOLDER "
                      "--client NAME (FOLDER is its prepd.keys), and copy FOLDER/NAME here") from None
