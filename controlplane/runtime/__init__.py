"""What makes sandboxes: one port, an adapter a runtime, one contract suite for all.

Belongs here: creating, finding, sealing and destroying sandboxes, and saying what a runtime can hold.
Does not belong here: when to do it (planning), steps inside a sandbox (provisioning, over agentclient).
Called by provisioning, the reaper and ``warmpool doctor``.
"""
