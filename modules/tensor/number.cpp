module;
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>
module tessera.tensor;

import tessera.base;
import :attributes;
import :number;

namespace tessera {
namespace {

using ArgumentSources = std::array<SourceId, Attributes::dynamic_room>;

/// What a thread knows of numbers: expressions and the sources of calls' dynamic arguments, each by
/// their ids less 1.
struct Sources {
  using Key = std::tuple<NumberOp, std::uint64_t, std::string, SourceId, SourceId>;
  std::vector<NumberSource> all = {};
  std::map<Key, SourceId> ids = {};
  std::set<std::string> read = {};  // variables of which plain numbers were taken
  std::vector<ArgumentSources> calls = {};
  std::map<ArgumentSources, std::uint32_t> call_ids = {};

  SourceId intern(NumberSource source) {
    Key key{source.op, __builtin_bit_cast(std::uint64_t, source.constant), source.variable,
            source.left, source.right};
    const auto [found, is_new] = ids.try_emplace(std::move(key), 0);
    if (is_new) {
      all.push_back(std::move(source));
      found->second = static_cast<SourceId>(all.size());
    }
    return found->second;
  }
  SourceId of(const Number& number) {
    return number.source() != 0
               ? number.source()
               : intern({.op = NumberOp::constant, .constant = number.untraced_value()});
  }
  void note_read(SourceId id) {
    if (id == 0) {
      return;
    }
    const NumberSource& source = all[id - 1];
    if (source.op == NumberOp::variable) {
      read.insert(source.variable);
    }
    note_read(source.left);
    note_read(source.right);
  }
};

Sources& sources() {
  thread_local Sources own;
  return own;
}

}  // namespace

const NumberSource& source_of(SourceId id) {
  const Sources& own = sources();
  require(id > 0 && id <= own.all.size(), "number: its source belongs to another thread");
  return own.all[id - 1];
}

void note_read(SourceId id) {
  if (Sources& own = sources(); id <= own.all.size()) {  // otherwise another thread's
    own.note_read(id);
  }
}

std::vector<std::string> take_read_variables() {
  const std::set<std::string> read = std::exchange(sources().read, {});
  return {read.begin(), read.end()};
}

double apply(NumberOp op, double left, double right) {
  switch (op) {
    case NumberOp::add:
      return left + right;
    case NumberOp::subtract:
      return left - right;
    case NumberOp::multiply:
      return left * right;
    case NumberOp::divide:
      return left / right;
    case NumberOp::negate:
      return -left;
    case NumberOp::minimum:
      return std::min(left, right);
    case NumberOp::maximum:
      return std::max(left, right);
    case NumberOp::power:
      return std::pow(left, right);
    case NumberOp::square_root:
      return std::sqrt(left);
    case NumberOp::constant:
    case NumberOp::variable:
      break;
  }
  return left;
}

Number Number::variable(std::string_view name, double value) {
  return {value, sources().intern({.op = NumberOp::variable, .variable = std::string(name)})};
}

SourceId Number::combined_source(NumberOp op, const Number& a, const Number& b) {
  Sources& own = sources();
  const bool one = op == NumberOp::negate || op == NumberOp::square_root;
  return own.intern({.op = op, .left = own.of(a), .right = one ? 0 : own.of(b)});
}

Number min(const Number& a, const Number& b) {
  return Number::combined(NumberOp::minimum, std::min(a.value_, b.value_), a, b);
}
Number max(const Number& a, const Number& b) {
  return Number::combined(NumberOp::maximum, std::max(a.value_, b.value_), a, b);
}
Number pow(const Number& base, const Number& exponent) {
  return Number::combined(NumberOp::power, std::pow(base.value_, exponent.value_), base, exponent);
}
Number sqrt(const Number& x) {
  return Number::combined(NumberOp::square_root, std::sqrt(x.value_), x, Number());
}

Count Count::variable(std::string_view name, std::int64_t value) {
  return {value, Number::variable(name, static_cast<double>(value)).source()};
}

Count Count::plus(std::int64_t constant) const {
  if (source_ == 0 || constant == 0) {
    return {value_ + constant, source_};
  }
  const auto by = static_cast<double>(constant);
  const Number moved = constant > 0 ? number() + Number(by) : number() - Number(-by);
  return {value_ + constant, moved.source()};
}

// The sources of a call's dynamic arguments.

void Attributes::trace(int word, SourceId source) {
  Sources& own = tessera::sources();
  ArgumentSources sources{};
  if (words_.traced > 0 && words_.traced <= own.calls.size()) {
    sources = own.calls[words_.traced - 1];
  }
  sources[static_cast<std::size_t>(word)] = source;
  const auto [found, is_new] = own.call_ids.try_emplace(sources, 0);
  if (is_new) {
    own.calls.push_back(sources);
    found->second = static_cast<std::uint32_t>(own.calls.size());
  }
  words_.traced = found->second;
}

SourceId Attributes::traced_source(int word) const {
  const Sources& own = sources();
  // A kernel may run on another thread, which needs none.
  return words_.traced > 0 && words_.traced <= own.calls.size()
             ? own.calls[words_.traced - 1][static_cast<std::size_t>(word)]
             : 0;
}

}  // namespace tessera
