module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>
module tessera.app.plan;

import tessera.base;
import tessera.app.base;
import tessera.app.config;
import tessera.app.run;

namespace tessera::app {
namespace {

constexpr int rounds = 3;  // of all candidates, as other programs on the machine come and go
constexpr std::int64_t steps = 12;

std::vector<std::string> with(std::vector<std::string> all, const std::vector<std::string>& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace

void run_best(const SearchedRun& run, SearchResult& result, std::size_t count,
              const std::vector<std::string>& words) {
  count = std::min(count, result.planned.size());
  const ScratchFolder folder("search");
  std::vector<std::vector<double>> seconds(count);
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t k = 0; k < count; ++k) {
      const LayoutCandidate& one = result.planned[k];
      const std::vector<std::string> overrides =
          with(with(run.overrides, one.overrides), {"optimizer.warmup=1", "data.validation=0"});
      const Config config = load_config(run.file, overrides);
      seconds[k].push_back(usual_seconds(
          train_first_steps(run.file, with(words, overrides), config, steps, folder.path())));
    }
  }
  for (std::size_t k = 0; k < count; ++k) {
    result.planned[k].run = median(seconds[k]);
  }
  const auto end = result.planned.begin() + static_cast<std::ptrdiff_t>(count);
  std::ranges::sort(result.planned.begin(), end, {}, &LayoutCandidate::run);
}

}  // namespace tessera::app
