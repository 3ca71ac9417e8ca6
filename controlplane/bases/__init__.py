"""Base root file systems: from a lock of Debian packages to one tar with a digest.

Here: reading and writing locks, fetching the locked packages, building the tar, and what the host's own
network needs (CA bundle, package indexes, mirrors) so that builds inside sandboxes can use the same.
Not here: unpacking a base for a sandbox (the runtimes do that) and the building of templates.
Called by bootstrap, provisioning and the ``images/lock`` script.
"""
