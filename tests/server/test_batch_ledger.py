"""The output file of run-batch: whatever happens to it, no line is lost, doubled or replaced."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import UsageError
from headrace.server.batch.ledger import Ledger
from headrace.server.batch.lines import answer_line, parse_line, read_lines, refusal_line
from headrace.server.batch.run import survey
from headrace.server.errors import ApiError, invalid

RUN = "0123abcd"
LIMIT = 1000


def write_input(path: Path, count: int = 6) -> None:
    lines = [
        json.dumps({"custom_id": f"a{i}", "url": "/v1/completions", "body": {"prompt": str(i)}})
        for i in range(count)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def answer(path: Path, source: Path, numbers: set[int]) -> None:
    with Ledger(path) as ledger:
        for line in read_lines(source, LIMIT):
            if line.number in numbers and not ledger.check(line):
                ledger.append(answer_line(line.id(RUN), f"a{line.number}", b'{"text":"\\u00fc"}'))


def test_cut_anywhere_only_the_last_line_is_missing(tmp_path: Path) -> None:
    """A kill can cut the file at any byte."""
    source, out, cut = tmp_path / "in", tmp_path / "out", tmp_path / "cut"
    write_input(source)
    answer(out, source, {2, 3, 5})
    data = out.read_bytes()
    for size in range(len(data) + 1):
        cut.write_bytes(data[:size])
        whole = data[:size].count(b"\n")
        with Ledger(cut) as ledger:
            assert list(ledger.done) == [2, 3, 5][:whole]
            kept = data[: data[:size].rfind(b"\n") + 1]
            assert cut.read_bytes() == kept
            assert ledger.num_dropped_bytes == size - len(kept)
            assert survey(source, ledger, LIMIT).kept == whole
        answer(cut, source, {2, 3, 5})
        assert cut.read_bytes() == data


def test_zeros_of_a_lost_page_are_dropped(tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    write_input(source)
    answer(out, source, {1, 2})
    data = out.read_bytes()
    out.write_bytes(data + bytes(100))
    with Ledger(out) as ledger:
        assert list(ledger.done) == [1, 2]
    assert out.read_bytes() == data


@pytest.mark.parametrize(
    "content",
    [
        b"precious notes",
        b"precious notes\n",
        b'{"id": "batch_req_1"}\n',
        b'{"id":"batch_req_1_0123456789abcdef_0123abcd"\n',
        b'{"custom_id":"a"}\n',
        b"[1]\n",
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
    ],
)
def test_a_file_of_somebody_else_is_not_touched(tmp_path: Path, content: bytes) -> None:
    out = tmp_path / "out"
    out.write_bytes(content)
    with pytest.raises(UsageError, match="line 1 was not written by run-batch"):
        Ledger(out)
    assert out.read_bytes() == content


def test_a_line_that_is_answered_twice(tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    write_input(source)
    answer(out, source, {1})
    out.write_bytes(out.read_bytes() * 2)
    with pytest.raises(UsageError, match="answers line 1 twice"):
        Ledger(out)


def test_a_changed_input_is_refused(tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    write_input(source)
    answer(out, source, {2, 6})
    good = source.read_text(encoding="utf-8")
    with Ledger(out) as ledger:
        source.write_text(good + good.splitlines()[0], encoding="utf-8")  # longer is fine
        assert survey(source, ledger, LIMIT).total == 7
        source.write_text(good.replace("\n", "\r\n"), encoding="utf-8")  # and so is another end
        assert survey(source, ledger, LIMIT).kept == 2
        source.write_text(good.replace('"1"', '"x"'), encoding="utf-8")
        with pytest.raises(UsageError, match="another line 2"):
            survey(source, ledger, LIMIT)
        source.write_text("".join(good.splitlines(True)[:3]), encoding="utf-8")
        with pytest.raises(UsageError, match="answers line 6"):
            survey(source, ledger, LIMIT)
        ledger.check_run(RUN)
        with pytest.raises(UsageError, match="another model"):
            ledger.check_run("ffffffff")


def test_two_runs_cannot_share_a_file(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with Ledger(out), pytest.raises(UsageError, match="another run-batch"):
        Ledger(out)
    code = (
        "import sys, pathlib\n"
        "from headrace.server.batch.ledger import Ledger\n"
        "Ledger(pathlib.Path(sys.argv[1]))\n"
        "print('open', flush=True)\n"
        "sys.stdin.read()\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(out)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
    )  # fmt: skip
    assert other.stdout is not None
    assert other.stdout.readline() == "open\n"
    with pytest.raises(UsageError, match="another run-batch"):
        Ledger(out)
    other.kill()  # the lock goes with its owner
    other.wait()
    Ledger(out).close()


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    """The child's files may have 1000 bytes: a write in mid-line is cut short, then fails."""
    out = tmp_path / "out"
    code = (
        "import pathlib, resource, sys\n"
        "from headrace.server.batch.ledger import Ledger\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "ledger = Ledger(pathlib.Path(sys.argv[1]))\n"
        "written = failed = 0\n"
        "for number in range(30):\n"
        "    name = b'batch_req_%d_0123456789abcdef_0123abcd' % number\n"
        "    try:\n"
        '        ledger.append(b\'{"id":"%b"}\\n\' % name)\n'
        "        written += 1\n"
        "    except OSError:\n"
        "        failed += 1\n"
        "print(written, failed)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    told = subprocess.run(
        [sys.executable, "-c", code, str(out)], capture_output=True, text=True, check=True, env=env
    ).stdout.split()
    written, failed = map(int, told)
    assert failed > 0
    assert out.read_bytes().endswith(b"\n")
    with Ledger(out) as ledger:
        assert len(ledger.done) == written > 10


