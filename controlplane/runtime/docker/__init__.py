"""The docker runtime: sandboxes as containers of a Docker Engine on the same Linux host.

Here: the container of a sandbox as a pure function, its folders and control groups on the host, calls to
the engine, and what this engine can hold. Not here: what runs in a sandbox (agents.sandboxd) and how a base
is built (controlplane.bases, handed in by bootstrap). The only package that imports ``docker``. Called by
bootstrap only; everything else sees the runtime port.
"""

from controlplane.runtime.docker.runtime import DockerOptions, DockerRuntime

__all__ = ["DockerOptions", "DockerRuntime"]
