"""What pages show, as values: computed here, drawn elsewhere. No element, no HTTP."""
