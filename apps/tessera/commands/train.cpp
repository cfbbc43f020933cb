#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "commands/commands.hpp"
#include "config/config.hpp"
#include "data/dataset.hpp"
#include "data/tokenizer.hpp"
#include "plan_table.hpp"
#include "table.hpp"

import tessera.base;

namespace tessera::app {
namespace {

void check_plugin_paths(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    if (!std::filesystem::exists(path)) {
      fail_input(fmt::format("plugin {}: there is no such file or folder", path));
    }
  }
}

}  // namespace

int run_train(const TrainArguments& arguments) {
  const Config config = load_config(arguments.config, arguments.overrides);
  check_plugin_paths(config.plugins.paths);
  check_plugin_paths(arguments.plugins);
  const bool ready_tokens = !config.data.tokens.empty();
  const std::int64_t vocab = ready_tokens ? 0 : make_tokenizer(config.data.tokenizer)->vocab();
  const LlamaConfig shape = model_shape(config, vocab);
  const Dataset data(config, shape.vocab);
  data.check_all();
  const std::string text = format_table(plan_rows(config, shape, data));
  std::fwrite(text.data(), 1, text.size(), stdout);
  return 0;
}

}  // namespace tessera::app
