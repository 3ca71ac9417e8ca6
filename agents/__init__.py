"""Programs that run inside or beside sandboxes, and the wire format they share with the control plane.

Nothing here imports ``controlplane``: a sandbox image holds this package only.
"""
