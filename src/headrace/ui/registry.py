"""The pages, in the order of the navigation."""

from __future__ import annotations

from headrace.ui.pages import chat, inspector, lab, limits, plan, sampling, serving
from headrace.ui.shell import Page

PAGES: tuple[Page, ...] = (
    Page("chat", "/", "Chat", "chat_bubble_outline", chat.build),
    Page("inspector", "/inspector", "Token inspector", "troubleshoot", inspector.build),
    Page("sampling", "/sampling", "Sampling", "casino", sampling.build),
    Page("serving", "/serving", "Serving", "monitor_heart", serving.build),
    Page("limits", "/limits", "Limits", "speed", limits.build),
    Page("plan", "/plan", "Plan", "calculate", plan.build),
    Page("lab", "/lab", "Lab", "science", lab.build),
)
