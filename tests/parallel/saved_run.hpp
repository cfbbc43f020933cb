// Runs that are saved and continued. Include it after the imports that training/trainer.hpp needs.
#pragma once
#include <string>
#include <vector>

#include "support.hpp"

namespace parallel_test {

/// Rank 0's losses of the next two steps.
inline void two_losses(tessera::runs::Trainer& trainer, int rank, std::vector<double>& losses) {
  for (int step = 0; step < 2; ++step) {
    const double loss = trainer.step().loss;
    if (rank == 0) {
      losses.push_back(loss);
    }
  }
}

/// Two steps, a save into the folder, and the losses of the next two.
inline std::vector<double> save(const tessera::runs::Run& run, const std::string& folder) {
  tessera::runs::Run saving = run;
  saving.config.checkpoint.folder = folder;
  std::vector<double> losses;
  on_ranks(static_cast<int>(saving.config.ranks()), [&](int rank) {
    tessera::runs::Trainer trainer(saving);
    trainer.step();
    trainer.step();
    tessera::RunCheckpoints checkpoints = trainer.checkpoints([](const std::string&) {});
    checkpoints.after_step(true);
    two_losses(trainer, rank, losses);
  });
  return losses;
}

/// The losses of the two steps after the checkpoint.
inline std::vector<double> continue_from(const tessera::runs::Run& run,
                                         const std::string& checkpoint) {
  std::vector<double> losses;
  on_ranks(static_cast<int>(run.config.ranks()), [&](int rank) {
    tessera::runs::Trainer trainer(run);
    trainer.resume(checkpoint);
    two_losses(trainer, rank, losses);
  });
  return losses;
}

}  // namespace parallel_test
