// Who can change a file: the path that leads to it, and what it leads to. Plain C++.
#pragma once
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::plugin {

/// Refuses what anyone but root and this user can change. Each refusal says how to fix it, and is
/// given once.
class Trust {
 public:
  /// `program` is a file of the running program, by default libtessera. The owner of a folder on
  /// the way to it is accepted for that folder: who could replace the program gains nothing by
  /// replacing a plugin. (Root in a container often works in a checkout that belongs to another
  /// user.)
  explicit Trust(const std::string& program = this_library());

  /// A plain file: itself, its folder, every folder and symbolic link on the way to it.
  /// False when there is no such file.
  bool check_file(const std::string& path);
  /// A folder where a library is searched, and the way to it. Where it does not exist, others must
  /// not be able to make it. False when it does not exist.
  bool check_folder(const std::string& path);

  /// Checks a folder that this process makes where it does not exist: in a sticky folder
  /// nobody else can replace it then. Check it again when it is made.
  bool check_own_folder(const std::string& path);

  /// In front of the following refusals, such as "library 'libx.so' (needed by /y.so): ".
  void set_subject(std::string subject) { subject_ = std::move(subject); }
  void refuse(std::string_view why);
  const std::vector<std::string>& refusals() const { return refusals_; }

  /// The path of libtessera.
  static std::string this_library();

 private:
  /// The file that a path leads to: "" when it leads to nothing.
  std::string follow(const std::string& path, std::string& last_folder);
  /// A sticky folder is safe to pass through: only its owner renames what is in it. It is not safe
  /// to search in.
  void check(std::string_view what, const std::string& path, bool sticky_is_safe);

  std::set<std::string> program_folders_;
  std::string subject_;
  std::set<std::string> refused_;  // paths
  std::vector<std::string> refusals_;
};

}  // namespace tessera::plugin
