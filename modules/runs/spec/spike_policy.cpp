module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.options;

namespace tessera::runs {

std::optional<SpikePolicy> spike_policy(const RunSpec& config) {
  constexpr std::array<std::pair<const char*, SpikeAction>, 4> actions = {
      {{"warn", SpikeAction::warn},
       {"skip", SpikeAction::skip},
       {"rollback", SpikeAction::rollback},
       {"stop", SpikeAction::stop}}};
  if (config.train.on_spike.text == JsonText().text) {
    return std::nullopt;
  }
  const std::string place = config.place("train.on_spike");
  PluginOptions section(fmt::format(R"({{"on_spike": {}}})", config.train.on_spike.text),
                        place.substr(0, place.rfind(": ")));
  PluginOptions table = section.table("on_spike");
  SpikePolicy policy;
  policy.over = table.number("over", policy.over, "a number more than 0",
                             [](double over) { return over > 0; });
  std::vector<std::string> words;
  words.reserve(actions.size());
  for (const auto& [word, action] : actions) {
    words.emplace_back(word);
  }
  const std::string word = table.choice("action", words.front(), words);
  policy.action = std::ranges::find(actions, word, [](const auto& one) {
                    return std::string(one.first);
                  })->second;
  section.finish();
  return policy;
}

}  // namespace tessera::runs
