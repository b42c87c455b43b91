#!/usr/bin/env python3
"""Records tests/golden/logit_hashes.json: SHA-256 of the logits of the four real models.

Every model, with f32 and with bf16 KV, is computed on every instruction-set level of this machine,
with 1 and with 2 threads; all must agree before anything is written. Existing entries are kept
unless their model is named. Usage: tools/record_logit_hashes.py [ALIAS …]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from headrace.engine.model import OpenModel, open_model
from headrace.formats.aliases import ALIASES
from headrace.native import core
from headrace.ops.kv import KVFormat
from headrace.ops.numerics import NUMERICS_ID
from headrace.verify.golden import CHUNKS, POSITIONS, logit_hashes
from headrace.verify.workload import make_workload

FILE = Path(__file__).parents[1] / "tests" / "golden" / "logit_hashes.json"
FORMATS = (KVFormat.F32, KVFormat.BF16)


def record(model: OpenModel) -> dict[str, Any]:
    """The entry of one model. Exits with a message when two ways to compute it disagree."""
    program = model.program
    text = make_workload(
        lambda s: model.tokenizer.encode(s, add_special=False),
        model.tokenizer.num_ids,
        program.max_context,
        program.kv_groups,
        length=sum(CHUNKS),
    ).text[: sum(CHUNKS)]
    hashes, weights = {}, None
    for kv_format in FORMATS:
        found = {}
        for isa in core().available_isas():
            for threads in (1, 2):
                found[isa, threads], weights = logit_hashes(
                    program, text, kv_format, isa=isa, num_threads=threads, weights=weights
                )
        first = next(iter(found.values()))
        if any(other != first for other in found.values()):
            sys.exit(f"{model.name}, KV {kv_format.value}: levels or thread counts disagree")
        print(f"{model.name}, KV {kv_format.value}: equal on {sorted(found)}", file=sys.stderr)
        hashes[kv_format.value] = first
    return {
        "file_sha256": ALIASES[model.name].sha256,
        "token_ids": " ".join(map(str, text)),
        "logits_sha256": hashes,
    }


def main() -> None:
    held = json.loads(FILE.read_text()) if FILE.exists() else {"models": {}}
    entries = held["models"] if held.get("numerics_id") == NUMERICS_ID else {}
    for name in sys.argv[1:] or list(ALIASES):
        entries[name] = record(open_model(name))
    document = {
        "what": "SHA-256 of the little-endian float32 logits after each position, by KV format; "
        "written by tools/record_logit_hashes.py",
        "numerics_id": NUMERICS_ID,
        "chunks": list(CHUNKS),
        "positions": list(POSITIONS),
        "models": {name: entries[name] for name in ALIASES if name in entries},
    }
    FILE.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
