"""See docs/architecture.md for what this room holds."""
