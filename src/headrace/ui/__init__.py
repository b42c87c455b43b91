"""The dashboard: pages over a running server, in a browser.

    browser ─ guard (host, origin, session) ─▶ pages ─▶ Backend ─ HTTP ─▶ any `headrace serve`

It talks to a server only as any client does and knows no engine; of ours it may import
`headrace.errors` and the planner (`headrace.limits.plan`).
"""
