// Which memory operands have in common: what in-place operators must know of those that they write.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>
module tessera.tensor;

import tessera.base;

namespace tessera {
namespace {

/// d * stride, where d is any integer from `least` to `most`.
struct Term {
  std::int64_t stride;
  std::int64_t least;
  std::int64_t most;
};

std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }
std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return -floor_div(-a, b); }

/// Whether some choice of all terms' integers has a given sum. Large strides are chosen first, and
/// only those values are tried that the smaller strides can still complete: for the views of dense
/// memory these are one or two.
class Equation {
 public:
  void add(std::int64_t stride, std::int64_t least, std::int64_t most) {
    if (stride == 0 || (least == 0 && most == 0)) {
      return;
    }
    if (stride < 0) {
      add(-stride, -most, -least);
      return;
    }
    for (Term& term : terms_) {
      if (term.stride == stride) {
        term.least += least;
        term.most += most;
        return;
      }
    }
    terms_.push_back({stride, least, most});
  }

  /// `nonzero`: a choice of zeros alone is not a solution. True also where the search takes too
  /// long.
  bool has_solution(std::int64_t sum, bool nonzero) {
    std::sort(terms_.begin(), terms_.end(),
              [](const Term& a, const Term& b) { return a.stride > b.stride; });
    return search(0, sum, nonzero);
  }

 private:
  static constexpr int kMostSteps = 1 << 16;

  bool search(std::size_t i, std::int64_t rest, bool nonzero) {
    if (++steps_ > kMostSteps) {
      return true;
    }
    if (i == terms_.size()) {
      return rest == 0 && !nonzero;
    }
    const Term& term = terms_[i];
    std::int64_t low = 0;
    std::int64_t high = 0;
    for (std::size_t k = i + 1; k < terms_.size(); ++k) {
      low += terms_[k].stride * terms_[k].least;
      high += terms_[k].stride * terms_[k].most;
    }
    const std::int64_t first = std::max(term.least, ceil_div(rest - high, term.stride));
    const std::int64_t last = std::min(term.most, floor_div(rest - low, term.stride));
    for (std::int64_t d = first; d <= last; ++d) {
      if (search(i + 1, rest - d * term.stride, nonzero && d == 0)) {
        return true;
      }
    }
    return false;
  }

  InlineVector<Term, 8> terms_;
  int steps_ = 0;
};

/// The bytes from a tensor's first to the one after its last; meta tensors count from 0.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

Range bytes_of(const Tensor& x) {
  const auto size = static_cast<std::int64_t>(size_of(x.dtype()));
  std::int64_t low = x.offset();
  std::int64_t high = x.offset();
  for (int d = 0; d < x.dims(); ++d) {
    const std::int64_t reach = (x.shape()[d] - 1) * x.impl()->strides[d];
    (reach < 0 ? low : high) += reach;
  }
  const auto base = reinterpret_cast<std::int64_t>(x.storage().data());
  return {base + low * size, base + (high + 1) * size};
}

bool same_view(const Tensor& a, const Tensor& b) {
  const TensorImpl& x = *a.impl();
  const TensorImpl& y = *b.impl();
  return &x == &y || (x.storage == y.storage && x.offset == y.offset && x.dtype == y.dtype &&
                      x.shape == y.shape && x.strides == y.strides);
}

/// Two storages are apart unless one of them borrows bytes of the other.
inline bool storages_apart(const Tensor& a, const Tensor& b) {
  const Storage& x = *a.impl()->storage;
  const Storage& y = *b.impl()->storage;
  if (&x == &y) {
    return false;
  }
  const auto* const p = static_cast<const std::byte*>(x.data());
  const auto* const q = static_cast<const std::byte*>(y.data());
  return p == nullptr || q == nullptr || p + x.bytes() <= q || q + y.bytes() <= p;
}

/// For strided tensors with elements, whose storages are not apart.
bool elements_meet(const Tensor& a, const Tensor& b) {
  const Range x = bytes_of(a);
  const Range y = bytes_of(b);
  if (x.end <= y.begin || y.end <= x.begin) {
    return false;
  }
  if (a.is_contiguous() && b.is_contiguous()) {
    return true;
  }
  const auto width_a = static_cast<std::int64_t>(size_of(a.dtype()));
  const auto width_b = static_cast<std::int64_t>(size_of(b.dtype()));
  const auto first = [](const Tensor& t, std::int64_t width) {
    return reinterpret_cast<std::int64_t>(t.storage().data()) + t.offset() * width;
  };
  Equation equation;  // the address of an element of a minus that of one of b is the sum below
  for (int d = 0; d < a.dims(); ++d) {
    equation.add(a.strides()[d] * width_a, 0, a.shape()[d] - 1);
  }
  for (int d = 0; d < b.dims(); ++d) {
    equation.add(b.strides()[d] * width_b, 1 - b.shape()[d], 0);
  }
  equation.add(1, 0, width_a - 1);  // the bytes of one element
  equation.add(1, 1 - width_b, 0);
  return equation.has_solution(first(b, width_b) - first(a, width_a), false);
}

