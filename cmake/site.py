"""Hooks of the site (mkdocs.yml): README.md is its first page, and links to sources show their path."""

import pathlib
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")


def on_files(files, config):
    text = (ROOT / "README.md").read_text()
    text = re.sub(r"\]\(docs/", "](", text)
    files.append(File.generated(config, "index.md", content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    folder = (ROOT / "docs" / page.file.src_uri).parent if page.file.src_uri != "index.md" else ROOT

    def shown(match):
        label, target = match.groups()
        if "://" in target or target.startswith("#"):
            return match.group(0)
        path = (folder / target.partition("#")[0]).resolve()
        docs = ROOT / "docs"
        if page.file.src_uri == "index.md" and (docs / target.partition("#")[0]).is_file():
            return match.group(0)
        if path.is_dir():
            return label
        if path.is_relative_to(docs):
            return match.group(0)
        if not path.exists():
            raise SystemExit(f"docs: {page.file.src_uri}: {target} does not exist")
        return f"{label} (`{path.relative_to(ROOT)}`)" if label != str(path.relative_to(ROOT)) else f"`{label}`"

    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else LINK.sub(shown, part) for part in parts)
