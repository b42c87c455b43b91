"""What pages are made of: NiceGUI elements with their scripts, controls."""
