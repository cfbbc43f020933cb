// Comparison of a replayed step with the step as it is written, bit by bit.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tessera/printable.hpp>
#include <utility>
#include <vector>
module tessera.train;

import tessera.base;
import tessera.device;
import tessera.tensor;
import tessera.ops;
import tessera.program;
import tessera.capture;
import :step_plan;
import :verification;

namespace tessera {
namespace {

constexpr const char* stream_prefix = "stream.";

/// The bytes of its elements in row-major order.
std::span<const std::byte> bytes_of(const Tensor& x) {
  return {static_cast<const std::byte*>(x.raw_data()),
          static_cast<std::size_t>(x.numel()) * size_of(x.dtype())};
}

/// Of the first element that differs; none: all bits are the same.
std::optional<std::int64_t> first_difference(const Tensor& a, const Tensor& b) {
  const std::span<const std::byte> left = bytes_of(a);
  const std::span<const std::byte> right = bytes_of(b);
  const auto [at, other] = std::ranges::mismatch(left, right);
  if (at == left.end()) {
    return std::nullopt;
  }
  return (at - left.begin()) / static_cast<std::ptrdiff_t>(size_of(a.dtype()));
}

std::string element_of(const Tensor& x, std::int64_t at) {
  return fmt::format("{}", printable(to_doubles(alias(x, {1}, {1}, x.offset() + at))[0]));
}

/// "[1, 0]", of the element at this place in row-major order.
std::string indices_of(const Dims& shape, std::int64_t at) {
  Dims index = Dims::filled(shape.size(), 0);
  for (int dim = static_cast<int>(shape.size()) - 1; dim >= 0; --dim) {
    index[dim] = at % shape[dim];
    at /= shape[dim];
  }
  return to_string(index);
}

struct Difference {
  std::string words = {};
  std::optional<PlaceIndex> place = {};  // of what has written it last
};

/// What of a program has written a tensor of this name last.
class LastWrites {
 public:
  explicit LastWrites(const Program& program)
      : program_(program),
        shadow_(graph::shadow_of(program)),
        accesses_(graph::accesses_of(program, shadow_)) {}

  std::optional<PlaceIndex> of(const std::string& name) const {
    const auto output = program_.outputs.find(name);
    const auto input = program_.inputs.find(name);
    if (output == program_.outputs.end() && input == program_.inputs.end()) {
      return std::nullopt;
    }
    const MemoryIndex memory =
        shadow_.memory(output != program_.outputs.end() ? output->second : input->second.tensor);
    std::optional<PlaceIndex> last;
    for (const PlaceIndex place : accesses_.keys()) {
      if (std::ranges::count(accesses_[place].writes, memory) > 0) {
        last = place;
      }
    }
    return last;
  }

 private:
  const Program& program_;
  graph::Shadow shadow_;
  ByPlace<graph::Access> accesses_;
};

/// Nothing: the values are the same.
std::optional<std::string> difference_of(const std::string& name, const Tensor* replayed,
                                         const Tensor* written) {
  if (replayed == nullptr || written == nullptr) {
    return fmt::format("'{}' exists only {}", name,
                       replayed == nullptr ? "as it is written" : "after the replay");
  }
  if (!(replayed->shape() == written->shape()) || replayed->dtype() != written->dtype()) {
    return fmt::format("'{}' is {}{} by the program and {}{} as it is written", name,
                       name_of(replayed->dtype()), to_string(replayed->shape()),
                       name_of(written->dtype()), to_string(written->shape()));
  }
  const std::optional<std::int64_t> at = first_difference(*replayed, *written);
  if (!at) {
    return std::nullopt;
  }
  return fmt::format("'{}' ({}{}) is {} at {} by the program and {} as it is written", name,
                     name_of(written->dtype()), to_string(written->shape()),
                     element_of(*replayed, *at), indices_of(written->shape(), *at),
                     element_of(*written, *at));
}

/// The difference that the program has written first; one that it writes before one that it does
/// not write.
std::optional<Difference> first_of(const Program& program, const NamedValues& replayed,
                                   const NamedValues& written) {
  std::optional<Difference> first;
  std::optional<LastWrites> writes;
  const auto look = [&](const std::string& name, const Tensor* of_replay, const Tensor* of_call) {
    const std::optional<std::string> words = difference_of(name, of_replay, of_call);
    if (!words) {
      return;
    }
    if (!writes) {
      writes.emplace(program);
    }
    const std::optional<PlaceIndex> place = writes->of(name);
    if (!first || (place && (!first->place || *place < *first->place))) {
      first = {.words = *words, .place = place};
    }
  };
  for (const auto& [name, x] : replayed) {
    const auto other = written.find(name);
    look(name, &x, other == written.end() ? nullptr : &other->second);
  }
  for (const auto& [name, x] : written) {
    if (!replayed.contains(name)) {
      look(name, nullptr, &x);
    }
  }
  return first;
}

/// How the step is another program now; "": it is the same.
std::string other_program(const Program& program, std::optional<Recording> again) {
  if (!again) {
    return {};
  }
  try {
    static_cast<void>(program_of({.program = program, .variables = {}}, *std::move(again)));
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace

NamedValues copied_values(const StepInputs& all) {
  const NoGrad no_grad;
  const MemoryScope scope(MemoryCategory::other);
  NamedValues values;
  for (const auto& [name, input] : all) {
    const bool is_known = input.role != Role::transform_state &&
                          input.role != Role::scaler_factor && input.role != Role::gradient;
    if (is_known && !input.value.is_meta()) {
      values.emplace(name, ops::clone(ops::to_device(input.value, cpu)));
    }
  }
  for (const auto& [name, stream] : random_state()) {
    if (stream.offset != 0) {  // one of which nothing was drawn may not be there yet
      values.emplace(stream_prefix + name,
                     from_values<std::int64_t>({static_cast<std::int64_t>(stream.offset)}, {}));
    }
  }
  return values;
}

void write_values(const StepInputs& all, const NamedValues& values) {
  const NoGrad no_grad;
  for (const auto& [name, input] : all) {
    if (const auto found = values.find(name); found != values.end()) {
      ops::copy_(input.value, ops::to_device(found->second, input.value.device()));
    }
  }
}

void check_same_bits(const Program& program, const NamedValues& replayed,
                     const NamedValues& written, std::optional<Recording> again) {
  const std::optional<Difference> first = first_of(program, replayed, written);
  if (!first) {
    return;
  }
  const std::string by = first->place ? graph::call_in_words(program, *first->place)
                                      : std::string("no instruction writes it");
  const std::string other = other_program(program, std::move(again));
  fail({.thing = "verify",
        .wrong = fmt::format(
            "a replayed call differs from the call as it is written: {}; in the "
            "program: {}{}",
            first->words, by,
            other.empty() ? std::string() : fmt::format("; as it is written, {}", other)),
        .advice = "make what the step depends on an input, a number or a guard. The state is that "
                  "after the call as it is written"});
}

}  // namespace tessera
