module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>
module tessera.hub;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.nn;
import tessera.models;
import tessera.checkpoint;

namespace tessera::hub {
namespace {

/// The number of different N in names "BEGIN.N.".
std::int64_t stored_layers(const TensorSource& stored, const std::string& begin) {
  std::set<std::int64_t> layers;
  for (auto it = stored.tensors().lower_bound(begin);
       it != stored.tensors().end() && it->first.starts_with(begin); ++it) {
    const std::string_view rest = std::string_view(it->first).substr(begin.size());
    std::int64_t layer = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), layer);
    if (error == std::errc() && end != rest.data() + rest.size() && *end == '.') {
      layers.insert(layer);
    }
  }
  return std::ssize(layers);
}

/// "vocab_size is 256 and hidden_size 64".
std::string sizes_text(const models::SizedTensor& tensor) {
  std::string text;
  for (std::size_t i = 0; i < tensor.keys.size(); ++i) {
    text += fmt::format("{}{} {}{}", i == 0 ? "" : " and ", tensor.keys[i], i == 0 ? "is " : "",
                        tensor.shape[i]);
  }
  return text;
}

/// PyTorch's name of a type, as config.json has it.
std::string torch_name(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return "bfloat16";
    case DType::f16:
      return "float16";
    case DType::f64:
      return "float64";
    default:
      return "float32";
  }
}

}  // namespace

void check_stored_sizes(const ModelShape& shape, const TensorSource& stored,
                        const std::string& prefix, const std::string& name) {
  const models::ModelFamily& family = family_of(shape);
  const models::ModelSizes sizes = sizes_of(shape);
  std::vector<std::string> problems;
  const auto [begin, key, count] = family.layers(sizes);
  if (const std::int64_t layers = stored_layers(stored, prefix + begin); layers != count) {
    problems.push_back(fmt::format("{} is {}, but the weights have {} layers", key, count, layers));
  }
  for (const models::SizedTensor& one : family.sized_tensors(sizes)) {
    const auto found = stored.tensors().find(prefix + one.parameter);
    if (found == stored.tensors().end()) {
      problems.push_back(fmt::format("the weights have no tensor {}", one.parameter));
    } else if (!(found->second.shape == one.shape)) {
      problems.push_back(fmt::format("{}, but {} has shape {}", sizes_text(one), one.parameter,
                                     to_string(found->second.shape)));
    }
  }
  if (!problems.empty()) {
    fail_input({.thing = name,
                .wrong = fmt::format("does not describe the stored weights: {}",
                                     fmt::join(problems, "; "))});
  }
}

DType type_named(std::string_view name) {
  return name == "bfloat16"  ? DType::bf16
         : name == "float16" ? DType::f16
         : name == "float64" ? DType::f64
                             : DType::f32;
}

void set_stored_type(ModelShape& shape, const TensorSource& stored) {
  if (shape.dtype.empty()) {
    const std::string first = family_of(shape).sized_tensors(sizes_of(shape)).front().parameter;
    shape.dtype = torch_name(stored.info(first).dtype);
  }
}

}  // namespace tessera::hub
