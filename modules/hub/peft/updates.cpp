module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tessera/json_reading.hpp>
#include <utility>
#include <vector>
module tessera.hub;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.nn;
import tessera.coded;
import tessera.checkpoint;

namespace tessera::hub {
namespace {

using Json = nlohmann::json;

/// A whole tensor, or rows of it, in this type.
Tensor read_as(const TensorSource& from, const std::string& name, DType dtype, std::int64_t row,
               std::int64_t rows) {
  Dims offset = Dims::filled(from.info(name).shape.size(), 0);
  Dims shape = from.info(name).shape;
  offset[0] = row;
  shape[0] = rows;
  const Tensor values = empty(shape, dtype);
  from.read(name, {offset, shape}, values);
  return values;
}

/// Error (input) unless the checkpoint has this tensor with this shape.
void check_shape(const TensorSource& from, const std::string& name, const Dims& shape) {
  if (!(from.info(name).shape == shape)) {
    fail_input(
        {.thing = from.path(),
         .wrong = fmt::format("tensor '{}' does not fit the update that it belongs to", name),
         .expected = fmt::format("shape {}", to_string(shape)),
         .got = to_string(from.info(name).shape)});
  }
}

/// Calls f(name, weight) for every weight that a layer keeps in another form.
template <class F>
void for_each_packed(nn::Module& model, const F& f) {
  for (const nn::Module* module : nn::all_modules(model)) {
    for (const nn::PackedWeight& packed : nn::packed_weights_of(*module)) {
      f(module->name() + "." + packed.name, packed);
    }
  }
}

/// The parameters that a folder of weights has under their own names.
StateDict plain_weights(nn::Module& model) {
  StateDict weights;
  const std::vector<nn::ParameterPointer> updates = nn::update_parameters(model);
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    const bool packed = parameter->initialization.kind == nn::Initialization::Kind::packed;
    if (!packed && std::ranges::find(updates, parameter) == updates.end()) {
      weights.tensors.emplace(name, parameter->value);
      weights.tensors.emplace(parameter->name, parameter->value);  // of a module that is absent
    }
  }
  return weights;
}

/// The name under which a weight is stored: the first of those that it has in the model. Error
/// (input): there is none.
std::string stored_name(const TensorSource& from, const std::string& name,
                        const std::string& prefix, const std::vector<std::string>& others) {
  for (const std::string& other : others) {
    if (!from.contains(name) && from.contains(prefix + other)) {
      return prefix + other;
    }
  }
  static_cast<void>(from.info(name));  // an error where it is missing
  return name;
}

/// Error (input): an element of the rows is not finite, as load_weights has it of plain ones.
void check_codes(coded::CodeType type, const Tensor& rows, std::int64_t first,
                 const std::string& what) {
  const Tensor values = coded::decoded({.type = type, .codes = rows});
  const auto* const begin = values.data<float>();
  const auto* const end = begin + values.numel();
  const auto* const found = std::find_if(begin, end, [](float x) { return !std::isfinite(x); });
  if (found != end) {
    const std::int64_t place = found - begin;
    fail_input({.thing = what,
                .wrong = fmt::format("its element [{}, {}] is {}", first + place / values.size(1),
                                     place % values.size(1), *found),
                .advice = "download or write the file again"});
  }
}

/// Gives a layer the codes that are stored; false: they are not stored as rows of codes. Errors
/// (input): another shape; elements that are not finite.
bool take_codes(const TensorSource& from, const std::string& name, const Dims& shape,
                const coded::StoredWeight& codes) {
  if (codes.type != coded::code_type(from.stored_type(name)) || !from.stored_rows(name, 0, 0)) {
    return false;
  }
  check_shape(from, name, shape);
  codes.take([&](std::int64_t row, std::int64_t rows) {
    const Tensor read = from.stored_rows(name, row, rows);
    constexpr std::int64_t at_once = 256;  // rows that are decoded
    for (std::int64_t first = 0; first < rows; first += at_once) {
      check_codes(codes.type, ops::narrow(read, 0, first, std::min(at_once, rows - first)),
                  row + first, fmt::format("{}: tensor '{}'", from.path(), name));
    }
    return read;
  });
  return true;
}

/// Makes codes of a stack of matrices, one after the other. Errors (input): another shape; elements
/// that are not finite.
void encode_stack(const TensorSource& from, const std::string& name, const Dims& shape,
                  const coded::StoredWeight& codes) {
  check_shape(from, name, shape);
  codes.encode([&](const LocalPart& part) {
    const Tensor values = empty(part.shape, DType::f32);
    from.read(name, part, values);
    const auto* const begin = values.data<float>();
    const auto* const end = begin + values.numel();
    const auto* const found = std::find_if(begin, end, [](float x) { return !std::isfinite(x); });
    if (found != end) {
      fail_input({.thing = fmt::format("{}: tensor '{}'", from.path(), name),
                  .wrong = fmt::format("an element of [{}, ...] is {}", part.offset[0], *found),
                  .advice = "download or write the file again"});
    }
    return values;
  });
}

/// The rotary tables that old folders hold, and what absent modules have.
std::vector<std::string> ignored_weights(nn::Module& model) {
  std::vector<std::string> patterns = {"**.rotary_emb.inv_freq"};
  for (const std::string& module : nn::absent_modules(model)) {
    patterns.push_back(module + ".**");
  }
  return patterns;
}

}  // namespace

