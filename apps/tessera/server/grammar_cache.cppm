module tessera.app.server:grammar_cache;

import tessera.app.base;
import tessera.grammar;
import :server_counts;

// Grammars of the last requests, compiled.

namespace tessera::app {

/// Compiles what requests' texts must follow, and keeps what was asked for last, with the tokens
/// that were found to follow: programs send the same schema again and again. One thread calls it.
class GrammarCache {
 public:
  /// The counts must outlive it.
  explicit GrammarCache(ServerCounts& counts) : counts_(counts) {}

  /// What `make` gives, or gave for an equal key.
  std::shared_ptr<grammar::Constraint> get(
      const std::string& key, const std::function<std::shared_ptr<grammar::Constraint>()>& make);

 private:
  static constexpr std::size_t most = 8;  // each has at most some tens of MB

  ServerCounts& counts_;
  /// The one that was used last is the first.
  std::vector<std::pair<std::string, std::shared_ptr<grammar::Constraint>>> kept_;
};

}  // namespace tessera::app