@pytest.mark.parametrize("name", ["/dev/null", "/dev/full", "pipe"])
def test_only_a_plain_file_is_written(tmp_path: Path, name: str) -> None:
    if name == "pipe":
        os.mkfifo(tmp_path / name)
    with pytest.raises(UsageError, match="is not a plain file"):
        Ledger(tmp_path / name)


def test_what_the_system_could_not_keep_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A system tells once that it lost what was written; from then on nothing goes well."""
    source, out = tmp_path / "in", tmp_path / "out"
    write_input(source)
    lines = [answer_line(line.id(RUN), "a", b'{"text":""}') for line in read_lines(source, LIMIT)]
    told = iter([OSError(5, "Input/output error")])

    def fsync(_: int) -> None:
        for error in told:
            raise error

    monkeypatch.setattr(os, "fsync", fsync)
    ledger = Ledger(out)
    ledger.append(lines[0])
    for fails in (ledger.sync, lambda: ledger.append(lines[1]), ledger.sync, ledger.close):
        with pytest.raises(OSError, match="Input/output error"):
            fails()
    assert out.read_bytes() == lines[0]


def test_lines_are_numbered_and_long_ones_are_never_held(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.write_bytes(b"\n  \n" + b"x" * LIMIT + b"\n" + b"y" * 5000 + b"\nend")
    lines = list(read_lines(source, LIMIT))
    assert [line.number for line in lines] == [3, 4, 5]
    assert [line.data is None for line in lines] == [False, True, False]
    assert len({line.digest for line in lines}) == 3
    _, error = parse_line(lines[1], LIMIT, 8)
    assert isinstance(error, ApiError)
    assert error.code == "line_too_long"


def test_a_mark_of_utf8_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    source = tmp_path / "in"
    write_input(source, 2)
    plain = [line.data for line in read_lines(source, LIMIT)]
    source.write_bytes(b"\xef\xbb\xbf" + source.read_bytes())
    assert [line.data for line in read_lines(source, LIMIT)] == plain
    source.write_bytes(b"\xef\xbb\xbf\n")
    assert list(read_lines(source, LIMIT)) == []


def test_refusals_are_lines_of_the_format() -> None:
    line = json.loads(refusal_line("batch_req_1", "a", invalid("No.", "n")))
    assert line["response"]["status_code"] == 400
    assert line["response"]["body"]["error"]["param"] == "n"
    assert line["error"] == {"code": "invalid_request_error", "message": "No."}
    line = json.loads(answer_line("batch_req_1", None, b'{"a": 1}'))
    assert line["response"] == {"status_code": 200, "request_id": "batch_req_1", "body": {"a": 1}}
    assert line["error"] is None