bool strides_repeat(const Tensor& x) {
  if (x.numel() == 0) {
    return false;
  }
  const Dims& strides = x.strides();
  Equation equation;  // the distance between two elements is the sum below
  for (int d = 0; d < x.dims(); ++d) {
    const std::int64_t extent = x.shape()[d];
    if (extent == 1) {
      continue;
    }
    bool repeats = strides[d] == 0;
    for (int e = 0; e < d; ++e) {  // steps along two dims of one stride undo each other
      repeats |= x.shape()[e] > 1 && std::abs(strides[e]) == std::abs(strides[d]);
    }
    if (repeats) {
      return true;
    }
    equation.add(strides[d], 1 - extent, extent - 1);
  }
  return equation.has_solution(0, true);
}

// Checks of an in-place operator's call, whose operands are local tensors.

bool is_written(const Op& op, std::size_t operand) {
  return operand == 0 || op.operands[operand].type.ends_with('!');
}

std::string operand_text(const Call& call, std::size_t i) {
  const Op::OperandPlace place = call.op.place_of(i, call.in.size());
  if (place.operand >= call.op.operands.size()) {
    return fmt::format("operand {}", i);
  }
  const std::string& name = call.op.operands[place.operand].name;
  return place.in_list < 0 ? fmt::format("'{}'", name)
                           : fmt::format("'{}[{}]'", name, place.in_list);
}

inline void check_itself(const Call& call, std::size_t i) {
  const Tensor& x = call.in[i];
  if ((x.impl()->keys & dense_key) == 0 && !x.is_contiguous() && strides_repeat(x)) [[unlikely]] {
    fail({.thing = call.op.name,
          .wrong = fmt::format("{} is written, but some of its elements are the same memory",
                               operand_text(call, i)),
          .expected = "separate elements",
          .got =
              fmt::format("shape {} with strides {}", to_string(x.shape()), to_string(x.strides())),
          .advice = "write to a copy made by clone()"});
  }
}

/// `aligned`: one element of i meets one of j at a time, so that both may be the same view.
void check_pair(const Call& call, std::size_t i, std::size_t j, bool aligned) {
  const Tensor& a = call.in[i];
  const Tensor& b = call.in[j];
  if (storages_apart(a, b) || a.numel() == 0 || b.numel() == 0 || (aligned && same_view(a, b)) ||
      !elements_meet(a, b)) [[likely]] {
    return;
  }
  fail({.thing = call.op.name,
        .wrong = fmt::format("{} is written and shares memory with {}", operand_text(call, i),
                             operand_text(call, j)),
        .expected = fmt::format("separate memory{}", aligned ? " or the same view" : ""),
        .advice = "pass a clone() of one of them"});
}

void check_single_operands(const Call& call) {
  for (std::size_t i = 0; i < call.in.size(); ++i) {
    if (!call.in[i] || !is_written(call.op, i)) {
      continue;
    }
    check_itself(call, i);
    for (std::size_t j = 0; j < call.in.size(); ++j) {
      if (call.in[j] && j != i && !(j < i && is_written(call.op, j))) {
        check_pair(call, i, j, !is_written(call.op, j));
      }
    }
  }
}

