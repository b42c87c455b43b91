"""Who gets in: what every request passes, the login page, sessions. Knows no page."""
