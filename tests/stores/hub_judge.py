# What huggingface_hub reads from the hub of the tests, against the files that the hub has.
import hashlib
import pathlib
import sys

import huggingface_hub
from huggingface_hub.errors import EntryNotFoundError, RevisionNotFoundError

folder = pathlib.Path(sys.argv[1])
files = {str(p.relative_to(folder / "files")): p.read_bytes() for p in (folder / "files").rglob("*") if p.is_file()}
api = huggingface_hub.HfApi()

info = api.model_info("owner/name")
assert info.sha == "a" * 40, info.sha
assert sorted(s.rfilename for s in info.siblings) == sorted(files)

listed = {e.path: e for e in api.list_repo_tree("owner/name", recursive=True)}
assert sorted(listed) == sorted(files), listed
for name, entry in listed.items():
    assert entry.size == len(files[name])
    if entry.lfs is not None:
        assert entry.lfs.sha256 == hashlib.sha256(files[name]).hexdigest()
    else:
        blob = b"blob %d\0" % len(files[name]) + files[name]
        assert entry.blob_id == hashlib.sha1(blob).hexdigest()

for name, content in files.items():
    path = huggingface_hub.hf_hub_download("owner/name", name)
    assert pathlib.Path(path).read_bytes() == content, name
    meta = huggingface_hub.get_hf_file_metadata(huggingface_hub.hf_hub_url("owner/name", name))
    assert meta.commit_hash == info.sha and meta.size == len(content)

snapshot = pathlib.Path(huggingface_hub.snapshot_download("owner/name"))
assert {str(p.relative_to(snapshot)) for p in snapshot.rglob("*") if p.is_file()} == set(files)

for call, error in ((lambda: huggingface_hub.hf_hub_download("owner/name", "none"), EntryNotFoundError),
                    (lambda: huggingface_hub.hf_hub_download("owner/name", "config.json", revision="none"),
                     RevisionNotFoundError)):
    try:
        call()
        raise AssertionError("no error")
    except error:
        pass
print(f"huggingface_hub {huggingface_hub.__version__} reads {len(files)} files of the hub of the tests")