Updates updates_of(nn::Module& model) {
  Updates updates;
  for (const auto& [module, absent] : nn::whole_modules(model)) {
    if (const std::optional<nn::LowRankUpdate>& update = nn::low_rank_update_of(*module)) {
      updates.emplace(module->name(), *update);
    }
  }
  return updates;
}

std::vector<std::string> names_of(const Updates& updates) {
  std::vector<std::string> names;
  for (const auto& [name, update] : updates) {
    names.push_back(name);
  }
  return names;
}

StateDict model_weights(nn::Module& model) {
  StateDict weights;
  for_each_packed(model, [&](const std::string& name, const nn::PackedWeight& packed) {
    weights.tensors.emplace(name, empty(packed.shape, DType::f32, meta));
  });
  weights.tensors.merge(plain_weights(model).tensors);
  return weights;
}

std::map<std::string, TensorInfo> untrained_weights(nn::Module& model, const TensorSource& from) {
  std::map<std::string, TensorInfo> weights;
  for (const nn::ParameterPointer& parameter : nn::whole_parameters(model)) {
    const Tensor& value = parameter->value;
    const bool packed = parameter->initialization.kind == nn::Initialization::Kind::packed;
    const auto found = from.tensors().find(parameter->name);
    if (!value.requires_grad() && !packed && found != from.tensors().end() &&
        found->second.shape == value.shape()) {
      weights.emplace("model." + parameter->name, TensorInfo{value.dtype(), value.shape()});
    }
  }
  for (const auto& [module, absent] : nn::whole_modules(model)) {
    const std::optional<nn::LowRankUpdate>& update = nn::low_rank_update_of(*module);
    const auto found = from.tensors().find(module->name() + ".weight");
    if (!update || update->packing != "nf4" || found == from.tensors().end()) {
      continue;
    }
    for (const nn::PackedWeight& packed : nn::packed_weights_of(*module)) {
      if (packed.name != "weight" || !(packed.shape == found->second.shape)) {
        continue;
      }
      for (const std::string_view part : nf4_parts) {
        const Tensor& value = module->parameter(std::string(part))->value;
        weights.emplace(fmt::format("model.{}.{}", module->name(), part),
                        TensorInfo{value.dtype(), value.shape()});
      }
    }
  }
  return weights;
}

LoadOptions weight_options(nn::Module& model) {
  return {.strict = true, .cast = true, .ignore = ignored_weights(model)};
}

void load_model_weights(const TensorSource& from, nn::Module& model) {
  LoadOptions options = weight_options(model);
  for (const std::string& name : packed_names(model)) {
    options.ignore.push_back(name);
  }
  StateDict plain = plain_weights(model);
  for (const nn::BufferPointer& buffer : nn::all_buffers(model)) {
    if (buffer->saved && from.contains(buffer->name)) {
      plain.tensors.emplace(buffer->name, buffer->value);
    }
  }
  load_weights(from, plain, options);
  load_packed_weights(from, model, "");
}

