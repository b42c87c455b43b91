"""One experiment per module; catalog.py lists them."""
