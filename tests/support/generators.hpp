// Generators of inputs for properties (property.hpp). What they make are plain values, which a test
// turns into the library's: so this header comes before the imports.
#pragma once
#include <rapidcheck.h>

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

namespace tessera::testing {

/// Where a tensor is on a mesh: a placement for each axis (for parse_placement), and the order of
/// the axes that shard one dim.
struct PlacedText {
  std::vector<std::string> placements;
  std::vector<int> order;
};
std::ostream& operator<<(std::ostream& out, const PlacedText& placed);

/// A tensor on a mesh that goes from one layout to another.
struct Conversion {
  std::vector<std::int64_t> mesh;   // extents of its axes
  std::vector<std::int64_t> shape;  // of the whole tensor; extents may be 0
  PlacedText from;
  PlacedText to;
};
std::ostream& operator<<(std::ostream& out, const Conversion& conversion);

/// Which placements there are besides Replicate and Shard.
struct Partials {
  std::vector<std::string> values = {"Partial"};
  std::vector<std::string> norms = {};  // nothing but the same can become one
};
/// Of a tensor of so many dims on so many axes. Smaller ones have Replicate, and axes in order.
rc::Gen<PlacedText> placements(int axes, int dims, const Partials& partials = {});

/// Extents of a tensor of at most so many dims: 0 to `most`.
rc::Gen<std::vector<std::int64_t>> shapes(int dims, int most);

struct ConversionLimits {
  int axes = 3;
  int ranks = 12;
  int dims = 3;
  int extent = 9;
  Partials partials = {};
};
/// Smaller ones have fewer axes, ranks and dims, smaller extents, and Replicate.
rc::Gen<Conversion> conversions(const ConversionLimits& limits = {});

/// The size of a pipeline, and one change of its schedule.
struct ChangedSchedule {
  int kind = 0;  // a number below the count of kinds
  int ranks = 1;
  int stages_per_rank = 1;
  int micro_batches = 1;
  int change = 0;           // 0: removed, 1: exchanged, 2: repeated
  std::uint32_t rank = 0;   // whose list is changed, modulo
  std::uint32_t place = 0;  // of which action, modulo
  std::uint32_t other = 0;  // with or before which one, modulo
};
std::ostream& operator<<(std::ostream& out, const ChangedSchedule& schedule);

/// Smaller ones have fewer ranks, stages and micro-batches, and earlier places.
rc::Gen<ChangedSchedule> changed_schedules(int kinds);

/// A call of a program, which a test turns into one of its operators and into operands among the
/// values there are.
struct ProgramCall {
  std::uint32_t op = 0;
  std::uint32_t first = 0;   // modulo the number of values
  std::uint32_t second = 0;  // the same
};
std::ostream& operator<<(std::ostream& out, const ProgramCall& call);

/// At most so many calls of so many operators. Smaller ones have fewer calls, earlier operators and
/// earlier values.
rc::Gen<std::vector<ProgramCall>> program_calls(int operators, int most);

/// A key of configs and what it takes.
struct ConfigKey {
  enum class Type { truth, integer, number, word, text };
  std::string path;  // "train.steps"
  Type type = Type::truth;
  double low = 0;  // of an integer or a number: both are allowed
  double high = 1;
  std::vector<std::string> words = {};
};
/// A key with its value as TOML has it: "train.steps", "3".
struct Setting {
  std::string path;
  std::string value;
};
std::ostream& operator<<(std::ostream& out, const Setting& setting);

/// Settings of different keys, at most so many. Smaller ones have fewer keys, and values near the
/// lower end.
rc::Gen<std::vector<Setting>> settings(const std::vector<ConfigKey>& keys, int most);

}  // namespace tessera::testing
