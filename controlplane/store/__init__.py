"""The one shared state: a port, and Redis or Valkey behind it with Lua for every change that must be atomic.

Belongs here: records, the claim, leases, leadership, quota, events, wake-ups. Does not belong here:
deciding anything (planning, services). Only this package imports ``redis``; the queue asks it for a
connection.
"""
