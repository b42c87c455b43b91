"""One file per group of routes. A route reads a body, asks the door, and names a renderer."""
