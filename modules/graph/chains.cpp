module;
#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.graph;

import tessera.base;
import tessera.tensor;
import tessera.ops;
import tessera.record;
import :accesses;
import :block;
import :chains;
import :shadow;

namespace tessera::graph {
namespace {

using Kind = Instruction::Kind;

/// Beyond these, a longer chain saves nothing more, and the compiler takes long.
constexpr std::size_t most_calls = 64;
constexpr std::size_t most_inputs = 96;
constexpr std::size_t most_open = 4;
/// A chain of at most so many elements is computed later, after whatever is between its calls; any
/// chain after instructions that write at most so many bytes.
constexpr std::int64_t small_count = 4096;

/// Two operands of one chain: both are computed in double, or neither.
bool compute_alike(DType a, DType b) { return (a == DType::f64) == (b == DType::f64); }

struct Spreading {
  Spread spread = Spread::all;
  std::int64_t columns = 0;  // 0: any
};

/// How an operand broadcasts to the result; nothing: in a way that a chain does not have.
std::optional<Spreading> spreading_of(const Tensor& x, const Dims& shape) {
  if (x.numel() == 1) {
    return Spreading{Spread::one};
  }
  if (x.is_contiguous() && x.numel() == shape.product()) {
    return Spreading{Spread::all};
  }
  const Dims strides = operands::broadcast_strides(x, shape);
  // From the last dim: what is contiguous, or repeated; before it the other.
  const auto walk = [&](int dim, bool repeated, std::int64_t& extent) {
    std::int64_t stride = 1;
    for (; dim >= 0; --dim) {
      if (shape[dim] == 1) {
        continue;
      }
      if (strides[dim] != (repeated ? 0 : stride)) {
        break;
      }
      stride *= shape[dim];
    }
    extent = stride;
    return dim;
  };
  std::int64_t inner = 1;
  std::int64_t outer = 1;
  int dim = walk(shape.size() - 1, false, inner);
  if (inner > 1 && walk(dim, true, outer) < 0) {
    return Spreading{Spread::columns, inner};
  }
  dim = walk(shape.size() - 1, true, inner);
  if (inner > 1 && walk(dim, false, outer) < 0) {
    return Spreading{Spread::rows, inner};
  }
  return std::nullopt;
}

/// The tensors that a call writes or makes.
std::vector<int> results_of(const Instruction& i) {
  return i.op->in_place ? std::vector<int>{i.in[0]} : i.out;
}

/// Rows that are longer are kernels of their own: they would not stay in the first-level cache.
constexpr std::int64_t longest_row = 4096;

/// How an operator of rows of `x` has an operand or a result, its Op::element's `name`.
std::optional<Spread> spread_in_rows(const Tensor& y, const Tensor& x, std::string_view element,
                                     char name) {
  const std::int64_t columns = x.shape().back();
  const auto is_marked = [&](std::string_view mark) {
    return element.find(std::string(mark) + "(" + name + ")") != std::string_view::npos;
  };
  const bool is_row = y.numel() == columns && y.is_contiguous();
  if (is_marked("whole")) {
    return is_row ? std::optional(Spread::columns) : std::nullopt;
  }
  if (is_marked("sums")) {
    return is_row ? std::optional(Spread::sums) : std::nullopt;
  }
  if (!y.is_contiguous()) {
    return std::nullopt;
  }
  return y.numel() == x.numel()             ? std::optional(Spread::all)
         : y.numel() * columns == x.numel() ? std::optional(Spread::rows)
                                            : std::nullopt;
}

/// Where a tensor is.
struct Where {
  int memory = 0;
  std::int64_t first_byte = 0;
  DType dtype = DType::f32;
  friend auto operator<=>(const Where&, const Where&) = default;
};

/// A chain that may go on.
class OpenChain {
 public:
  explicit OpenChain(const Shadow& shadow) : shadow_(shadow) {}

  bool is_small() const { return count_ <= small_count; }
  /// Whether an operand is computed by the chain.
  bool leads_to(const Instruction& i) const {
    return std::ranges::any_of(i.in, [&](int number) { return made_.contains(memory(number)); });
  }

  /// Whether one of the two must stay before the other.
  bool conflicts(const Access& access) const {
    const auto is_used = [&](int memory) {
      return made_.contains(memory) || std::ranges::any_of(read_, [&](const auto& read) {
               return read.first.first.memory == memory;
             });
    };
    return std::ranges::any_of(access.reads, [&](int memory) { return made_.contains(memory); }) ||
           std::ranges::any_of(access.writes, is_used);
  }

