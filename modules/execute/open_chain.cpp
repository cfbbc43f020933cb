// Which calls a chain takes.
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>
module tessera.execute;

import tessera.base;
import tessera.tensor;
import tessera.ops;
import tessera.program;
import :chains;
import :open_chain;

namespace tessera::graph {
namespace {

/// Beyond these, a longer chain saves nothing more, and the compiler takes long.
constexpr std::size_t most_calls = 64;
constexpr std::size_t most_inputs = 96;

struct OperandSpread {
  Spread spread = Spread::all;
  std::int64_t columns = 0;  // 0: any
};

/// How an operand broadcasts to the result; nothing: in a way that a chain does not have.
std::optional<OperandSpread> spreading_of(const Tensor& x, const Dims& shape) {
  if (x.numel() == 1) {
    return OperandSpread{Spread::one};
  }
  if (x.is_contiguous() && x.numel() == shape.product()) {
    return OperandSpread{Spread::all};
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
    return OperandSpread{Spread::columns, inner};
  }
  dim = walk(shape.size() - 1, true, inner);
  if (inner > 1 && walk(dim, false, outer) < 0) {
    return OperandSpread{Spread::rows, inner};
  }
  return std::nullopt;
}

/// How an operator of rows of `x` has an operand or a result; `spread`: that of one row which all
/// rows share or are added to, where it is such a row.
std::optional<OperandSpread> spreading_in_rows(const Tensor& y, const Tensor& x,
                                               std::optional<Spread> spread) {
  const std::int64_t columns = x.shape().back();
  if (!y.is_contiguous()) {
    return std::nullopt;
  }
  if (spread) {
    return y.numel() == columns ? std::optional(OperandSpread{*spread, columns}) : std::nullopt;
  }
  return y.numel() == x.numel()             ? std::optional(OperandSpread{Spread::all, columns})
         : y.numel() * columns == x.numel() ? std::optional(OperandSpread{Spread::rows, columns})
                                            : std::nullopt;
}

/// `spread` where bit `k` is set.
std::optional<Spread> marked(std::uint32_t bits, std::size_t k, Spread spread) {
  return (bits >> k & 1U) != 0 ? std::optional(spread) : std::nullopt;
}

}  // namespace

bool OpenChain::is_made(MemoryIndex memory) const {
  return std::ranges::find(made_, memory) != made_.end();
}

bool OpenChain::leads_to(const Instruction& i) const {
  return std::ranges::any_of(i.in, [&](TensorIndex number) { return is_made(memory(number)); });
}

bool OpenChain::conflicts(const Access& access) const {
  const auto is_used = [&](MemoryIndex memory) {
    return is_made(memory) || std::ranges::any_of(read_, [&](const auto& read) {
             return read.first.first.memory == memory;
           });
  };
  return std::ranges::any_of(access.reads, [&](MemoryIndex memory) { return is_made(memory); }) ||
         std::ranges::any_of(access.writes, is_used);
}

bool OpenChain::add(const Instruction& i, PlaceIndex place, const Element& element) {
  const bool of_rows = element.of_rows;
  const std::vector<TensorIndex> results = results_of(i);
  const Tensor& result = shadow_.at(results[0]);
  if (!chain_.calls.empty() && (result.numel() != count_ || chain_.calls.size() == most_calls ||
                                chain_.inputs.size() + i.in.size() > most_inputs ||
                                !compute_alike(result.dtype(), chain_.values.begin()->dtype))) {
    return false;
  }
  std::int64_t columns = of_rows ? result.shape().back() : columns_;
  if (columns_ != 0 && columns_ != columns) {
    return false;
  }
  std::vector<Spread> spreads;
  for (std::size_t k = 0; k < i.in.size(); ++k) {
    const TensorIndex number = i.in[k];
    if (!number.exists()) {
      spreads.push_back(Spread::one);
      continue;
    }
    const auto spreading = of_rows ? spreading_in_rows(shadow_.at(number), result,
                                                       marked(element.whole, k, Spread::columns))
                                   : spreading_of(shadow_.at(number), result.shape());
    if (!spreading || (spreading->columns != 0 && columns != 0 && spreading->columns != columns) ||
        // Other elements of what the chain computes.
        (is_made(memory(number)) && !is_value_at(number, spreading->spread))) {
      return false;
    }
    columns = spreading->columns != 0 ? spreading->columns : columns;
    spreads.push_back(spreading->spread);
  }
  std::vector<Spread> made(results.size(), Spread::all);
  for (std::size_t k = 0; k < results.size(); ++k) {
    const auto spreading = of_rows ? spreading_in_rows(shadow_.at(results[k]), result,
                                                       marked(element.sums, k, Spread::sums))
                                   : std::optional(OperandSpread{});
    if (!spreading || !may_write(results[k])) {
      return false;
    }
    made[k] = spreading->spread;
  }
  columns_ = columns;
  count_ = result.numel();
  Chain::ChainCall call{
      .instruction = &i, .place = place, .element = element, .phase = next_phase(of_rows)};
  for (std::size_t k = 0; k < i.in.size(); ++k) {
    call.operands.push_back(operand(i.in[k], spreads[k], call.phase));
  }
  for (std::size_t k = 0; k < results.size(); ++k) {
    Value& value =
        values_
            .try_emplace(where(results[k]), Value{.tensor = results[k], .is_made = !i.op->in_place})
            .first->second;
    value.value = chain_.values.add(
        {.dtype = shadow_.at(results[k]).dtype(), .spread = made[k], .phase = call.phase});
    call.results.push_back(value.value);
    value.is_written = value.is_written || (i.op->in_place && !i.op->keeps_versions);
    made_.push_back(memory(results[k]));
  }
  chain_.calls.push_back(std::move(call));
  return true;
}

std::optional<Chain> OpenChain::closed() {
  if (chain_.calls.size() < 2) {
    return std::nullopt;
  }
  chain_.columns = columns_ != 0 ? columns_ : count_;
  chain_.rows = count_ / chain_.columns;
  for (const auto& [at, made] : values_) {
    const Memory& m = shadow_.memories[at.memory];
    if (m.is_input || m.is_output || m.read_later || m.last > chain_.last() ||
        chain_.values[made.value].spread == Spread::sums) {
      chain_.outputs.add({.value = made.value,
                          .tensor = made.tensor,
                          .is_made = made.is_made,
                          .is_written = made.is_written});
    } else if (made.is_made) {
      chain_.inside.push_back(at.memory);
    }
  }
  std::ranges::sort(chain_.outputs, {}, &Chain::Output::value);  // alike in all layers
  return std::move(chain_);
}

bool OpenChain::is_value_at(TensorIndex number, Spread spread) const {
  const auto found = values_.find(where(number));
  if (found == values_.end()) {
    return false;
  }
  const Spread made = chain_.values[found->second.value].spread;
  return made == Spread::all ? is_whole(spread) : made == Spread::rows && spread == made;
}

int OpenChain::next_phase(bool of_rows) const {
  if (chain_.calls.empty()) {
    return 0;
  }
  const Chain::ChainCall& before = chain_.calls.back();
  return before.phase + (of_rows || before.element.of_rows ? 1 : 0);
}

bool OpenChain::may_write(TensorIndex number) const {
  const MemoryIndex written = memory(number);
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

Chain::Operand OpenChain::operand(TensorIndex number, Spread spread, int phase) {
  if (!number.exists()) {
    return {};
  }
  if (is_value_at(number, spread)) {
    return {.value = values_.at(where(number)).value};
  }
  const auto [found, fresh] = read_.try_emplace({where(number), spread}, chain_.inputs.next());
  if (fresh) {
    chain_.inputs.add({.tensor = number, .spread = spread});
  }
  chain_.inputs[found->second].last_phase = phase;
  return {.input = found->second};
}

bool Chain::has_rows() const {
  return std::ranges::any_of(calls, [](const ChainCall& call) { return call.element.of_rows; });
}

bool Chain::in_double() const { return values.begin()->dtype == DType::f64; }

std::int64_t Chain::bytes_of_sums(const Output& output) const {
  if (values[output.value].spread != Spread::sums) {
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

}  // namespace tessera::graph
