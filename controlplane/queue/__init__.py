"""Where slow work goes: a port, and RQ behind it.

Belongs here: putting a job on a queue, once per job id, and running workers. Does not belong here: what
a job does (``jobs`` calls one service each). Only this package imports ``rq``.
"""
