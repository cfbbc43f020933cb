#include "dnn_graph.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <tessera/half.hpp>

#include "fault.hpp"
#include "text.hpp"

namespace emulator {

using namespace tessera::cuda;

namespace {

using Values = std::vector<float>;

std::int64_t place_in(const Extents& extents, const Extents& i) {
  return ((i[0] * extents[1] + i[1]) * extents[2] + i[2]) * extents[3] + i[3];
}

/// Calls body(place, its number in the order of the dims).
template <class Body>
void each_place(const Extents& extents, Body body) {
  std::int64_t number = 0;
  Extents i = {};
  for (i[0] = 0; i[0] < extents[0]; ++i[0]) {
    for (i[1] = 0; i[1] < extents[1]; ++i[1]) {
      for (i[2] = 0; i[2] < extents[2]; ++i[2]) {
        for (i[3] = 0; i[3] < extents[3]; ++i[3]) body(i, number++);
      }
    }
  }
}

/// Whether each extent of the smaller one divides that of the other: several of the other's
/// elements share one of its elements.
bool is_part(const Extents& smaller, const Extents& larger) {
  for (std::size_t d = 0; d < 4; ++d) {
    if (smaller[d] < 1 || larger[d] % smaller[d] != 0) return false;
  }
  return true;
}
Extents shared_place(const Extents& smaller, const Extents& larger, const Extents& i) {
  Extents place = {};
  for (std::size_t d = 0; d < 4; ++d) place[d] = i[d] / (larger[d] / smaller[d]);
  return place;
}

/// Which dim of x each dim of y is, by their strides; none: they are not of one memory.
std::optional<std::array<std::size_t, 4>> same_memory(const DnnTensor& x, const DnnTensor& y) {
  std::array<std::size_t, 4> order = {0, 1, 2, 3};
  do {
    bool same = true;
    for (std::size_t d = 0; d < 4; ++d) {
      same = same && y.extents[d] == x.extents[order[d]] && y.strides[d] == x.strides[order[d]];
    }
    if (same) return order;
  } while (std::ranges::next_permutation(order).found);
  return std::nullopt;
}

bool fits(const DnnOperation& o) {
  switch (o.kind) {
    case DnnKind::matmul_operation: {
      const Extents &a = o.x.extents, &b = o.b.extents, &y = o.y.extents;
      return o.b.id != 0 && a[3] == b[2] && y[2] == a[2] && y[3] == b[3] && y[0] == a[0] &&
             y[0] == b[0] && y[1] == a[1] && a[1] % b[1] == 0;
    }
    case DnnKind::pointwise_operation: {
      const bool one = o.pointwise == DnnPointwise::exp || o.pointwise == DnnPointwise::log ||
                       o.pointwise == DnnPointwise::index;
      const bool selects = o.pointwise == DnnPointwise::select;
      const auto is_shared = [&](const DnnTensor& x) {
        for (std::size_t d = 0; d < 4; ++d) {
          if (x.extents[d] != 1 && x.extents[d] != o.y.extents[d]) return false;
        }
        return true;
      };
      return o.x.extents == o.y.extents && (o.b.id == 0) == one &&
             (o.condition.id != 0) == selects && (one || is_shared(o.b)) &&
             (!selects || o.condition.extents == o.y.extents) &&
             (o.pointwise == DnnPointwise::index) == (o.axis >= 0) && o.axis < 4;
    }
    case DnnKind::reduction_operation:
      return is_part(o.y.extents, o.x.extents);
    case DnnKind::reshape_operation:
      return same_memory(o.x, o.y).has_value();
    default:
      return false;
  }
}

float applied(DnnPointwise mode, float x, float b, float condition) {
  switch (mode) {
    case DnnPointwise::add:
      return x + b;
    case DnnPointwise::mul:
      return x * b;
    case DnnPointwise::div:
      return x / b;
    case DnnPointwise::sub:
      return x - b;
    case DnnPointwise::exp:
      return std::exp(x);
    case DnnPointwise::log:
      return std::log(x);
    case DnnPointwise::greater:
      return x > b ? 1.0F : 0.0F;
    case DnnPointwise::greater_or_equal:
      return x >= b ? 1.0F : 0.0F;
    case DnnPointwise::select:
      return condition != 0 ? x : b;
    case DnnPointwise::index:
      break;
  }
  throw Fault("cudnnBackendExecute: an operation that is not known");
}

Values multiplied(const DnnOperation& o, const Values& a, const Values& b) {
  Values y(static_cast<std::size_t>(o.y.count()));
  const std::int64_t group = o.x.extents[1] / o.b.extents[1];
  each_place(o.y.extents, [&](const Extents& i, std::int64_t number) {
    float sum = 0;
    for (std::int64_t k = 0; k < o.x.extents[3]; ++k) {
      const auto of_a = place_in(o.x.extents, {i[0], i[1], i[2], k});
      const auto of_b = place_in(o.b.extents, {i[0], i[1] / group, k, i[3]});
      sum += a[static_cast<std::size_t>(of_a)] * b[static_cast<std::size_t>(of_b)];
    }
    y[static_cast<std::size_t>(number)] = sum;
  });
  return y;
}

Values reduced(const DnnOperation& o, const Values& x) {
  const bool is_max = o.reduction == DnnReduction::max;
  Values y(static_cast<std::size_t>(o.y.count()), is_max ? -HUGE_VALF : 0.0F);
  each_place(o.x.extents, [&](const Extents& i, std::int64_t number) {
    float& to = y[static_cast<std::size_t>(
        place_in(o.y.extents, shared_place(o.y.extents, o.x.extents, i)))];
    const float value = x[static_cast<std::size_t>(number)];
    to = is_max ? std::max(to, value) : to + value;
  });
  return y;
}

Values reshaped(const DnnOperation& o, const Values& x) {
  const auto order = *same_memory(o.x, o.y);
  Values y(static_cast<std::size_t>(o.y.count()));
  each_place(o.y.extents, [&](const Extents& i, std::int64_t number) {
    Extents place = {};
    for (std::size_t d = 0; d < 4; ++d) place[order[d]] = i[d];
    y[static_cast<std::size_t>(number)] = x[static_cast<std::size_t>(place_in(o.x.extents, place))];
  });
  return y;
}

Values pointwise(const DnnOperation& o, const std::function<const Values&(const DnnTensor&)>& of) {
  Values y(static_cast<std::size_t>(o.y.count()));
  const Values* x = o.pointwise == DnnPointwise::index ? nullptr : &of(o.x);
  const Values* b = o.b.id == 0 ? nullptr : &of(o.b);
  const Values* condition = o.condition.id == 0 ? nullptr : &of(o.condition);
  each_place(o.y.extents, [&](const Extents& i, std::int64_t number) {
    const auto at = static_cast<std::size_t>(number);
    if (x == nullptr) {
      y[at] = static_cast<float>(i[static_cast<std::size_t>(o.axis)]);
      return;
    }
    const float other = b == nullptr
                            ? 0
                            : (*b)[static_cast<std::size_t>(place_in(
                                  o.b.extents, shared_place(o.b.extents, o.y.extents, i)))];
    y[at] = applied(o.pointwise, (*x)[at], other, condition == nullptr ? 0 : (*condition)[at]);
  });
  return y;
}

}  // namespace

std::int64_t DnnTensor::extent() const {
  std::int64_t last = 0;
  for (std::size_t d = 0; d < 4; ++d) last += (extents[d] - 1) * strides[d];
  return last + 1;
}

float rounded(DnnType type, float value) {
  switch (type) {
    case DnnType::bf16:
      return static_cast<float>(tessera::kernels::BFloat16(value));
    case DnnType::f16:
      return static_cast<float>(tessera::kernels::Half(value));
    default:
      return value;
  }
}

std::size_t size_of(DnnType type) {
  return type == DnnType::f32 || type == DnnType::i32 ? 4 : type == DnnType::boolean ? 1 : 2;
}

std::string DnnGraph::problem() const {
  std::map<std::int64_t, DnnTensor> known;
  std::set<std::int64_t> written;
  std::size_t products = 0;
  for (const DnnOperation& o : operations) {
    for (const DnnTensor* x : {&o.x, &o.b, &o.condition, &o.y}) {
      if (x->id == 0) continue;
      if (!(known.try_emplace(x->id, *x).first->second == *x)) {
        return text("tensor ", x->id, " has two descriptions");
      }
      if (x != &o.y && x->is_virtual && !written.contains(x->id)) {
        return text("tensor ", x->id, " is virtual, and read before it is written");
      }
    }
    if (o.y.is_by_value || !written.insert(o.y.id).second) {
      return text("tensor ", o.y.id, " is written twice, or is a number");
    }
    if (!fits(o)) {
      return text("an operation of kind ", static_cast<int>(o.kind), " that writes tensor ", o.y.id,
                  " is not known, or its tensors do not fit");
    }
    products += o.kind == DnnKind::matmul_operation ? 1 : 0;
  }
  if (products != (has_softmax() ? 2U : 5U)) {
    return text("it is not attention: ", products, " products");
  }
  return {};
}

bool DnnGraph::has_softmax() const {
  return std::ranges::any_of(operations, [](const DnnOperation& o) {
    return o.kind == DnnKind::reduction_operation && o.reduction == DnnReduction::max;
  });
}

std::map<std::int64_t, std::pair<DnnTensor, bool>> DnnGraph::given() const {
  std::map<std::int64_t, std::pair<DnnTensor, bool>> all;
  for (const DnnOperation& o : operations) {
    for (const DnnTensor* x : {&o.x, &o.b, &o.condition, &o.y}) {
      if (x->id != 0 && !x->is_virtual) {
        auto& [tensor, is_written] = all[x->id];
        tensor = *x;
        is_written = is_written || x == &o.y;
      }
    }
  }
  return all;
}

std::size_t DnnGraph::workspace() const {
  constexpr std::size_t own = 256;
  std::size_t bytes = own;
  for (const DnnOperation& o : operations) {
    // The real library keeps the scores' gradients, and those of keys and values by query head.
    const bool is_kept = o.kind == DnnKind::reshape_operation && o.y.type != DnnType::f32;
    const bool is_of_group = o.kind == DnnKind::reduction_operation && o.x.type != DnnType::f32;
    if (!has_softmax() && (is_kept || is_of_group)) {
      bytes += static_cast<std::size_t>(is_kept ? o.y.count() / 2 : o.x.count()) *
               size_of(is_kept ? o.y.type : o.x.type);
    }
  }
  return bytes;
}

void DnnGraph::run(const std::function<Values(const DnnTensor&)>& load,
                   const std::function<void(const DnnTensor&, const Values&)>& store) const {
  std::map<std::int64_t, Values> values;
  const std::function<const Values&(const DnnTensor&)> of =
      [&](const DnnTensor& x) -> const Values& {
    const auto found = values.find(x.id);
    return found != values.end() ? found->second : values.emplace(x.id, load(x)).first->second;
  };
  for (const DnnOperation& o : operations) {
    Values y = o.kind == DnnKind::matmul_operation      ? multiplied(o, of(o.x), of(o.b))
               : o.kind == DnnKind::reduction_operation ? reduced(o, of(o.x))
               : o.kind == DnnKind::reshape_operation   ? reshaped(o, of(o.x))
                                                        : pointwise(o, of);
    for (float& value : y) value = rounded(o.y.type, value);
    if (!o.y.is_virtual) store(o.y, y);
    values[o.y.id] = std::move(y);
  }
}

}  // namespace emulator
