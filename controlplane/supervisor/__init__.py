"""``warmpool up``: one process that runs every role as a child and keeps it running.

Belongs here: starting and stopping processes, the embedded Valkey, first credentials. Does not belong
here: what a role does (``bootstrap`` builds it). Called by the cli.
"""
