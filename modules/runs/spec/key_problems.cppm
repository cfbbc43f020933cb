module tessera.runs:key_problems;

import tessera.base;
import :problems;
import :spec;

// Problems of keys: how checks of a config name the key that is wrong.

namespace tessera::runs {

/// Adds problems of a config's keys.
class KeyProblems {
 public:
  /// `unread`: keys whose values could not be read, so that nothing is known of them.
  KeyProblems(const RunSpec& config, const std::set<std::string>& unread, Problems& problems)
      : unread_(unread), config_(config), problems_(problems) {}

  bool known(std::initializer_list<const char*> keys) const;
  /// Adds a problem at the first of `keys` that was given.
  void add(const std::vector<std::string>& keys, const std::string& text);
  /// Adds a problem of the key for an error of `check`, whose text begins with `thing`.
  void add_errors(const char* key, std::string_view thing, const std::function<void()>& check);

 protected:
  const std::set<std::string>& unread_;

 private:
  const RunSpec& config_;
  Problems& problems_;
};

/// Checks the section [graph].
void check_graph(const RunSpec& config, KeyProblems& problems);

}  // namespace tessera::runs
