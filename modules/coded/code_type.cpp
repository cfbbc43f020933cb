module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tessera/block_codes.hpp>
module tessera.coded;

import tessera.base;

namespace tessera::coded {
namespace {

/// In the order of the enumerators. `stored`: the name of ggml's, or of a plain element.
struct TypeName {
  CodeType type;
  std::string_view stored;
  std::string_view dtype = {};  // of a file of another format
};
constexpr std::array<TypeName, 11> names = {{{CodeType::f16, "F16", "float16"},
                                             {CodeType::bf16, "BF16", "bfloat16"},
                                             {CodeType::int8, ""},
                                             {CodeType::q4_0, "Q4_0"},
                                             {CodeType::q4_1, "Q4_1"},
                                             {CodeType::q5_0, "Q5_0"},
                                             {CodeType::q8_0, "Q8_0"},
                                             {CodeType::q4_k, "Q4_K"},
                                             {CodeType::q5_k, "Q5_K"},
                                             {CodeType::q6_k, "Q6_K"},
                                             {CodeType::mxfp4, "MXFP4"}}};

constexpr std::array<std::string_view, 8> form_names = {"stored", "f32",  "bf16", "int8",
                                                        "q8_0",   "q4_0", "q4_k", "q6_k"};

constexpr std::array<std::string_view, 2> activation_forms = {"f32", "int8"};

/// The place of a name among others. Error (input): it is none of them.
std::size_t place_of(std::string_view name, std::span<const std::string_view> all,
                     std::string_view thing) {
  const auto found = std::ranges::find(all, name);
  if (found == all.end()) {
    fail_input({.thing = std::string(thing),
                .wrong = fmt::format("there is no '{}'", name),
                .expected = fmt::format("{}", fmt::join(all, ", "))});
  }
  return static_cast<std::size_t>(found - all.begin());
}

/// The first of these whose blocks the columns divide into.
CodeType first_that_fits(std::int64_t columns, std::initializer_list<CodeType> types) {
  const auto* const found =
      std::ranges::find_if(types, [&](CodeType type) { return columns % block_of(type) == 0; });
  return found == types.end() ? CodeType::bf16 : *found;
}

}  // namespace

std::optional<CodeType> code_type(std::string_view stored_type) {
  const auto* const found = std::ranges::find_if(names, [&](const TypeName& name) {
    return !stored_type.empty() && (name.stored == stored_type || name.dtype == stored_type);
  });
  return found == names.end() ? std::nullopt : std::optional(found->type);
}

std::int64_t block_of(CodeType type) {
  const std::string_view stored = names.at(static_cast<std::size_t>(type)).stored;
  return stored.empty() ? 1 : gguf_type(stored)->elements;
}

std::int64_t bytes_of(CodeType type, std::int64_t elements) {
  const std::string_view stored = names.at(static_cast<std::size_t>(type)).stored;
  return stored.empty() ? elements
                        : elements / gguf_type(stored)->elements * gguf_type(stored)->bytes;
}

std::span<const std::string_view> weight_form_names() { return form_names; }

WeightForm weight_form_named(std::string_view name) {
  return static_cast<WeightForm>(place_of(name, form_names, "precision"));
}

std::span<const std::string_view> activations_names() { return activation_forms; }

Activations activations_named(std::string_view name) {
  return static_cast<Activations>(place_of(name, activation_forms, "activations"));
}

bool is_integer(CodeType type) { return type != CodeType::f16 && type != CodeType::bf16; }

std::optional<CodeType> code_type_for(WeightForm form, std::int64_t columns, bool of_tokens,
                                      std::optional<CodeType> stored) {
  switch (form) {
    case WeightForm::stored:
      return stored;
    case WeightForm::f32:
      return std::nullopt;
    case WeightForm::bf16:
      return CodeType::bf16;
    case WeightForm::int8:
      return CodeType::int8;
    case WeightForm::q8_0:
      return first_that_fits(columns, {CodeType::q8_0});
    case WeightForm::q6_k:
      return first_that_fits(columns, {CodeType::q6_k, CodeType::q8_0});
    case WeightForm::q4_0:
    case WeightForm::q4_k:
      break;
  }
  if (of_tokens) {
    return first_that_fits(columns, {CodeType::q6_k, CodeType::q8_0});
  }
  return form == WeightForm::q4_0 ? first_that_fits(columns, {CodeType::q4_0})
                                  : first_that_fits(columns, {CodeType::q4_k, CodeType::q5_0});
}

}  // namespace tessera::coded
