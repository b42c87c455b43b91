"""The `llm` command with extra-openai-models.yaml, as its users type it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MODELS = """\
- model_id: headrace
  model_name: smollm2-135m
  api_base: {api}
  supports_schema: true
  supports_tools: true
"""


@pytest.fixture
def llm_home(tmp_path: Path, api: str) -> Path:
    (tmp_path / "extra-openai-models.yaml").write_text(MODELS.format(api=api))
    return tmp_path


def llm(home: Path, *arguments: str, text: str | None = None) -> str:
    command = Path(sys.executable).with_name("llm")
    environment = os.environ | {"LLM_USER_PATH": str(home), "OPENAI_API_KEY": "none"}
    done = subprocess.run(
        [str(command), *arguments], input=text, capture_output=True, text=True, env=environment,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


PROMPT = ("-m", "headrace", "-o", "temperature", "0", "-o", "max_tokens", "12")


def test_the_model_is_listed(llm_home: Path) -> None:
    assert "headrace" in llm(llm_home, "models", "list")


def test_prompt_streamed_and_whole(llm_home: Path) -> None:
    streamed = llm(llm_home, *PROMPT, "Name a river.")
    whole = llm(llm_home, *PROMPT, "--no-stream", "Name a river.")
    assert streamed.strip()
    assert streamed == whole
    assert llm(llm_home, *PROMPT, "-s", "Be brief.", text="Name a river.").strip()
    [log, *_] = json.loads(llm(llm_home, "logs", "list", "-n", "1", "--json"))
    assert log["model"] == "headrace"
    assert log["response"]


def test_a_conversation_goes_on(llm_home: Path) -> None:
    llm(llm_home, *PROMPT, "Name a river.")
    assert llm(llm_home, *PROMPT, "-c", "And another one?").strip()
    logs = json.loads(llm(llm_home, "logs", "list", "-n", "2", "--json"))
    assert len({log["conversation_id"] for log in logs}) == 1


def test_schema(llm_home: Path) -> None:
    schema = {
        "type": "object", "additionalProperties": False, "required": ["name", "km"],
        "properties": {"name": {"type": "string", "maxLength": 20},
                       "km": {"type": "integer", "minimum": 1, "maximum": 9999}},
    }  # fmt: skip
    text = llm(llm_home, "-m", "headrace", "--schema", json.dumps(schema), "Name a river.")
    answer = json.loads(text)
    assert set(answer) == {"name", "km"}
    assert 1 <= answer["km"] <= 9999
