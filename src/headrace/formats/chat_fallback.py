"""Chat templates of our own, for architectures whose files often come without one.

Only where the turn format belongs to the architecture, so that no guess is involved.
"""

from __future__ import annotations

#: Gemma's turns: no system role, so a system message opens the first user turn; the assistant is
#: called "model"; roles alternate.
_GEMMA = """\
{{ bos_token }}
{%- set turns = messages %}
{%- set opening = "" %}
{%- if messages and messages[0].role == "system" %}
    {%- set opening = messages[0].content ~ "\\n\\n" %}
    {%- set turns = messages[1:] %}
{%- endif %}
{%- for turn in turns %}
    {%- if (turn.role == "user") != (loop.index0 % 2 == 0) %}
        {{- raise_exception("user and assistant messages must alternate, a user message first") }}
    {%- endif %}
    {{- "<start_of_turn>" ~ ("model" if turn.role == "assistant" else turn.role) ~ "\\n" }}
    {{- (opening if loop.first else "") ~ (turn.content | trim) ~ "<end_of_turn>\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- "<start_of_turn>model\\n" }}
{%- endif %}
"""

#: Architecture (GGUF or Hugging Face name) -> template.
FALLBACK_TEMPLATES: dict[str, str] = {
    "gemma": _GEMMA,
    "gemma2": _GEMMA,
    "gemma3": _GEMMA,
    "gemma3_text": _GEMMA,
}
