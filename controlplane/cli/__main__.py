"""``python -m controlplane.cli``: how the supervisor starts the roles."""

from controlplane.cli import main

main()
