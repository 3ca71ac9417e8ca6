"""The local runtime: an OCI runtime (runc or crun) driven directly, one bundle a sandbox.

Here: bundles as pure functions, the id range, overlays and loop images, cgroups, and what this host can
hold. Not here: what runs in a sandbox (agents.sandboxd) and how a base is built (controlplane.bases,
handed in by bootstrap). Called by bootstrap only; everything else sees the runtime port.
"""
