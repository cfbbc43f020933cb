module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.execute;

import tessera.base;
import tessera.tensor;
import tessera.ops;
import tessera.program;
import :block;
import :chains;
import :open_chain;

namespace tessera::graph {
namespace {

using Kind = Instruction::Kind;

constexpr std::size_t most_open = 4;
/// Rows that are longer are kernels of their own: they would not stay in the first-level cache.
constexpr std::int64_t longest_row = 4096;

/// Chains grow while instructions are read one after the other. No two of those that are open
/// conflict, and an instruction that conflicts with one closes it; so each can be computed where
/// its last call is.
class Finder {
 public:
  Finder(const Program& program, const Shadow& shadow, bool rows)
      : program_(program), shadow_(shadow), rows_(rows), accesses_(accesses_of(program, shadow)) {}

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
  /// Whether nothing is executed for it: other views of a memory, and memory that is there anyway.
  bool is_nothing(const Instruction& i) const {
    return i.kind == Kind::alias || i.kind == Kind::empty ||
           (i.kind == Kind::call && i.op->view != nullptr && i.out[0].exists() &&
            !is_copy(i, shadow_));
  }

  void visit(const Instruction& i) {
    const Access& access = accesses_[place_];
    const Element element = element_of(i);
    if (!element) {
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

  std::int64_t bytes_of(const std::vector<MemoryIndex>& memories) const {
    std::int64_t bytes = 0;
    for (const MemoryIndex one : memories) {
      bytes += shadow_.memories[one].bytes;
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

  /// None where the call is none that a chain can have.
  Element element_of(const Instruction& i) const {
    if (i.kind != Kind::call || i.op->element == nullptr || i.in.size() > 5 || i.in.empty()) {
      return {};
    }
    const std::vector<Tensor> results = shadow_.at(results_of(i));
    const bool complete = std::ranges::all_of(
        results, [](const Tensor& x) { return x && is_computed(x) && x.is_contiguous(); });
    if (!complete || results.empty() || results.size() > 3 || results[0].numel() == 0) {
      return {};
    }
    bool has_floating = is_floating(results[0].dtype());
    const std::vector<Tensor> operands = shadow_.at(i.in);
    for (const Tensor& x : operands) {
      if (x && (!is_computed(x) || !compute_alike(x.dtype(), results[0].dtype()))) {
        return {};
      }
      has_floating = has_floating || (x && is_floating(x.dtype()));
    }
    const bool numbers =
        i.attributes.dynamic().size() <= 3 &&
        std::ranges::all_of(i.op->parameters, [](const Op::Parameter& parameter) {
          return !parameter.dynamic || parameter.type == ArgumentType<double>::name;
        });
    if (!numbers || !has_floating) {
      return {};
    }
    const Element element = i.op->element({*i.op, operands, i.attributes});
    const bool fits = element.of_rows ? rows_ && !i.op->in_place && is_row_of(results[0])
                                      : results.size() == 1 && i.in.size() <= 3 &&
                                            std::ranges::find(i.in, TensorIndex()) == i.in.end();
    return fits ? element : Element{};
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
  bool rows_;
  ByPlace<Access> accesses_;
  std::vector<Chain> chains_;
  std::list<OpenChain> open_;  // the one that was added to last is the first
  PlaceIndex place_ = PlaceIndex(0);
  bool adjacent_ = false;  // nothing is between the first open chain's last call and this place
};

}  // namespace

std::vector<Chain> chains_of(const Program& program, const Shadow& shadow, bool rows) {
  return Finder(program, shadow, rows).find();
}

}  // namespace tessera::graph