  /// False: the call does not fit what is there.
  bool add(const Instruction& i, int place, const std::string& element) {
    const bool of_rows = element.starts_with(Chain::row_mark);
    const std::vector<int> results = results_of(i);
    const Tensor& result = at(results[0]);
    if (!chain_.calls.empty() && (result.numel() != count_ || chain_.calls.size() == most_calls ||
                                  chain_.inputs.size() + i.in.size() > most_inputs ||
                                  !compute_alike(result.dtype(), chain_.values.front().dtype))) {
      return false;
    }
    std::int64_t columns = of_rows ? result.shape().back() : columns_;
    if (columns_ != 0 && columns_ != columns) {
      return false;
    }
    std::vector<Spread> spreads;
    for (std::size_t k = 0; k < i.in.size(); ++k) {
      const int number = i.in[k];
      if (number < 0) {
        spreads.push_back(Spread::one);
        continue;
      }
      const auto spreading = of_rows ? spreading_in_rows(number, result, element, "abcde"[k])
                                     : spreading_of(at(number), result.shape());
      if (!spreading ||
          (spreading->columns != 0 && columns != 0 && spreading->columns != columns) ||
          // Other elements of what the chain computes.
          (made_.contains(memory(number)) && !is_value_at(number, spreading->spread))) {
        return false;
      }
      columns = spreading->columns != 0 ? spreading->columns : columns;
      spreads.push_back(spreading->spread);
    }
    std::vector<Spread> made(results.size(), Spread::all);
    for (std::size_t k = 0; k < results.size(); ++k) {
      const auto spreading = of_rows ? spreading_in_rows(results[k], result, element, "xyz"[k])
                                     : std::optional(Spreading{});
      if (!spreading || !may_write(results[k])) {
        return false;
      }
      made[k] = spreading->spread;
    }
    columns_ = columns;
    count_ = result.numel();
    Chain::ChainCall call{.instruction = &i,
                          .place = place,
                          .element = of_rows ? element.substr(Chain::row_mark.size()) : element,
                          .of_rows = of_rows,
                          .phase = next_phase(of_rows),
                          .first_value = static_cast<int>(chain_.values.size())};
    for (std::size_t k = 0; k < i.in.size(); ++k) {
      call.operands.push_back(operand(i.in[k], spreads[k], call.phase));
    }
    for (std::size_t k = 0; k < results.size(); ++k) {
      Value& value = values_
                         .try_emplace(where(results[k]),
                                      Value{.number = results[k], .is_made = !i.op->in_place})
                         .first->second;
      value.value = static_cast<int>(chain_.values.size());
      value.is_written = value.is_written || (i.op->in_place && !i.op->keeps_versions);
      made_.insert(memory(results[k]));
      chain_.values.push_back(
          {.dtype = at(results[k]).dtype(), .spread = made[k], .phase = call.phase});
    }
    chain_.calls.push_back(std::move(call));
    return true;
  }

  /// The chain, if it is one.
  std::optional<Chain> closed() {
    if (chain_.calls.size() < 2) {
      return std::nullopt;
    }
    chain_.columns = columns_ != 0 ? columns_ : count_;
    chain_.rows = count_ / chain_.columns;
    for (const auto& [at, made] : values_) {
      const Memory& m = shadow_.memories[index(at.memory)];
      if (m.is_input || m.is_output || m.read_later || m.last > chain_.last() ||
          chain_.values[index(made.value)].spread == Spread::sums) {
        chain_.outputs.push_back({.value = made.value,
                                  .number = made.number,
                                  .is_made = made.is_made,
                                  .is_written = made.is_written});
      } else if (made.is_made) {
        chain_.inside.push_back(at.memory);
      }
    }
    std::ranges::sort(chain_.outputs, {}, &Chain::Output::value);  // alike in all layers
    return std::move(chain_);
  }

 private:
  struct Value {
    int value = 0;
    int number = 0;
    bool is_made = false;
    bool is_written = false;
  };

