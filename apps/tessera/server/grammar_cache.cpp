module;
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>
module tessera.app.server;

import :grammar_cache;
import tessera.grammar;

namespace tessera::app {

std::shared_ptr<grammar::Constraint> GrammarCache::get(
    const std::string& key, const std::function<std::shared_ptr<grammar::Constraint>()>& make) {
  const auto found = std::ranges::find(kept_, key, [](const auto& kept) { return kept.first; });
  if (found != kept_.end()) {
    counts_.add_grammar(true);
    std::rotate(kept_.begin(), found, found + 1);
    return kept_.front().second;
  }
  kept_.emplace(kept_.begin(), key, make());
  counts_.add_grammar(false);
  if (kept_.size() > most) {
    kept_.pop_back();
  }
  return kept_.front().second;
}

}  // namespace tessera::app
