"""One module per noun, each with a ``router``; see ``app`` for how they come together."""
