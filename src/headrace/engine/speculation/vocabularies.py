"""Whether a draft model speaks the target's language: compared id by id, once, at the start.

A draft is only a guess, so a difference could never make a text wrong; it would make every guess
wrong, silently. Not compared: the number of rows of the output heads (padding that no tokenizer
knows), and how a text is cut into tokens (the draft model never sees a text).
"""

from __future__ import annotations

from headrace.errors import UsageError
from headrace.formats.tokenizer import Tokenizer, first_difference


def check_vocabularies(
    target: Tokenizer, draft: Tokenizer, target_name: str, draft_name: str
) -> int:
    """How many ids, from 0 on, both models have; all of them are the same tokens in both.

    One vocabulary may be longer. Raises UsageError naming the first id that differs with both
    texts, or the end ids when no text of the target can end as one of the draft's does.
    """
    token_id = first_difference(target, draft)
    if token_id is not None:
        raise UsageError(
            f"{draft_name} cannot draft for {target_name}: token {token_id} is "
            f"{_shown(draft, token_id)} in the draft's vocabulary and "
            f"{_shown(target, token_id)} in the target's."
        )
    ends, draft_ends = target.eos_ids, draft.eos_ids
    if ends and draft_ends and not set(ends) & set(draft_ends):
        raise UsageError(
            f"{draft_name} cannot draft for {target_name}: its texts end with token "
            f"{draft_ends[0]}, {_shown(draft, draft_ends[0])}, and the target's with token "
            f"{ends[0]}, {_shown(target, ends[0])}."
        )
    return min(target.num_ids, draft.num_ids)


def _shown(tokenizer: Tokenizer, token_id: int) -> str:
    """A token for an error message: its text, or its bytes where they are no text by themselves."""
    data = tokenizer.token_bytes(token_id)
    try:
        text = repr(data.decode())
    except UnicodeDecodeError:
        text = repr(data)
    return text + (" (a control token)" if tokenizer.is_special(token_id) else "")
