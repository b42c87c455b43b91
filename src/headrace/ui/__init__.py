"""The dashboard: pages over a running server, in a browser.

    browser ─ guard (host, origin, session) ─▶ pages ─▶ Backend ─ HTTP ─▶ any `headrace serve`

It talks to a server only as any client does and knows no engine; of ours it may import
`headrace.errors` and the planner (`headrace.limits.plan`).

    door/        who gets in: guard, login, sessions
    facts/       what pages show, as values: most of it pure, so that it is tested without a browser
    components/  what pages are made of: elements with their scripts
    pages/       one file per page, listed in registry.py
"""
