// Small runs in several layouts, and what they are compared with.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "program.hpp"

namespace faults {

using Words = std::vector<std::string>;

/// A layout, how its steps are taken, and how many of them.
struct Kind {
  std::string name;
  std::size_t ranks;
  Words arguments;
  std::int64_t steps = 150;
};

extern const Kind sharded;
extern const Kind captured;
extern const Kind mixed;
extern const Kind hybrid;
extern const Kind pipeline;
extern const Kind captured_pipeline;
extern const Kind lone;

Words with(Words words, const Words& more);

/// The words of a command that trains it.
Words train(const Kind& kind, const Words& more);
/// So that it heals, with a heartbeat of a second.
Words healing(const Kind& kind, const Words& more = {});

/// The steps, losses and norms of a metrics file, as they are written: all digits.
Words curve(const RunFolder& folder);

/// What a run is compared with: its curve, and the bytes of its last checkpoint but for the config
/// in it. Those before may be of other steps: one that ranks could not complete is made up for.
struct Ending {
  Words curve;
  std::map<std::string, std::string> files;
  friend bool operator==(const Ending&, const Ending&) = default;
};
Ending ending_of(const RunFolder& folder);

/// The same run without healing, and without anything that happens.
const Ending& undisturbed(const Kind& kind, const Words& more = {});

}  // namespace faults
