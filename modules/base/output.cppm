export module tessera.base:output;

import :standard;

// Files and folders where the user says, and the standard output of a run.

export namespace tessera {

/// The bytes of a file. Error (input): it cannot be read, or is a folder.
std::string read_input(const std::string& path);

/// Replaces the file (see tessera::write_file). Error (input) that begins with `thing`: it cannot
/// be written.
void write_output(const std::string& thing, const std::string& path, const std::string& text);

/// Calls `write` with a folder whose files become those of `folder` as the last act: a reader finds
/// all of it or nothing. Error: `folder` is not new or empty, or cannot be written.
void write_folder(const std::string& folder,
                  const std::function<void(const std::filesystem::path&)>& write);

/// Writes to stdout for people while a run goes on: see SideWork::output.
void print_progress(std::string_view text);

/// Error: what was printed to stdout has not arrived there. `error`: the system's number for why,
/// if it is known.
void check_stdout(int error = 0);

/// Writes a file of an export: the text and a line end. Error: it cannot be written.
void write_text(const std::string& path, const std::string& text);

}  // namespace tessera
