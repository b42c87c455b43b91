"""From results to bytes: whole answers and stream chunks. No sockets, no engine calls.

A stream's chunks are put together from prepared pieces; only the text is encoded per token.
"""