  const Tensor& at(int number) const { return shadow_.tensors[index(number)]; }
  int memory(int number) const { return shadow_.memory_of[index(number)]; }
  Where where(int number) const {
    const Tensor& x = at(number);
    return {memory(number), x.offset() * static_cast<std::int64_t>(size_of(x.dtype())), x.dtype()};
  }
  bool is_whole(Spread spread) const {
    return spread == Spread::all || (spread == Spread::one && count_ == 1);
  }
  /// Whether a value is at each element of an operand that is spread so.
  bool is_value_at(int number, Spread spread) const {
    const auto found = values_.find(where(number));
    if (found == values_.end()) {
      return false;
    }
    const Spread made = chain_.values[index(found->second.value)].spread;
    return made == Spread::all ? is_whole(spread) : made == Spread::rows && spread == made;
  }

  std::optional<Spreading> spreading_in_rows(int number, const Tensor& x,
                                             const std::string& element, char name) const {
    const auto spread = spread_in_rows(at(number), x, element, name);
    return spread ? std::optional(Spreading{*spread, x.shape().back()}) : std::nullopt;
  }

  /// An operator of rows has a phase of its own.
  int next_phase(bool of_rows) const {
    if (chain_.calls.empty()) {
      return 0;
    }
    const Chain::ChainCall& before = chain_.calls.back();
    return before.phase + (of_rows || before.of_rows ? 1 : 0);
  }

  /// Whether writing the tensor changes no other elements that the chain has read or written.
  bool may_write(int number) const {
    const int written = memory(number);
    return std::ranges::all_of(
               read_,
               [&](const auto& read) {
                 return read.first.first.memory != written ||
                        (read.first.first == where(number) && is_whole(read.first.second));
               }) &&
           std::ranges::all_of(values_, [&](const auto& made) {
             return made.first.memory != written || made.first == where(number);
           });
  }

  Chain::Operand operand(int number, Spread spread, int phase) {
    if (number < 0) {
      return {.index = -1};
    }
    if (is_value_at(number, spread)) {
      return {.is_value = true, .index = values_.at(where(number)).value};
    }
    const auto [found, fresh] =
        read_.try_emplace({where(number), spread}, static_cast<int>(chain_.inputs.size()));
    if (fresh) {
      chain_.inputs.push_back({.number = number, .spread = spread});
    }
    chain_.inputs[index(found->second)].last_phase = phase;
    return {.is_value = false, .index = found->second};
  }

  const Shadow& shadow_;
  Chain chain_;
  std::int64_t columns_ = 0;  // 0: any
  std::int64_t count_ = 0;
  std::map<Where, Value> values_;                 // what was computed last
  std::map<std::pair<Where, Spread>, int> read_;  // inputs
  std::set<int> made_;                            // memories that are written
};

/// Chains grow while instructions are read one after the other. No two of those that are open
/// conflict, and an instruction that conflicts with one closes it; so each can be computed where
/// its last call is.
class Finder {
 public:
  Finder(const Program& program, const Shadow& shadow)
      : program_(program), shadow_(shadow), accesses_(accesses_of(program, shadow)) {}

  std::vector<Chain> find() {
    for (const Section& section : program_.sections) {
      for (const Instruction& i : section.instructions) {
        if (!is_nothing(i)) {
          visit(i);
        }
        ++place_;
      }
      close_if([](const OpenChain&) { return true; });
    }
    return std::move(chains_);
  }

 private:
  const Tensor& at(int number) const { return shadow_.tensors[index(number)]; }

  /// What nothing executes: other views of a memory, and memory that is there anyway.
  bool is_nothing(const Instruction& i) const {
    return i.kind == Kind::alias || i.kind == Kind::empty ||
           (i.kind == Kind::call && i.op->view != nullptr && i.out[0] >= 0 && !is_copy(i, shadow_));
  }

  void visit(const Instruction& i) {
    const Access& access = accesses_[index(place_)];
    const std::string element = element_of(i);
    if (element.empty()) {
      const bool is_light = bytes_of(access.writes) <= small_count;
      close_if([&](const OpenChain& open) {
        return open.conflicts(access) || !(open.is_small() || is_light);
      });
      adjacent_ = false;
      return;
    }
    // First those whose values it uses, then those that are at hand.
    auto to = std::ranges::find_if(
        open_, [&](OpenChain& open) { return open.leads_to(i) && open.add(i, place_, element); });
    if (to == open_.end()) {
      to = std::ranges::find_if(open_, [&](OpenChain& open) {
        const bool at_hand = open.is_small() || (adjacent_ && &open == &open_.front());
        return at_hand && !open.leads_to(i) && open.add(i, place_, element);
      });
    }
    if (to == open_.end()) {
      open_.emplace_front(shadow_);
      to = open_.begin();
      if (!to->add(i, place_, element)) {
        open_.pop_front();
        to = open_.end();
      }
    }
    const OpenChain* const joined = to == open_.end() ? nullptr : &*to;
    close_if([&](const OpenChain& open) { return &open != joined && open.conflicts(access); });
    if (joined != nullptr) {
      open_.splice(open_.begin(), open_, to);
    }
    while (open_.size() > most_open) {
      close(open_.back());
      open_.pop_back();
    }
    adjacent_ = true;
  }