std::vector<std::string> packed_names(nn::Module& model) {
  std::vector<std::string> names;
  for_each_packed(model,
                  [&](const std::string& name, const nn::PackedWeight&) { names.push_back(name); });
  for (const nn::Module* module : nn::all_modules(model)) {
    const auto& others = module->attached<coded::StoredCodes>().other_names;
    names.insert(names.end(), others.begin(), others.end());
  }
  return names;
}

void load_packed_weights(const TensorSource& from, nn::Module& model, const std::string& prefix) {
  for (const nn::Module* module : nn::all_modules(model)) {
    const coded::StoredCodes& codes = module->attached<coded::StoredCodes>();
    for (const nn::PackedWeight& packed : nn::packed_weights_of(*module)) {
      const std::string name = module->name() + "." + packed.name;
      const std::string stored = stored_name(from, prefix + name, prefix, codes.other_names);
      const auto own_codes =
          std::ranges::find(codes.weights, packed.name, &coded::StoredWeight::name);
      if (own_codes != codes.weights.end()) {
        if (take_codes(from, stored, packed.shape, *own_codes)) {
          continue;
        }
        if (packed.shape.size() > 2) {
          encode_stack(from, stored, packed.shape, *own_codes);
          continue;
        }
      }
      const std::string own = stored.substr(prefix.size());
      StateDict one;
      one.tensors.emplace(own, nn::first_values(packed));
      load_weights(from, one, {.strict = false, .cast = true, .prefix = prefix});
      packed.pack(one.tensors.at(own));
    }
  }
}

std::string updates_member(nn::Module& model) {
  Json json = Json::object();
  for (const auto& [module, update] : updates_of(model)) {
    json[module] = {{"rank", update.rank},       {"alpha", update.alpha},
                    {"dropout", update.dropout}, {"rank_stabilized", update.rank_stabilized},
                    {"dora", update.dora},       {"packing", update.packing}};
  }
  return fmt::format(R"("low_rank_updates": {})", json_text(json));
}

Updates stored_updates(const std::string& meta, const std::string& checkpoint) {
  const ParsedJson parsed = parse_json_object(meta);
  Updates updates;
  if (!parsed.problem.empty() || !parsed.value.contains("low_rank_updates")) {
    return updates;
  }
  reading_json(
      checkpoint,
      [&] {
        for (const auto& [module, json] : parsed.value["low_rank_updates"].items()) {
          updates[module] = {.rank = json_member<std::int64_t>(json, "rank"),
                             .alpha = json_member<double>(json, "alpha"),
                             .dropout = json_member<double>(json, "dropout"),
                             .rank_stabilized = json_member<bool>(json, "rank_stabilized"),
                             .dora = json_member<bool>(json, "dora"),
                             .packing = json_member<std::string>(json, "packing")};
        }
      },
      "use a checkpoint of this version of 'tessera train'");
  return updates;
}

void compare_updates(const Updates& stored, const Updates& own, const std::string& checkpoint) {
  const auto text = [](const Updates& updates, const std::string& module) {
    const auto found = updates.find(module);
    if (found == updates.end()) {
      return std::string("none");
    }
    const nn::LowRankUpdate& update = found->second;
    return fmt::format("rank {}, alpha {}{}{}{}", update.rank, update.alpha,
                       update.rank_stabilized ? ", rslora" : "", update.dora ? ", dora" : "",
                       update.packing.empty() ? "" : ", weight as " + update.packing);
  };
  std::set<std::string> modules;
  for (const Updates* updates : {&stored, &own}) {
    for (const auto& [module, update] : *updates) {
      modules.insert(module);
    }
  }
  std::string lines;
  std::size_t count = 0;
  for (const std::string& module : modules) {
    if (text(stored, module) != text(own, module)) {
      constexpr std::size_t most = 8;
      if (++count <= most) {
        lines += fmt::format("\n  {}: {} in the checkpoint, {} in the config", module,
                             text(stored, module), text(own, module));
      }
    }
  }
  if (count > 0) {
    fail_input(
        fmt::format("{}: it is a checkpoint of a run with other low-rank updates; use the "
                    "options of that run. {} layers differ:{}",
                    checkpoint, count, lines));
  }
}

