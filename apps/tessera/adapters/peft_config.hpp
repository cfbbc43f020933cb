// adapter_config.json of the library PEFT.
// Included after adapters/updates.hpp.
#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "adapters/updates.hpp"

namespace tessera::app {

/// What the file says of the updates. Values that are wrong, or that nothing here computes, are
/// noted in `problems`.
struct PeftConfig {
  std::int64_t rank = 8;
  double alpha = 8;
  bool rank_stabilized = false;
  bool dora = false;
  std::map<std::string, std::int64_t> ranks;  // of modules that have another one, by pattern
  std::map<std::string, double> alphas;
  std::vector<std::string> problems;

  /// The update of a module.
  nn::LowRankUpdate of(const std::string& module) const;
};

/// Error (input): the file cannot be read, or describes another kind of adapter.
PeftConfig read_peft_config(const std::string& file);

/// The text of the file. `modules` are all modules of the model that have a weight: target_modules
/// names kinds of layers where all of a kind have an update. Error (input): layers with and without
/// dora, or with and without rank_stabilized.
std::string peft_config(const Updates& updates, const std::set<std::string>& modules,
                        const std::string& base);

}  // namespace tessera::app
