"""Hugging Face's own library and a cache that Muster has filled, or will find: `hub_client.py read CACHE REPOSITORY FILE REVISION` or
`hub_client.py fill CACHE REPOSITORY FILE REVISION HUB`."""

import sys
from pathlib import Path

from huggingface_hub import hf_hub_download, scan_cache_dir, snapshot_download


def read(cache: str, repository: str, file: str, revision: str) -> None:
    """What Muster has downloaded is there for others, whole and without a word of warning."""
    scanned = scan_cache_dir(cache)
    assert not scanned.warnings, scanned.warnings
    (repo,) = scanned.repos
    assert repo.repo_id == repository, repo
    (found,) = repo.revisions
    assert revision in found.refs, found
    assert file in [each.file_name for each in found.files], found
    path = Path(hf_hub_download(repository, file, revision=revision, cache_dir=cache, local_files_only=True))
    assert path.stat().st_size == repo.size_on_disk, repo
    assert path.read_bytes()[:4] == b"GGUF"
    folder = snapshot_download(repository, revision=revision, cache_dir=cache, local_files_only=True)
    assert (Path(folder) / file).exists()


def fill(cache: str, repository: str, file: str, revision: str, hub: str) -> None:
    """What others have downloaded is there for Muster."""
    hf_hub_download(repository, file, revision=revision, cache_dir=cache, endpoint=hub)
    read(cache, repository, file, revision)


if __name__ == "__main__":
    {"read": read, "fill": fill}[sys.argv[1]](*sys.argv[2:])
    print("ok")
