module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
module tessera.tensor;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import :path;

namespace tessera {
namespace {

PathSlot autograd_slot = nullptr;
PathSlot distribution_slot = nullptr;

thread_local constinit PathState path;

inline std::uint8_t keys_of(std::span<const Tensor> in) {
  std::uint8_t keys = 0;
  for (const Tensor& t : in) {
    if (t) {
      keys |= t.impl()->keys;
    }
  }
  return keys;
}

/// A set of element types: a bit for each.
using DTypeSet = std::uint32_t;
static_assert(dtype_count <= 32);
constexpr DTypeSet set_of(DType dtype) { return DTypeSet{1} << static_cast<unsigned>(dtype); }
constexpr DTypeSet stored_only_types = [] {
  DTypeSet all = 0;
  for (int i = 0; i < dtype_count; ++i) {
    all |= is_stored_only(static_cast<DType>(i)) ? set_of(static_cast<DType>(i)) : 0;
  }
  return all;
}();

[[noreturn]] void wrong_operands(const Op& op, std::size_t count) {
  fail({.thing = op.name,
        .wrong = "wrong number of operands",
        .expected = op.counts.lists > 0
                        ? fmt::format("{} and {} list{} of one length", op.counts.single,
                                      op.counts.lists, op.counts.lists > 1 ? "s" : "")
                        : fmt::format("{}", op.counts.single),
        .got = fmt::format("{}", count),
        .advice = fmt::format("the schema is {}", op.schema)});
}

[[noreturn]] void wrong_arguments(const Op& op, const Attributes& attributes) {
  fail({.thing = op.name,
        .wrong = fmt::format("the arguments do not match the schema {} ({})", op.schema,
                             attributes.type() == 0 ? "got none" : "their names or types differ"),
        .advice = "pass the aggregate that the operator is registered with"});
}

/// An undefined operand: an error unless it is in a list whose tensors may be absent.
[[gnu::noinline]] void check_absent(const Op& op, std::span<const Tensor> in, std::size_t i) {
  const std::size_t operand = op.place_of(i, in.size()).operand;
  if (operand < op.operands.size() && op.operands[operand].type.find('?') == std::string::npos) {
    fail(
        {.thing = op.name,
         .wrong = fmt::format("operand '{}' is an undefined tensor", op.operand_name(i, in.size())),
         .expected =
             fmt::format("a tensor; only operands marked '?' may be absent: {}", op.schema)});
  }
}

/// How many operands: those that are not lists, and lists of one length.
[[gnu::noinline]] void check_lists(const Op& op, std::size_t count) {
  const Op::Counts& expected = op.counts;
  if (expected.lists == 0 || count < expected.single ||
      (count - expected.single) % expected.lists != 0) {
    wrong_operands(op, count);
  }
}

/// Elements that are only stored, in a call of an operator that does not just move them.
[[noreturn]] void only_stored(const Op& op, const std::string& what, DType dtype) {
  fail({.thing = op.name,
        .wrong = fmt::format("{} has the type {}, which is only stored and converted", what,
                             name_of(dtype)),
        .expected = "a type to compute with",
        .advice = "cast it to f32 first"});
}

/// An error if the operator computes with an operand of a type that is only stored.
[[gnu::noinline]] void check_stored_only(const Op& op, std::span<const Tensor> in) {
  if (op.moves_elements || op.view != nullptr) {
    return;
  }
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (in[i] && is_stored_only(in[i].dtype())) {
      only_stored(op, fmt::format("operand '{}'", op.operand_name(i, in.size())), in[i].dtype());
    }
  }
}

/// The operands' keys, while the call is compared with its schema: on every call's path, so what is
/// right costs a few comparisons.
inline std::uint8_t checked_keys(const Op& op, std::span<const Tensor> in,
                                 const Attributes& attributes) {
  const Op::Counts& expected = op.counts;
  if (in.size() != expected.single || expected.lists != 0) {
    check_lists(op, in.size());
  }
  if (attributes.type() != op.arguments_type) [[unlikely]] {
    wrong_arguments(op, attributes);
  }
  std::uint8_t keys = 0;
  DTypeSet types = 0;
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (in[i]) {
      keys |= in[i].impl()->keys;
      types |= set_of(in[i].impl()->dtype);
    } else if (i >= 64 || ((expected.required >> i) & 1U) != 0) {
      check_absent(op, in, i);
    }
  }
  if ((types & stored_only_types) != 0) [[unlikely]] {
    check_stored_only(op, in);
  }
  return keys;
}

/// Refuses a call that writes an operand which is a copy where a view was meant.
[[gnu::noinline]] void check_written(const Call& call) {
  for (std::size_t i = 0; i < call.in.size(); ++i) {
    if (call.in[i] && (call.in[i].impl()->keys & copied_view_key) != 0 &&
        call.op.writes(call.op.place_of(i, call.in.size()).operand)) {
      fail({.thing = call.op.name,
            .wrong = fmt::format("operand '{}' is a view whose tensor was redistributed for it, so "
                                 "it is a copy, and the write would not reach the tensor",
                                 call.op.operand_name(i, call.in.size())),
            .advice = "redistribute the tensor before the view is taken, or write a clone()"});
    }
  }
}

