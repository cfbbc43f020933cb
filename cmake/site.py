"""Hooks of the site (mkdocs.yml): README.md is its first page, links to sources show their path. The reference has a page
with the names of `import tessera;`, and a page for each module: its exported declarations with their comments, in the
order of its table of contents."""

import pathlib
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")


IMPORT = re.compile(r"^export import :(\w+);\s*// (.*)$", re.MULTILINE)
EXPORTED = re.compile(r"^export namespace [\w:]+ \{$.*?^\}  // namespace", re.MULTILINE | re.DOTALL)


def exported(text):
    """The exported declarations of an interface, without what their classes keep private."""
    lines = []
    for block in EXPORTED.findall(text):
        hidden = False
        for line in block.splitlines()[1:-1]:
            if re.match(r"^ private:|^ protected:$", line):
                hidden = line.strip() == "private:"
            elif line.startswith("};"):
                hidden = False
            if not hidden:
                lines.append(line)
        lines.append("")
    return "\n".join(lines).strip("\n")


def reference(folder):
    """The page of a module; none where it exports nothing of its own."""
    facade = (folder / f"{folder.name}.cppm").read_text()
    about = " ".join(line[3:] for line in facade.splitlines() if line.startswith("// "))
    interfaces = {}
    for path in folder.rglob("*.cppm"):
        text = path.read_text()
        partition = re.search(r"^export module tessera\.[\w.]+:(\w+);", text, re.MULTILINE)
        if partition:
            interfaces[partition.group(1)] = (path, text)
    page = [f"# {folder.name}", "", about, "", "```cpp", f"import tessera.{folder.name};", "```", ""]
    for name, line in IMPORT.findall(facade):
        path, text = interfaces[name]
        code = exported(text)
        if code:
            page += [f"## {name.replace('_', ' ')}", "", f"{line} (`{path.relative_to(ROOT)}`)", "", "```cpp", code, "```", ""]
    return "\n".join(page) if len(page) > 8 else None


PUBLIC = ROOT / "modules" / "tessera"
USING = re.compile(r"^using ([^;]+);|^// ([^\n]*(?:\n// [^\n]*)*)\n(?=using|export namespace)|^export namespace", re.MULTILINE)


def declared_at(name, pages):
    """The place in the reference where a name is declared: the page of a module that the interface imports."""
    kinds = r"(?:class|struct|enum class|concept)"
    declared = re.compile(rf"^(?:{kinds} {name}\b(?!;)|using (?:tessera::)?{name}(?: =|;)|(?!{kinds}|using)[a-zA-Z\[].*?[\s*&]{name}(?:[(;{{]| =))")
    for module, page in pages.items():
        for section in page.split("\n## ")[1:]:
            if any(declared.search(line.partition("//")[0]) for line in section.splitlines()):
                return f"{module}.md#{section.partition(chr(10))[0].replace(' ', '-')}"
    raise SystemExit(f"docs: {name}, which `import tessera;` offers, is declared in none of {', '.join(pages)}")


def public_names(pages):
    """The page of `import tessera;`: its names, each with a link to its declaration."""
    facade = (PUBLIC / "tessera.cppm").read_text()
    page = ["# import tessera", "", " ".join(line[3:] for line in facade.splitlines() if line.startswith("// ")), ""]
    for partition, line in IMPORT.findall(facade):
        text = (PUBLIC / f"{partition}.cppm").read_text()
        imported = re.findall(r"^import tessera\.(\w+);", text, re.MULTILINE)
        for module in list(imported):  # and what they export of others
            interface = (ROOT / "modules" / module / f"{module}.cppm").read_text()
            imported += re.findall(r"^export import tessera\.(\w+);", interface, re.MULTILINE)
        among = {module: pages[module] for module in imported if module in pages}
        page += [f"## {partition}", "", line.capitalize() + ".", ""]
        for match in USING.finditer(text, text.index("\n\n")):
            if match.group(2):
                page += ["", f"**{' '.join(match.group(2).split(chr(10) + '// '))}**", ""]
            elif match.group(1):
                names = [name.split("::")[-1] for name in re.split(r",\s*", match.group(1))]
                page += [" ".join(f"[`{name}`]({declared_at(name, among)})" for name in names)]
    return "\n".join(page)


def on_config(config):
    modules = [folder for folder in sorted((ROOT / "modules").iterdir()) if (folder / f"{folder.name}.cppm").exists()]
    pages = {folder.name: page for folder in modules if folder != PUBLIC and (page := reference(folder))}
    config["reference"] = {"tessera": public_names(pages), **pages}
    entries = [{name: f"reference/{name}.md"} for name in config["reference"]]
    config["nav"].append({"Reference": [entries[0], {"Modules": entries[1:]}]})
    return config


def on_files(files, config):
    text = (ROOT / "README.md").read_text()
    text = re.sub(r"\]\(docs/", "](", text)
    files.append(File.generated(config, "index.md", content=text))
    for name, page in config["reference"].items():
        files.append(File.generated(config, f"reference/{name}.md", content=page))
    return files


def on_page_markdown(markdown, page, config, files):
    if page.file.src_uri.startswith("reference/"):
        return markdown
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
