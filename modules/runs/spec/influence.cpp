module;
#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>
module tessera.runs;

// Which keys determine a run's loss curve.
namespace tessera::runs {
namespace {

/// Keys that may change while the curve stays what it is.
constexpr std::array<std::string_view, 27> without_influence = {"model.family",
                                                                "model.base",
                                                                "data.text",
                                                                "data.jsonl",
                                                                "data.sources",
                                                                "data.columns",
                                                                "data.exclude",
                                                                "data.validation_files",
                                                                "data.tokens",
                                                                "train.steps",
                                                                "train.epochs",
                                                                "train.micro_batch",
                                                                "train.head_rows",
                                                                "train.activation_checkpointing",
                                                                "train.threads",
                                                                "train.device",
                                                                "train.heal",
                                                                "train.heal_every",
                                                                "train.heal_after",
                                                                "train.heal_limit",
                                                                "train.heal_copies",
                                                                "train.heal_wait",
                                                                "train.checksums",
                                                                "train.on_spike",
                                                                "train.precision",
                                                                "data.validate_every",
                                                                "data.validation_windows"};

}  // namespace

/// Whether a key is one of the fingerprint's. A key that is new in these sections is, until
/// somebody lists it above.
bool has_influence(const Key& key) {
  constexpr std::array<std::string_view, 6> sections = {"model", "data",    "train",
                                                        "dpo",   "experts", "optimizer"};
  return std::ranges::find(sections, key.section()) != sections.end() &&
         std::ranges::find(without_influence, key.path) == without_influence.end();
}

std::vector<std::string> allowable_names(const std::string& family) {
  std::vector<std::string> names;
  for (const Key& key : config_keys(family)) {
    if (has_influence(key)) {
      if (names.empty() || !names.back().starts_with(key.section() + ".")) {
        names.push_back(key.section());
      }
      names.push_back(key.path);
    }
  }
  names.emplace_back("data.content");
  names.emplace_back("graph.transforms");
  return names;
}

}  // namespace tessera::runs
