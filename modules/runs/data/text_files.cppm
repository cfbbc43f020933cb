export module tessera.runs:text_files;

import tessera.base;

// The files of data.text and data.jsonl.

export namespace tessera::runs {

/// The files that names stand for.
struct TextFiles {
  std::vector<std::filesystem::path> files;
  /// Entries below the named folders that are not read: "2 hidden, 1 pipe (texts/p)". "": none.
  std::string left_out;
};

/// Expands names of files, folders (all regular files below them, sorted by path) and shell
/// patterns. Links are followed, those to folders too; a folder or file that is reached twice is
/// used once, at its first place. Below folders, hidden and empty files and what is not a file are
/// left out; of a folder with files that a source reads, others than these and JSON lines are, too.
/// Throws one Error (input) that lists every name without a file, and every file or
/// folder that cannot be read, is empty although it is named, or not text.
TextFiles find_text_files(std::span<const std::string> names);

}  // namespace tessera::runs
