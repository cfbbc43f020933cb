#include "generators.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <ostream>
#include <sstream>

namespace tessera::testing {
namespace {

template <class T>
std::ostream& write_list(std::ostream& out, const std::vector<T>& list) {
  out << '[';
  for (std::size_t i = 0; i < list.size(); ++i) {
    out << (i == 0 ? "" : ", ") << list[i];
  }
  return out << ']';
}

/// `least` to `most`, both possible; smaller ones are nearer to `least`.
int draw(int least, int most) { return *rc::gen::inRange(least, most + 1); }

/// The permutation of a number; that of 0 is the identity.
std::vector<int> permutation(int count, int number) {
  std::vector<int> left(static_cast<std::size_t>(count));
  std::iota(left.begin(), left.end(), 0);
  std::vector<int> order;
  for (int choices = count; choices > 0; --choices) {
    const auto chosen = left.begin() + number % choices;
    number /= choices;
    order.push_back(*chosen);
    left.erase(chosen);
  }
  return order;
}

const std::string& draw_of(const std::vector<std::string>& list) {
  return list[static_cast<std::size_t>(draw(0, static_cast<int>(list.size()) - 1))];
}

std::string draw_placement(int dims, const Partials& partials) {
  const int kinds = partials.norms.empty() ? 2 : 3;
  switch (draw(0, partials.values.empty() ? 1 : kinds)) {
    case 1:
      return "Shard(" + std::to_string(draw(0, dims - 1)) + ")";
    case 2:
      return draw_of(partials.values);
    case 3:
      return draw_of(partials.norms);
    default:
      return "Replicate";
  }
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const PlacedText& placed) {
  return write_list(write_list(out, placed.placements) << ", order ", placed.order);
}

std::ostream& operator<<(std::ostream& out, const Conversion& conversion) {
  write_list(out << "mesh ", conversion.mesh);
  write_list(out << ", tensor ", conversion.shape);
  return out << ", from " << conversion.from << ", to " << conversion.to;
}

rc::Gen<PlacedText> placements(int axes, int dims, const Partials& partials) {
  return rc::gen::exec([=] {
    PlacedText placed;
    int orders = 1;
    for (int axis = 0; axis < axes; ++axis) {
      placed.placements.push_back(draw_placement(dims, partials));
      orders *= axis + 1;
    }
    placed.order = permutation(axes, draw(0, orders - 1));
    return placed;
  });
}

rc::Gen<std::vector<std::int64_t>> shapes(int dims, int most) {
  return rc::gen::exec([=] {
    std::vector<std::int64_t> shape(static_cast<std::size_t>(draw(1, dims)));
    std::ranges::generate(shape, [&] { return draw(0, most); });
    return shape;
  });
}

rc::Gen<Conversion> conversions(const ConversionLimits& limits) {
  return rc::gen::exec([limits] {
    Conversion made;
    const int axes = draw(1, limits.axes);
    int ranks = 1;
    for (int axis = 0; axis < axes; ++axis) {
      const int extent = draw(1, std::min(4, limits.ranks / ranks));
      made.mesh.push_back(extent);
      ranks *= extent;
    }
    made.shape = *shapes(limits.dims, limits.extent);
    const auto dims = static_cast<int>(made.shape.size());
    made.from = *placements(axes, dims, limits.partials);
    made.to = *placements(axes, dims, {.values = limits.partials.values});
    for (std::size_t axis = 0; axis < made.mesh.size(); ++axis) {
      const std::string& from = made.from.placements[axis];
      if (std::ranges::count(limits.partials.norms, from) > 0 && draw(0, 3) == 3) {
        made.to.placements[axis] = from;
      }
    }
    return made;
  });
}

std::ostream& operator<<(std::ostream& out, const ChangedSchedule& schedule) {
  constexpr const char* changes[] = {"removed", "exchanged", "repeated"};
  return out << "kind " << schedule.kind << ", " << schedule.ranks << " ranks x "
             << schedule.stages_per_rank << " stages, " << schedule.micro_batches
             << " micro-batches; of rank " << schedule.rank << ", action " << schedule.place
             << " is " << changes[schedule.change] << " (" << schedule.other << ")";
}

rc::Gen<ChangedSchedule> changed_schedules(int kinds) {
  return rc::gen::exec([kinds] {
    ChangedSchedule made;
    made.kind = draw(0, kinds - 1);
    made.ranks = draw(1, 4);
    made.stages_per_rank = draw(1, 3);
    made.micro_batches = draw(1, 8);
    made.change = draw(0, 2);
    made.rank = static_cast<std::uint32_t>(draw(0, made.ranks - 1));
    made.place = static_cast<std::uint32_t>(draw(0, 99));
    made.other = static_cast<std::uint32_t>(draw(0, 99));
    return made;
  });
}

std::ostream& operator<<(std::ostream& out, const ProgramCall& call) {
  return out << "operator " << call.op << " of " << call.first << " and " << call.second;
}

rc::Gen<std::vector<ProgramCall>> program_calls(int operators, int most) {
  const auto below = [](std::uint32_t end) { return rc::gen::inRange<std::uint32_t>(0, end); };
  const auto call = rc::gen::build<ProgramCall>(
      rc::gen::set(&ProgramCall::op, below(static_cast<std::uint32_t>(operators))),
      rc::gen::set(&ProgramCall::first, below(100)),
      rc::gen::set(&ProgramCall::second, below(100)));
  // The size is that of the list: each call is any, also in a short one.
  return rc::gen::resize(
      most, rc::gen::container<std::vector<ProgramCall>>(rc::gen::resize(rc::kNominalSize, call)));
}

namespace {

/// A text in TOML's quotes, with what these escape.
std::string draw_text() {
  static const std::vector<std::string> parts = {"a",   "run", " ",       "\\\"",   "\\\\", "\\n",
                                                 "\\t", "#",   "'",       "= [",    "ü",    "日本",
                                                 ".",   "{x}", "\\u0001", "\\u007f"};
  std::string text = "\"";
  for (int count = draw(0, 4); count > 0; --count) {
    text += draw_of(parts);
  }
  return text + "\"";
}

std::string draw_number(double low, double high) {
  const double width = std::min(high - low, 8.0);
  std::ostringstream text;
  text.precision(17);
  switch (draw(0, 2)) {
    case 0:
      text << low + width * draw(0, 64) / 64;
      break;
    case 1:  // digits that no double has exactly
      text << low + width * draw(1, 999) / 1000;
      break;
    default:
      text << std::clamp(std::pow(10.0, -draw(0, 12)), low, low + width);
  }
  // A number of TOML has a point or an exponent.
  return text.str() + (text.str().find_first_of(".e") == std::string::npos ? ".0" : "");
}

std::string draw_value(const ConfigKey& key) {
  switch (key.type) {
    case ConfigKey::Type::truth:
      return draw(0, 1) == 0 ? "false" : "true";
    case ConfigKey::Type::integer: {
      const double most = std::min(key.high - key.low, 40.0);
      return std::to_string(static_cast<std::int64_t>(key.low) + draw(0, static_cast<int>(most)));
    }
    case ConfigKey::Type::number:
      return draw_number(key.low, key.high);
    case ConfigKey::Type::word:
      return '"' + draw_of(key.words) + '"';
    case ConfigKey::Type::text:
      break;
  }
  return draw_text();
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Setting& setting) {
  return out << setting.path << " = " << setting.value;
}

rc::Gen<std::vector<Setting>> settings(const std::vector<ConfigKey>& keys, int most) {
  return rc::gen::exec([keys, most] {
    std::vector<std::size_t> left(keys.size());
    std::iota(left.begin(), left.end(), std::size_t{0});
    std::vector<Setting> all;
    for (int count = draw(0, most); count > 0 && !left.empty(); --count) {
      const auto chosen = left.begin() + draw(0, static_cast<int>(left.size()) - 1);
      const ConfigKey& key = keys[*chosen];
      left.erase(chosen);
      all.push_back({key.path, draw_value(key)});
    }
    return all;
  });
}

}  // namespace tessera::testing
