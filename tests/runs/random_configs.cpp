// Random configs, made smaller where they fail: a config is refused by the line that is wrong, or
// its description as TOML is read back as the same.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"
#include "generators.hpp"
#include "property.hpp"

import tessera.base;
import tessera.options;
import tessera.runs;
import tessera.app.config;

namespace runs = tessera::runs;
using namespace tessera::testing;

namespace {

/// What a key takes; false: a list, a path, or JSON.
bool describe(const runs::Key& key, const runs::Slot& slot, ConfigKey& into) {
  into.path = key.path;
  const double margin = std::holds_alternative<double*>(slot) ? 0.001 : 1;
  into.low = std::max(key.range.low, -1000.0) + (key.range.low_open ? margin : 0);
  into.high = std::min(key.range.high, 1e6) - (key.range.high_open ? margin : 0);
  into.words = key.choices;
  if (std::holds_alternative<bool*>(slot)) {
    into.type = ConfigKey::Type::truth;
  } else if (std::holds_alternative<std::int64_t*>(slot)) {
    into.type = ConfigKey::Type::integer;
  } else if (std::holds_alternative<double*>(slot)) {
    into.type = ConfigKey::Type::number;
  } else if (!key.choices.empty() && !key.is_path) {
    into.type = ConfigKey::Type::word;
  } else if (key.path == "log.sample_prompt") {
    into.type = ConfigKey::Type::text;
  } else {
    return false;
  }
  return true;
}

std::vector<ConfigKey> described_keys() {
  std::vector<ConfigKey> keys;
  runs::RunSpec spec;
  spec.parallel.resize(1);
  for (const runs::Key& key : runs::config_keys()) {
    if (ConfigKey one; !key.in_list() && describe(key, key.slot(spec, 0), one)) {
      keys.push_back(one);
    }
  }
  return keys;
}

}  // namespace

TEST_CASE("a random config is refused by its line, or its text is read back as the same") {
  const std::vector<ConfigKey> keys = described_keys();
  CHECK(keys.size() > 60);
  int accepted = 0;
  property("config", 2000, [&] {
    const std::vector<Setting> all = *settings(keys, 5);
    // Whole paths: a default is beside the config, wherever that is.
    std::string text =
        "data.text = [\"/a.txt\"]\ncheckpoint.folder = \"/c\"\nlog.metrics = \"/m\"\n";
    for (const Setting& setting : all) {
      text += setting.path + " = " + setting.value + "\n";
    }
    runs::RunSpec spec;
    const std::string problem =
        input_error([&] { spec = tessera::app::parse_config(text, "/run.toml"); });
    if (!problem.empty()) {
      check(contains(problem, "/run.toml:"), text + "is refused without a line: " + problem);
      return;
    }
    ++accepted;
    const std::string written = tessera::app::to_toml(spec);
    const runs::RunSpec back = tessera::app::parse_config(written, "/elsewhere/run.toml");
    check(runs::to_json(back) == runs::to_json(spec), text + "is read back otherwise:\n" + written +
                                                          runs::to_json(spec) + "\n" +
                                                          runs::to_json(back));
    check(tessera::app::to_toml(back) == written, "the text of the text differs:\n" + written);
  });
  CHECK(accepted > 500);
}
