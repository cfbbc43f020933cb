module tessera.app.commands:stored_paths;

import tessera.app.base;
import tessera.stores;

// What options of the command line do with addresses of stores in place of paths.

extern "C++" {  // not of this module
namespace CLI {
class App;
}
}

namespace tessera::app {

/// Gives each option that takes a path of this machine only a check that refuses addresses with the
/// reason. Error (run): an option takes a text, and stored_paths.cpp does not say what it is.
void check_paths(CLI::App& program);

/// Copies on this machine of what arguments of a command name in stores. They stay as long as the
/// object.
class InputCopies {
 public:
  /// Puts the copy's path in the place of an address; a path stays. Errors: those of stores::fetch.
  void take(std::string& path, bool is_model = false);
  /// The same of files; an address of several files (a folder, or with '*') becomes all of them,
  /// sorted by name.
  void take(std::vector<std::string>& paths);
  /// The same of files of tasks, with the files below their folder that tasks read, where the store
  /// has lists.
  void take_tasks(std::vector<std::string>& paths);
  /// The same of a checkpoint or another model: checkpoints of Tessera are read where they are.
  void take_unless_checkpoint(std::string& path);
  /// What was named: the address of a copy (and the name in it, where it has several files), else
  /// the path itself.
  std::string named(const std::string& path) const;

 private:
  std::vector<stores::LocalInput> copies_;
  std::map<std::string, std::string> names_;  // by the copies' paths
};

/// Writes a new folder: `write` gets the folder to write into. At an address, the files are sent
/// from a temporary folder when all are there; the one of `last` that there is is sent after all
/// others, so that a reader, who begins with it, finds everything or nothing. Errors (input): the
/// folder, or what is below the address, has files already; the store can only be read; there are
/// several files, and none of `last`. After a failure, what was sent is removed.
void write_place(const std::string& place, const std::vector<std::string>& last,
                 const std::function<void(const std::filesystem::path& folder)>& write);

}  // namespace tessera::app
