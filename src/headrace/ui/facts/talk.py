"""A conversation as it is on the page, and what an answer cost. Pure: no page, no HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Settings:
    """Of the next answers. seed: None = another every time."""

    system: str = ""
    temperature: float = 0.8
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.05
    max_tokens: int = 512
    seed: int | None = None

    def to_body(self) -> dict[str, Any]:
        """The fields of a request."""
        body: dict[str, Any] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "max_tokens": self.max_tokens,
        }
        if self.seed is not None:
            body["seed"] = self.seed
        return body


@dataclass(slots=True)
class Account:
    """What one answer cost. Times in seconds; None = not known (yet)."""

    num_tokens: int = 0
    ttft_s: float | None = None
    tok_per_s: float | None = None
    bound_fraction: float | None = None
    num_prompt_tokens: int | None = None
    num_cached_tokens: int | None = None
    acceptance: float | None = None
    finish_reason: str | None = None
    seed: int | None = None
    thinking: str = ""
    note: str = ""

    def read(self, event: Mapping[str, Any]) -> str:
        """Takes one event of a stream in; returns its text."""
        text = ""
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            text += delta.get("content") or choice.get("text") or ""
            self.thinking += delta.get("reasoning_content") or delta.get("reasoning") or ""
            self.num_tokens += len(choice.get("token_ids") or ())
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
        timings = event.get("timings")
        if timings:
            self._read_timings(timings)
            self.seed = event.get("seed")
        return text

    def _read_timings(self, timings: Mapping[str, Any]) -> None:
        self.num_tokens = timings.get("predicted_n", self.num_tokens)
        if timings.get("ttft_ms") is not None:
            self.ttft_s = timings["ttft_ms"] / 1e3
        self.tok_per_s = timings.get("predicted_per_second") or self.tok_per_s
        self.bound_fraction = timings.get("bound_fraction")
        cached, computed = timings.get("cache_n"), timings.get("prompt_n")
        if cached is not None and computed is not None:
            self.num_cached_tokens, self.num_prompt_tokens = cached, cached + computed
        if timings.get("draft_n"):
            self.acceptance = timings.get("draft_n_accepted", 0) / timings["draft_n"]

    def facts(self) -> list[str]:
        """One short phrase each, what is unknown left out."""
        facts = [f"{self.num_tokens} token{'s' * (self.num_tokens != 1)}"]
        if self.tok_per_s:
            facts.append(f"{self.tok_per_s:.1f} tok/s")
        if self.ttft_s is not None:
            facts.append(f"first token after {_seconds(self.ttft_s)}")
        if self.bound_fraction is not None:
            facts.append(f"{self.bound_fraction:.0%} of the bound{_above(self.bound_fraction)}")
        if self.num_prompt_tokens is not None:
            facts.append(
                f"{self.num_cached_tokens} of {self.num_prompt_tokens} prompt tokens cached"
            )
        if self.acceptance is not None:
            facts.append(f"{self.acceptance:.0%} of the drafts accepted")
        if self.seed is not None:
            facts.append(f"seed {self.seed}")
        if self.note:
            facts.append(self.note)
        elif self.finish_reason == "length":
            facts.append("cut at the length asked for")
        return facts


@dataclass(slots=True)
class Turn:
    """One message of a conversation. account: of an answer."""

    role: str
    text: str
    account: Account | None = None


@dataclass(slots=True)
class Conversation:
    """The messages so far, oldest first."""

    turns: list[Turn] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.turns.append(Turn("user", text))

    def answered(self, text: str, account: Account) -> None:
        self.turns.append(Turn("assistant", text, account))

    def rewind(self, index: int) -> None:
        """Forgets the turn at index and all that follow."""
        del self.turns[index:]

    def messages(self, system: str = "") -> list[dict[str, str]]:
        """What a request carries. Empty answers are left out: templates refuse some of them."""
        first = [{"role": "system", "content": system}] if system.strip() else []
        return first + [
            {"role": turn.role, "content": turn.text}
            for turn in self.turns
            if turn.text or turn.role == "user"
        ]


def _above(share: float) -> str:
    """Nothing beats a bound but a machine that was slower when its rates were measured."""
    return " (the machine was busier when that was measured)" if share > 1.05 else ""


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"
