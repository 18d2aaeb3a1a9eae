"""Hugging Face's own library and a cache that Muster has filled, or will find: `hub_client.py read|fill CACHE REPOSITORY FILE [HUB]`."""

import sys
from pathlib import Path

from huggingface_hub import hf_hub_download, scan_cache_dir, snapshot_download


def read(cache: str, repository: str, file: str) -> None:
    """What Muster has downloaded is there for others, whole and without a word of warning."""
    scanned = scan_cache_dir(cache)
    assert not scanned.warnings, scanned.warnings
    (repo,) = scanned.repos
    assert repo.repo_id == repository, repo
    (revision,) = repo.revisions
    assert "main" in revision.refs, revision
    assert file in [found.file_name for found in revision.files], revision
    path = Path(hf_hub_download(repository, file, cache_dir=cache, local_files_only=True))
    assert path.stat().st_size == repo.size_on_disk, repo
    assert path.read_bytes()[:4] == b"GGUF"
    assert (Path(snapshot_download(repository, cache_dir=cache, local_files_only=True)) / file).exists()


def fill(cache: str, repository: str, file: str, hub: str) -> None:
    """What others have downloaded is there for Muster."""
    hf_hub_download(repository, file, cache_dir=cache, endpoint=hub)
    read(cache, repository, file)


if __name__ == "__main__":
    {"read": read, "fill": fill}[sys.argv[1]](*sys.argv[2:])
    print("ok")
