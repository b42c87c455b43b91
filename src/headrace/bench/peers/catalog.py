"""The engines a comparison knows, and how to install each. Imports none of them.

To add one: a file here with a class that answers to peer.Peer, and a line in PEERS.
"""

from __future__ import annotations

import difflib
import importlib
from dataclasses import dataclass
from importlib import metadata, util

from headrace.bench.peers.peer import Peer
from headrace.errors import UsageError


@dataclass(frozen=True, slots=True)
class PeerEntry:
    """name: as the user writes it, which is the package's. title: for tables. module: what its
    worker imports. where: "file:class" in this room. install: the command that installs it, built
    for this machine where that matters."""

    name: str
    title: str
    module: str
    where: str
    install: str

    @property
    def installed(self) -> bool:
        """Whether its package is there; nothing of it is imported."""
        try:
            metadata.version(self.name)
        except metadata.PackageNotFoundError:
            return False
        return util.find_spec(self.module) is not None

    def make(self) -> Peer:
        """Its peer.Peer. Only in a worker: this imports the engine."""
        file, _, name = self.where.partition(":")
        peer: Peer = getattr(importlib.import_module(f"headrace.bench.peers.{file}"), name)()
        return peer


HEADRACE = PeerEntry(
    "headrace", "Headrace", "headrace", "headrace_engine:HeadraceEngine", "pip install headrace"
)

#: --with names → entries, in the order of tables.
PEERS: dict[str, PeerEntry] = {
    entry.name: entry
    for entry in (
        PeerEntry(
            "llama-cpp-python",
            "llama.cpp",
            "llama_cpp",
            "llama_cpp_python:LlamaCpp",
            'CMAKE_ARGS="-DGGML_NATIVE=ON" pip install --no-binary llama-cpp-python '
            "llama-cpp-python",
        ),
        PeerEntry(
            "ik-llama-cpp-python",
            "ik_llama.cpp",
            "ik_llama_cpp",
            "ik_llama_cpp_python:IkLlamaCpp",
            "scripts/install-ik-llama (plain pip installs a generic AVX2 build, and its source "
            "package lacks a file)",
        ),
        PeerEntry(
            "transformers",
            "transformers",
            "transformers",
            "transformers_torch:Transformers",
            "pip install torch transformers accelerate gguf",
        ),
        PeerEntry(
            "openvino-genai",
            "OpenVINO GenAI",
            "openvino_genai",
            "openvino_genai:OpenVino",
            "pip install openvino-genai",
        ),
    )
}


def find_peers(names: str) -> list[PeerEntry]:
    """A comma list of --with names → entries, each once. Raises UsageError for an unknown one."""
    found: dict[str, PeerEntry] = {}
    for name in (part.strip().lower().replace("_", "-") for part in names.split(",")):
        if name not in PEERS:
            near = difflib.get_close_matches(name, PEERS, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise UsageError(
                f"--with names the unknown engine {name!r}.{hint} Known: {', '.join(PEERS)}."
            )
        found[name] = PEERS[name]
    return list(found.values())
