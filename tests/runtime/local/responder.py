"""First process of a sandbox in these tests: runs each line that comes in at the door with sh, as root.

The line ``END`` ends it.
"""

import os
import socket
import subprocess
import threading


def answer(connection: socket.socket) -> None:
    with connection, connection.makefile() as lines:
        line = lines.readline()
        if line == "END\n":
            os._exit(0)
        done = subprocess.run(["/bin/sh", "-c", line], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        connection.sendall(f"{done.returncode}\n".encode() + done.stdout)


door = socket.socket(fileno=3)
while True:
    accepted, _ = door.accept()
    threading.Thread(target=answer, args=(accepted,), daemon=True).start()