MergedWeights::MergedWeights(const TensorSource& from, Updates updates, const std::string& prefix,
                             const std::set<std::string>& transposed)
    : TensorSource(from.path()), from_(from) {
  tensors_ = from.tensors();
  scalars_ = from.scalars();
  for (auto& [name, update] : updates) {
    const std::string module = prefix + name;
    if (!update.packing.empty() && update.packing != "nf4") {
      fail_input({.thing = from.path(),
                  .wrong = fmt::format("the weight of '{}' is kept as '{}'", name, update.packing),
                  .expected = "\"nf4\", or the weight itself",
                  .advice = "'tessera checkpoint export --adapter' writes the updates alone"});
    }
    const bool packed = !update.packing.empty();
    const bool turned = transposed.contains(name);
    Dims shape = packed ? nf4_shape(from, module) : from.info(module + ".weight").shape;
    if (turned) {
      std::swap(shape[0], shape[1]);
    }
    if (packed) {
      for (const char* part : {".codes", ".scales", ".factors", ".mean"}) {
        tensors_.erase(module + part);
      }
      tensors_[module + ".weight"] = {DType::f32, shape};
    }
    check_shape(from, module + ".lora_A", {update.rank, shape[1]});
    check_shape(from, module + ".lora_B", {shape[0], update.rank});
    tensors_.erase(module + ".lora_A");
    tensors_.erase(module + ".lora_B");
    if (update.dora) {
      check_shape(from, module + ".magnitude", {shape[0]});
      tensors_.erase(module + ".magnitude");
    }
    merged_.emplace(module + ".weight", MergedUpdate{module, std::move(update), turned});
  }
}

std::uint64_t MergedWeights::bytes_read() const { return from_.bytes_read(); }

std::string MergedWeights::stored_type(const std::string& name) const {
  const DType sums = info(name).dtype == DType::f64 ? DType::f64 : DType::f32;
  return merged_.contains(name) ? std::string(name_of(sums)) : from_.stored_type(name);
}

Tensor MergedWeights::stored_rows(const std::string& name, std::int64_t row,
                                  std::int64_t rows) const {
  info(name);  // throws for a name that is not there
  return merged_.contains(name) ? Tensor() : from_.stored_rows(name, row, rows);
}

void MergedWeights::copy_box(const std::string& name, const LocalPart& box,
                             const Tensor& into) const {
  const auto found = merged_.find(name);
  if (found == merged_.end()) {
    from_.read(name, box, into);
    return;
  }
  const MergedUpdate& merged = found->second;
  const NoGrad constant;
  const DType dtype = info(name).dtype == DType::f64 ? DType::f64 : DType::f32;
  const std::int64_t row = box.offset[0];
  const std::int64_t rows = box.shape[0];
  Tensor result;
  if (merged.transposed) {
    const std::int64_t all = info(name).shape[0];
    const Tensor whole = ops::transpose(read_as(from_, name, dtype, 0, all), 0, 1);
    const Tensor turned = merged_rows(merged, whole, 0, whole.size(0));
    result = ops::narrow(ops::transpose(turned, 0, 1), 0, row, rows);
  } else {
    const Tensor weight = merged.update.packing.empty() ? read_as(from_, name, dtype, row, rows)
                                                        : read_nf4(from_, merged.module, row, rows);
    result = merged_rows(merged, weight, row, rows);
  }
  ops::copy_(into, ops::narrow(result, 1, box.offset[1], box.shape[1]));
}

Tensor MergedWeights::merged_rows(const MergedUpdate& merged, const Tensor& weight,
                                  std::int64_t row, std::int64_t rows) const {
  const auto& [module, update, transposed] = merged;
  const DType dtype = weight.dtype();
  const Tensor a = read_as(from_, module + ".lora_A", dtype, 0, update.rank);
  const Tensor b = read_as(from_, module + ".lora_B", dtype, row, rows);
  Tensor sum = ops::add(weight, ops::matmul(b, a), update.scale());
  if (!update.dora) {
    return sum;
  }
  const Tensor length = ops::sqrt(ops::sum(ops::square(sum), {1}, true));
  const Tensor magnitude = read_as(from_, module + ".magnitude", dtype, row, rows);
  return ops::mul(sum, ops::div(ops::view(magnitude, {rows, 1}), length));
}

}  // namespace tessera::hub