[[gnu::always_inline]] inline Tensors run_kernel(const Op& op, std::span<const Tensor> in,
                                                 const Attributes& attributes, std::uint8_t keys) {
  const Call c{op, in, attributes};
  if ((keys & (meta_key | device_keys)) != 0) [[unlikely]] {
    return call_elsewhere(c, keys);
  }
  Tensors out;
  if (op.view != nullptr) {
    op.view(c, out);
  } else if (op.in_place) {
    check_writes(c, keys);
    out.push_back(in[0]);
    run_kernel_of(c, cpu, {op.cpu, op.workspace}, out);
    if (!op.keeps_versions) [[likely]] {
      in[0].storage().bump_version();
    }
  } else {
    ResultShapes shapes;
    op.infer(c, shapes);
    for (const ResultShape& r : shapes) {
      if (is_stored_only(r.dtype)) [[unlikely]] {
        check_stored_result(op, r.dtype);
      }
      out.push_back(allocate_result(r.shape, r.dtype, cpu, op.name));
    }
    run_kernel_of(c, cpu, {op.cpu, op.workspace}, out);
  }
  return out;
}

[[gnu::always_inline]] inline Tensors call_distribution(const Op& op, std::span<const Tensor> in,
                                                        const Attributes& attributes) {
  if (distribution_slot == nullptr) {
    fail({.thing = op.name,
          .wrong = "distributed operands need tessera.dtensor, which is not linked"});
  }
  return distribution_slot(op, in, attributes);
}

/// A call while the thread has modes, at the first of them that would see it.
[[gnu::noinline]] Tensors call_modes(const Op& op, std::span<const Tensor> in,
                                     const Attributes& attributes, std::uint8_t keys);

[[gnu::always_inline]] inline Tensors call_with_keys(const Op& op, std::span<const Tensor> in,
                                                     const Attributes& attributes,
                                                     std::uint8_t keys) {
  if (path.has_modes) [[unlikely]] {
    return call_modes(op, in, attributes, keys);
  }
  if ((keys & distributed_key) != 0 || op.distributed != nullptr) {
    return call_distribution(op, in, attributes);
  }
  return run_kernel(op, in, attributes, keys);
}

Tensors call_modes(const Op& op, std::span<const Tensor> in, const Attributes& attributes,
                   std::uint8_t keys) {
  if (path.above != nullptr) {
    return ModeStack::call(ModeLevel::above_distribution, {op, in, attributes});
  }
  if ((keys & distributed_key) != 0 || op.distributed != nullptr) {
    return call_distribution(op, in, attributes);
  }
  return call_kernel(op, in, attributes);
}

}  // namespace

PathState& path_state() { return path; }

void check_stored_result(const Op& op, DType dtype) {
  if (!op.moves_elements) {
    only_stored(op, "the result", dtype);
  }
}

void check_writes(const Call& call, std::uint8_t keys) {
  if ((keys & copied_view_key) != 0) [[unlikely]] {
    check_written(call);
  }
  check_written_operands(call);
}

void set_autograd_slot(PathSlot slot) { autograd_slot = slot; }
void set_distribution_slot(PathSlot slot) { distribution_slot = slot; }

const std::string* interned_name(std::string_view name) {
  static std::mutex mutex;
  static std::set<std::string, std::less<>> names;
  const std::lock_guard lock(mutex);
  const auto found = names.find(name);
  return &*(found != names.end() ? found : names.emplace(name).first);
}

const std::string* current_module() { return path.module; }
ModuleScope::ModuleScope(const std::string* name) : before_(std::exchange(path.module, name)) {}
ModuleScope::~ModuleScope() { path.module = before_; }

void rethrow_in_module(const Error& error, const std::string* module, bool backward) {
  if (module == nullptr || error.fields().module || typeid(error) != typeid(Error)) {
    throw;
  }
  ErrorFields fields = error.fields();
  fields.module = *module;
  fields.backward = backward;
  throw Error(std::move(fields), error.kind());
}

CallPermissions call_permissions() { return path.permissions; }
PermissionScope::PermissionScope(CallPermissions permissions)
    : before_(std::exchange(path.permissions, path.permissions | permissions)) {}
PermissionScope::~PermissionScope() { path.permissions = before_; }

bool grad_enabled() { return path.grad; }
NoGrad::NoGrad(bool enabled) : before_(std::exchange(path.grad, enabled)) {}
NoGrad::~NoGrad() { path.grad = before_; }

void check_call(const Op& op, std::span<const Tensor> in, const Attributes& attributes) {
  checked_keys(op, in, attributes);
}

Tensors call(const Op& op, std::span<const Tensor> in, const Attributes& attributes) {
  const std::uint8_t keys = checked_keys(op, in, attributes);
  if ((keys & requires_grad_key) != 0 && path.grad) {
    return autograd_slot(op, in, attributes);
  }
  return call_with_keys(op, in, attributes, keys);
}

Tensors call_below_autograd(const Op& op, std::span<const Tensor> in,
                            const Attributes& attributes) {
  return call_with_keys(op, in, attributes, keys_of(in));
}

Tensors call_kernel(const Op& op, std::span<const Tensor> in, const Attributes& attributes) {
  if (path.below != nullptr) [[unlikely]] {
    return ModeStack::call(ModeLevel::below_distribution, {op, in, attributes});
  }
  return run_kernel(op, in, attributes, keys_of(in));
}

}  // namespace tessera