/// Whether no two tensors share memory, in one pass over them; false also where that takes a closer
/// look. Parts of one storage may follow one another, in ascending order. Memory that is borrowed
/// (parameters in a buffer that ranks share) is compared with all other memory.
[[gnu::noinline]] bool runs_apart(std::span<const Tensor> in) {
  const std::uint64_t pass = Storage::new_pass();
  InlineVector<Range, 32> borrowed;
  const Storage* current = nullptr;
  Range run{};
  const auto end_run = [&] {
    if (current != nullptr && !current->owns_memory()) {
      borrowed.push_back(run);
    }
  };
  for (const Tensor& x : in) {
    if (!x || x.numel() == 0) {
      continue;
    }
    Storage* const storage = x.impl()->storage.get();
    const Range bytes = bytes_of(x);
    if (storage == current) {
      if (bytes.begin < run.end) {
        return false;
      }
      run.end = bytes.end;
    } else if (storage->mark(pass)) {
      end_run();
      current = storage;
      run = bytes;
    } else {
      return false;
    }
  }
  end_run();
  if (borrowed.empty()) {
    return true;
  }
  const auto before = [](const Range& a, const Range& b) { return a.begin < b.begin; };
  if (!std::is_sorted(borrowed.begin(), borrowed.end(), before)) {
    std::sort(borrowed.begin(), borrowed.end(), before);
  }
  for (std::size_t i = 1; i < borrowed.size(); ++i) {
    if (borrowed[i].begin < borrowed[i - 1].end) {
      return false;
    }
  }
  for (const Tensor& x : in) {
    if (!x || !x.impl()->storage->owns_memory() || x.numel() == 0) {
      continue;
    }
    const Range bytes = bytes_of(x);
    if (bytes.end <= borrowed.front().begin || borrowed.back().end <= bytes.begin) {
      continue;
    }
    const auto next =
        std::partition_point(borrowed.begin(), borrowed.end(),
                             [&](const Range& range) { return range.end <= bytes.begin; });
    if (next != borrowed.end() && next->begin < bytes.end) {
      return false;
    }
  }
  return true;
}

/// Whether all are apart; known at once where each tensor has a storage of its own, whose memory is
/// its own.
inline bool all_apart(std::span<const Tensor> in) {
  const std::uint64_t pass = Storage::new_pass();
  for (const Tensor& x : in) {
    if (!x) {
      continue;
    }
    Storage* const storage = x.impl()->storage.get();
    if (!storage->owns_memory() || !storage->mark(pass)) [[unlikely]] {
      return runs_apart(in);
    }
  }
  return true;
}

/// One tensor of the lists.
struct Item {
  Range bytes;
  std::size_t index;
  std::size_t place;  // in its list
  bool written;
};

/// By address, so that only neighbours are compared.
void check_by_address(const Call& call, std::vector<Item> items) {
  std::sort(items.begin(), items.end(),
            [](const Item& a, const Item& b) { return a.bytes.begin < b.bytes.begin; });
  for (std::size_t i = 0; i < items.size(); ++i) {
    for (std::size_t j = i + 1; j < items.size() && items[j].bytes.begin < items[i].bytes.end;
         ++j) {
      const bool swap = !items[i].written;
      const Item& a = items[swap ? j : i];
      const Item& b = items[swap ? i : j];
      if (a.written) {
        check_pair(call, a.index, b.index, !b.written && a.place == b.place);
      }
    }
  }
}

void check_lists(const Call& call) {
  const std::vector<Op::Parameter>& operands = call.op.operands;
  const bool apart = all_apart(call.in);
  std::vector<Item> items;
  std::size_t next = 0;
  for (std::size_t k = 0; k < operands.size(); ++k) {
    const bool is_list = operands[k].type.find("...") != std::string::npos;
    const std::size_t lists = operands.size() - k;  // they are the last operands
    const std::size_t end =
        std::min(is_list ? next + (call.in.size() - next) / lists : next + 1, call.in.size());
    const bool written = is_written(call.op, k);
    for (std::size_t i = next; written && i < end; ++i) {
      if (call.in[i]) {
        check_itself(call, i);
      }
    }
    for (std::size_t i = next; !apart && i < end; ++i) {
      const Tensor& x = call.in[i];
      if (x && x.numel() != 0) {
        items.push_back({bytes_of(x), i, is_list ? i - next : call.in.size(), written});
      }
    }
    next = end;
  }
  if (!apart) {
    check_by_address(call, std::move(items));
  }
}

}  // namespace

bool repeats_elements(const Tensor& x) {
  const Tensor& memory = local_of(x);
  return !memory.is_contiguous() && strides_repeat(memory);
}

bool shares_memory(const Tensor& a, const Tensor& b) {
  const Tensor& x = local_of(a);
  const Tensor& y = local_of(b);
  return x.numel() != 0 && y.numel() != 0 && !storages_apart(x, y) && elements_meet(x, y);
}

void check_written_operands(const Call& call) {
  if (call.in.size() == call.op.operands.size()) {  // lists of one tensor too
    check_single_operands(call);
  } else {
    check_lists(call);
  }
}

}  // namespace tessera
