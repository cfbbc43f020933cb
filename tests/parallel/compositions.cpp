// Everything that a run may use, in pairs and triples: each combination is refused before the ranks
// start, with a reason, or computes what one rank does. The table in docs/combinations.md is made
// here: TESSERA_WRITE_COMBINATIONS_PAGE=1 build/release/bin/test_compositions
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.plugin;
import tessera.mesh;
import tessera.tensor;
import tessera.collective;
import tessera.dtensor;
import tessera.program;
import tessera.capture;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import tessera.train;
import tessera.app.config;
import tessera.runs;

#include "features.hpp"
#include "support.hpp"

using namespace tessera;
using namespace tessera::app;
using namespace parallel_test;

namespace {

constexpr Set divisions = just(expert_parallel) | just(pipeline);
constexpr Set layouts = just(fully_sharded) | just(hybrid) | just(tensor_parallel) |
                        just(sequence_parallel) | just(loss_parallel) | just(context_parallel) |
                        divisions;

/// FSDP is a part of hybrid sharding. Stages and experts are tried in every pair, and in triples
/// with another layout: what two options of the same rank do to each other, other triples try.
bool is_sensible(Set set) {
  const bool of_layouts = std::popcount(set & layouts) > 1;
  return (!has(set, fully_sharded) || !has(set, hybrid)) &&
         ((set & divisions) == 0 || std::popcount(set) < 3 || of_layouts);
}

/// What decides the losses of one rank.
Set numerics_of(Set set) {
  return set & (just(float8) | just(qlora) | just(bf16) | just(expert_parallel));
}

double tolerance_of(Set set) { return has(set, float8) ? 2e-2 : has(set, bf16) ? 4e-3 : 2e-5; }

std::vector<double> losses_of(const runs::Run& run) {
  std::vector<double> losses;
  on_ranks(static_cast<int>(run.config.ranks()), [&](int rank) {
    runs::Trainer trainer(run);
    for (int step = 0; step < 3; ++step) {
      const double loss = trainer.step().loss;
      if (rank == 0) {
        losses.push_back(loss);
      }
    }
  });
  return losses;
}

/// Bytes of parameters that a rank receives in a step.
double gathered(const runs::Trial& trial) {
  const auto found = trial.account.collectives.find({"shard", "all_gather"});
  return found == trial.account.collectives.end() ? 0 : static_cast<double>(found->second.bytes);
}

/// Errors: a feature has no effect on the plan of the run.
void check_effects(Set set, const runs::Trial& trial) {
  INFO(text_of(set));
  if (has(set, offload)) {
    CHECK(trial.bytes_elsewhere > 0);
  }
  if (has(set, qlora)) {
    CHECK(trial.frozen_parameters > trial.parameters / 2);
  }
  if (has(set, float8) && is_sharded(set)) {
    CHECK(gathered(trial) < gathered(runs::try_step(run_of(set & ~just(float8)))));
  }
}

/// Empty: it works, which a run shows if it `runs`. Otherwise why it is refused.
std::string refusal(Set set, bool runs, std::map<Set, std::vector<double>>& expected) {
  const runs::Run run = run_of(set);
  try {
    check_effects(set, runs::try_step(run));
  } catch (const Error& error) {
    const std::string text = error.what();
    // After the entries of the command line, which are cut where they are long.
    const std::size_t place = text.find(": ", text.find("}]"));
    return place == std::string::npos ? text : text.substr(place + 2);
  }
  if (!runs) {
    return "";
  }
  std::vector<double>& reference = expected[numerics_of(set)];
  if (reference.empty()) {
    reference = losses_of(one_rank_of(set));
  }
  const std::vector<double> losses = losses_of(run);
  INFO(text_of(set) << ": " << losses[0] << " " << losses[1] << " " << losses[2] << ", one rank "
                    << reference[0] << " " << reference[1] << " " << reference[2]);
  for (std::size_t step = 0; step < 3; ++step) {
    CHECK(std::abs(losses[step] - reference[step]) <= tolerance_of(set) * reference[step]);
  }
  return "";
}

std::string page(const std::map<Set, std::string>& refused) {
  std::ostringstream out;
  out << "# Combinations\n\n"
         "What a run may combine, tried by a test with a small Llama, and with a small Mixtral "
         "where experts are split: `+` works, which means that three steps\nhave the losses of "
         "one rank; a number is refused before the ranks start, for the reason below. All groups "
         "of three were tried too, of expert parallel\nand pipeline those with another layout: "
         "those of which every pair works work, unless the list below names them. Hybrid is "
         "Replicate on one axis and FSDP on\nanother; Offload is with FSDP; a pipeline has two "
         "stages and micro-batches of one row.\n\n| |";
  for (unsigned i = 1; i < features; ++i) {
    out << " " << feature_names[i] << " |";
  }
  out << "\n| --- |";
  for (unsigned i = 1; i < features; ++i) {
    out << " --- |";
  }
  out << "\n";
  std::vector<std::string> reasons;
  const auto number_of = [&](const std::string& reason) {
    const auto found = std::ranges::find(reasons, reason);
    const auto number = found - reasons.begin();
    if (found == reasons.end()) {
      reasons.push_back(reason);
    }
    return number + 1;
  };
  for (unsigned i = 0; i + 1 < features; ++i) {
    out << "| " << feature_names[i] << " |";
    for (unsigned j = 1; j < features; ++j) {
      const Set pair = just(Feature{i}) | just(Feature{j});
      if (j <= i || !is_sensible(pair)) {
        out << " |";
      } else if (const auto found = refused.find(pair); found != refused.end()) {
        out << " " << number_of(found->second) << " |";
      } else {
        out << " + |";
      }
    }
    out << "\n";
  }
  std::string triples;
  for (const auto& [set, reason] : refused) {
    if (std::popcount(set) == 3) {
      triples += "| " + text_of(set) + " | " + std::to_string(number_of(reason)) + " |\n";
    }
  }
  if (!triples.empty()) {
    out << "\nRefused although each pair of them works:\n\n| | |\n| --- | --- |\n" << triples;
  }
  out << "\n";
  for (std::size_t i = 0; i < reasons.size(); ++i) {
    out << i + 1 << ". " << reasons[i] << "\n";
  }
  return out.str();
}

/// Pairs of features run, and of the groups of three every n-th one.
void check_combinations(int every) {
  use_shipped_plugins();
  int groups = 0;
  std::map<Set, std::vector<double>> expected;
  std::map<Set, std::string> refused;
  const auto is_refused = [&](Set set) {
    for (const auto& [other, reason] : refused) {
      if ((set & other) == other) {
        return true;
      }
    }
    return false;
  };
  for (const int size : {2, 3}) {
    for (Set set = 1; set < 1U << features; ++set) {
      if (std::popcount(set) != size || !is_sensible(set) || is_refused(set)) {
        continue;
      }
      const bool runs = size == 2 || groups++ % every == 0;
      if (const std::string why = refusal(set, runs, expected); !why.empty()) {
        refused[set] = why;
      }
    }
  }
  const std::string path = TESSERA_SOURCE_FOLDER "/docs/combinations.md";
  const std::string now = page(refused);
  if (std::getenv("TESSERA_WRITE_COMBINATIONS_PAGE") != nullptr) {
    std::ofstream(path) << now;
  }
  std::ifstream file(path);
  std::ostringstream stored;
  stored << file.rdbuf();
  INFO("write it with TESSERA_WRITE_COMBINATIONS_PAGE=1 build/release/bin/test_compositions");
  CHECK(stored.str() == now);
}

}  // namespace

TEST_CASE("every combination computes what one rank does, or is refused with a reason") {
  check_combinations(5);
}

TEST_CASE("every combination of three computes what one rank does", "[.long]") {
  check_combinations(1);
}
