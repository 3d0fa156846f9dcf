"""Files appear whole or not at all, and nothing but a regular file is ever replaced."""

from __future__ import annotations

import os

import pytest

from k3lab.errors import BadInput
from k3lab.files import write_bytes, write_text


def test_a_pipe_stays_a_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(BadInput, match="no regular file"):
        write_text(pipe, "text")
    assert pipe.is_fifo() and os.listdir(tmp_path) == ["pipe"]


def test_a_link_leads_to_the_new_content(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink() and target.read_text() == "new"


def test_content_replaces_content(tmp_path):
    path = write_bytes(tmp_path / "new" / "file", b"one")
    write_bytes(path, b"two")
    assert path.read_bytes() == b"two" and os.listdir(path.parent) == ["file"]
