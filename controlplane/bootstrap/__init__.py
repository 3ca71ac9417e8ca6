"""Builds everything: the only place that knows which adapter stands behind which port.

Belongs here: one module a process role, and one builder a port, from settings. Does not belong here: behaviour.
Called by the cli and the supervisor, which import the module of their role only: each process loads what it needs.
"""