  std::int64_t bytes_of(const std::vector<int>& memories) const {
    std::int64_t bytes = 0;
    for (const int one : memories) {
      bytes += shadow_.memories[index(one)].bytes;
    }
    return bytes;
  }

  void close(OpenChain& open) {
    if (std::optional<Chain> chain = open.closed()) {
      chains_.push_back(*std::move(chain));
    }
  }
  template <class Condition>
  void close_if(Condition condition) {
    for (auto open = open_.begin(); open != open_.end();) {
      if (condition(*open)) {
        close(*open);
        open = open_.erase(open);
      } else {
        ++open;
      }
    }
  }

  /// "" where the call is none that a chain can have.
  std::string element_of(const Instruction& i) const {
    if (i.kind != Kind::call || i.op->element == nullptr || i.in.size() > 5 || i.in.empty()) {
      return {};
    }
    const std::vector<int> results = results_of(i);
    const bool complete = std::ranges::all_of(results, [&](int number) {
      return number >= 0 && is_computed(at(number)) && at(number).is_contiguous();
    });
    if (!complete || results.empty() || results.size() > 3 || at(results[0]).numel() == 0) {
      return {};
    }
    bool has_floating = is_floating(at(results[0]).dtype());
    std::vector<Tensor> operands;
    for (const int number : i.in) {
      operands.push_back(number < 0 ? Tensor() : at(number));
      if (number >= 0) {
        has_floating = has_floating || is_floating(at(number).dtype());
        if (!is_computed(at(number)) ||
            !compute_alike(at(number).dtype(), at(results[0]).dtype())) {
          return {};
        }
      }
    }
    const bool numbers =
        i.attributes.dynamic().size() <= 3 &&
        std::ranges::all_of(i.op->parameters, [](const Op::Parameter& parameter) {
          return !parameter.dynamic || parameter.type == ArgumentType<double>::name;
        });
    if (!numbers || !has_floating) {
      return {};
    }
    std::string element = i.op->element({*i.op, operands, i.attributes});
    const bool fits =
        element.starts_with(Chain::row_mark)
            ? !i.op->in_place && is_row_of(at(results[0]))
            : results.size() == 1 && i.in.size() <= 3 && std::ranges::find(i.in, -1) == i.in.end();
    return fits ? element : std::string();
  }

  static bool is_row_of(const Tensor& x) {
    return x.dims() > 0 && x.shape().back() > 1 && x.shape().back() <= longest_row;
  }
  /// A boolean is a float that is 0 or 1.
  static bool is_computed(const Tensor& x) {
    return is_floating(x.dtype()) || x.dtype() == DType::boolean;
  }

  const Program& program_;
  const Shadow& shadow_;
  std::vector<Access> accesses_;
  std::vector<Chain> chains_;
  std::list<OpenChain> open_;  // the one that was added to last is the first
  int place_ = 0;
  bool adjacent_ = false;  // nothing is between the first open chain's last call and this place
};

}  // namespace

bool Chain::has_rows() const {
  return std::ranges::any_of(calls, [](const ChainCall& call) { return call.of_rows; });
}

bool Chain::in_double() const { return values.front().dtype == DType::f64; }

std::int64_t Chain::bytes_of_sums(const Output& output) const {
  if (values[index(output.value)].spread != Spread::sums) {
    return 0;
  }
  const std::int64_t blocks = (rows + row_block - 1) / row_block;
  return blocks * columns *
         static_cast<std::int64_t>(size_of(in_double() ? DType::f64 : DType::f32));
}

std::int64_t Chain::workspace() const {
  std::int64_t bytes = 0;
  for (const Output& output : outputs) {
    bytes += bytes_of_sums(output);
  }
  return bytes;
}

std::vector<Chain> chains_of(const Program& program, const Shadow& shadow) {
  return Finder(program, shadow).find();
}

}  // namespace tessera::graph
