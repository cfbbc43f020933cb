export module tessera.plugin:data_file;

import tessera.base;
import :registrar;
import :stamp;
import :file;

export namespace tessera::plugin {

/// Plugins that are files of data instead of libraries: those with this ending, each of which
/// provides one name of one kind. A module that has such a format declares it.
struct DataFileFormat {
  std::string ending;  // of the file's name: ".family.toml"
  std::string kind;
  /// Reads a file's text, and registers what it provides. Throws Error (input) that begins with the
  /// file's name.
  std::function<void(const std::string& file, std::string_view text, Registrar& registrar)> read;
};

/// Makes a format known to every Host of the process; once for each ending.
bool declare_data_files(DataFileFormat format);

/// The format of a file of this name; null: it is none of data.
const DataFileFormat* data_file_format(std::string_view file);
/// What the search takes from folders: "*.so", "*.family.toml", ...
bool is_plugin_name(std::string_view file);

/// Gate one for both: read_stamp() of a library; of a file of data, what it provides.
StampReading stamp_of(const LibraryFile& file);
/// Gate two of a file of data; returns "" or why it is refused.
std::string read_and_register(const DataFileFormat& format, const LibraryFile& file,
                              Registrar& registrar);

}  // namespace tessera::plugin
