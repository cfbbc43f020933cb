module;
#include <cstdint>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.train;

namespace tessera::runs {

std::vector<RankRows> rows_of_ranks(const Run& run) {
  std::vector<RankRows> all;
  for (int rank = 0; rank < static_cast<int>(run.config.ranks()); ++rank) {
    on_meta(rank, [&] {
      const Trainer trainer(run, setup_of(run));
      trainer.division().each(0, [&](const MicroPart& part) {
        all.push_back({.rank = rank,
                       .micro_batch = part.number,
                       .first = part.batch.first,
                       .rows = part.batch.rows});
      });
    });
  }
  return all;
}

}  // namespace tessera::runs
