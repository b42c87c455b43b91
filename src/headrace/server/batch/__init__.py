"""`run-batch`: a file of requests through the door, without HTTP.

    IN ─ survey ─▶ lines ─▶ intake ─▶ engine ─▶ render ─▶ ledger ─▶ OUT

The same parsing and rendering as the server's; what is this room's own is the two files.
"""
