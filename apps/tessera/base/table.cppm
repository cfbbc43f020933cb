export module tessera.app.base:table;

import :standard;

// Short tables as text.

export namespace tessera::app {

using TableRows = std::vector<std::vector<std::string>>;

/// Rows of cells as lines with aligned columns, two spaces between them.
/// Widths count UTF-8 characters, not bytes. The last column is not padded.
std::string format_table(const TableRows& rows, const std::string& indent = "  ");

/// The text in lines of at most 100 characters, where its words allow that: `first` begins the
/// first one, `indent` the others.
std::string wrap_text(const std::string& text, const std::string& first, const std::string& indent);

}  // namespace tessera::app
