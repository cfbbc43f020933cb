// Shapes: O features of a layer's result, I of its input; G groups of inputs.
module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.hub;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.models;
import tessera.checkpoint;
import :quantized_folder;

namespace tessera::hub {
namespace {

using Json = nlohmann::json;

constexpr std::string_view weight_end = ".weight";

// Keys of quantization_config that do not change what codes mean.
constexpr std::string_view gptq_others[] = {"desc_act",
                                            "sym",
                                            "damp_percent",
                                            "true_sequential",
                                            "static_groups",
                                            "model_name_or_path",
                                            "model_file_base_name",
                                            "dataset",
                                            "tokenizer",
                                            "batch_size",
                                            "block_name_to_quantize",
                                            "module_name_preceding_first_block",
                                            "modules_in_block_to_quantize",
                                            "use_cuda_fp16",
                                            "model_seqlen",
                                            "pad_token_id",
                                            "use_exllama",
                                            "disable_exllama",
                                            "exllama_config",
                                            "max_input_length",
                                            "cache_block_outputs",
                                            "backend",
                                            "meta",
                                            "lm_head",
                                            "damp_auto_increment",
                                            "quantizer"};
constexpr std::string_view awq_others[] = {
    "modules_to_not_convert", "do_fuse", "modules_to_fuse", "fuse_max_seq_len", "backend",
    "exllama_config",         "w_bit"};
constexpr std::string_view bitsandbytes_others[] = {"load_in_4bit",
                                                    "load_in_8bit",
                                                    "_load_in_4bit",
                                                    "_load_in_8bit",
                                                    "bnb_4bit_quant_type",
                                                    "bnb_4bit_compute_dtype",
                                                    "bnb_4bit_use_double_quant",
                                                    "llm_int8_threshold",
                                                    "llm_int8_skip_modules",
                                                    "llm_int8_enable_fp32_cpu_offload"};

/// Part of a matrix: rows of the weight and columns, as a box has them.
struct WeightBox {
  std::int64_t row;
  std::int64_t rows;
  std::int64_t column;
  std::int64_t columns;
};

/// A weight in codes: its description, and its values as f32 [rows, columns] of a box.
struct CodedWeight {
  TensorInfo info;
  std::string type;  // "GPTQ, 4 bits"
  std::function<Tensor(const WeightBox& box)> decode;
};

/// 32 / bits codes in a word: MODULE.qweight, .qzeros, .scales and perhaps .g_idx.
struct WordCodes {
  std::string module;
  std::int64_t inputs;
  std::int64_t group;  // inputs that share a scale, in their order or as g_idx says
  std::int64_t groups;
  int bits;
  std::int64_t added;  // to a stored zero
};

/// The keys of quantization_config, of which each has to be asked for.
class QuantizedKeys {
 public:
  QuantizedKeys(std::string where, const Json& keys) : where_(std::move(where)), keys_(keys) {}

  /// The value that decides how codes are read; `absent` where it is not there.
  Json value(const std::string& key, const Json& absent) {
    known_.push_back(key);
    return keys_.contains(key) && !keys_[key].is_null() ? keys_[key] : absent;
  }
  void only(const std::string& key, const Json& allowed) {
    const Json found = value(key, allowed);
    if (found != allowed) {
      refuse(key, found, json_text(allowed));
    }
  }
  /// Error (input): there is a key besides these and those that were asked for, as it may change
  /// what codes mean.
  void others_are(std::span<const std::string_view> keys) const {
    for (const auto& [key, found] : keys_.items()) {
      if (std::ranges::find(known_, key) == known_.end() &&
          std::ranges::find(keys, key) == keys.end()) {
        refuse(key, found, "a key that is known");
      }
    }
  }
  [[noreturn]] void refuse(const std::string& key, const Json& found, std::string expected) const {
    fail_input({.thing = fmt::format("{}: quantization_config.{}", where_, key),
                .wrong = fmt::format("{} is not supported", json_text(found)),
                .expected = std::move(expected)});
  }
  /// A number of inputs that share a scale; -1: all of them.
  std::int64_t group_size() {
    const Json found = value("group_size", 128);
    const bool fits =
        found.is_number_integer() && (found == -1 || (found > 0 && found <= std::int64_t{1} << 20));
    if (!fits) {
      refuse("group_size", found, "-1, or a number of inputs");
    }
    return found.get<std::int64_t>();
  }

 private:
  std::string where_;
  const Json& keys_;
  std::vector<std::string> known_ = {"quant_method"};
};

class QuantizedFolder : public TensorSource {
 public:
  explicit QuantizedFolder(std::unique_ptr<TensorSource> folder)
      : TensorSource(*folder), folder_(std::move(folder)) {}

  std::uint64_t bytes_read() const override { return folder_->bytes_read(); }
  std::string stored_type(const std::string& name) const override {
    const auto found = weights_.find(name);
    return found == weights_.end() ? folder_->stored_type(name) : found->second.type;
  }

  void add_gptq(QuantizedKeys& keys);
  void add_awq(QuantizedKeys& keys);
  void add_bitsandbytes(QuantizedKeys& keys);

 private:
  /// The beginnings of the names that end so.
  std::vector<std::string> modules_with(std::string_view end) const;
  [[noreturn]] void refuse(const std::string& name, std::string expected, std::string got) const;
  /// Error (input): the tensor is not there or has another type or shape.
  void check(const std::string& name, DType dtype, const Dims& shape) const;
  void check_floating(const std::string& name, const Dims& shape) const;
  Tensor part(const std::string& name, const Dims& offset, const Dims& shape) const;
  std::vector<float> floats(const std::string& name) const;
  /// The weight of the module takes the place of these tensors.
  void add(const std::string& module, std::span<const std::string> parts, CodedWeight weight);
  std::vector<std::int64_t> groups_of(const WordCodes& stored) const;
  Tensor gptq_values(const WordCodes& stored, const WeightBox& box) const;
  Tensor awq_values(const WordCodes& stored, const WeightBox& box) const;
  void add_four_bits(const std::string& module, std::string_view kind);
  void add_eight_bits(const std::string& module);
  std::vector<float> block_scales(const std::string& weight, const Json& state, std::int64_t first,
                                  std::int64_t count) const;
  Tensor four_bits(const std::string& weight, const Json& state, std::int64_t inputs,
                   const WeightBox& box) const;

  void copy_box(const std::string& name, const LocalPart& box, const Tensor& into) const override {
    const auto found = weights_.find(name);
    if (found == weights_.end()) {
      folder_->read(name, box, into);
      return;
    }
    const Tensor values =
        found->second.decode({box.offset[0], box.shape[0], box.offset[1], box.shape[1]});
    ops::copy_(into, ops::cast(ops::cast(values, found->second.info.dtype), into.dtype()));
  }

  std::unique_ptr<TensorSource> folder_;
  std::map<std::string, CodedWeight> weights_;
};

std::vector<std::string> QuantizedFolder::modules_with(std::string_view end) const {
  std::vector<std::string> modules;
  for (const auto& [name, info] : folder_->tensors()) {
    if (name.size() > end.size() && name.ends_with(end)) {
      modules.push_back(name.substr(0, name.size() - end.size()));
    }
  }
  return modules;
}

void QuantizedFolder::refuse(const std::string& name, std::string expected, std::string got) const {
  fail_input({.thing = path() + ": tensor '" + name + "'",
              .wrong = "it is not a part of a weight in codes",
              .expected = std::move(expected),
              .got = std::move(got)});
}

void QuantizedFolder::check(const std::string& name, DType dtype, const Dims& shape) const {
  const TensorInfo& info = folder_->info(name);
  if (info.dtype != dtype || !(info.shape == shape)) {
    refuse(name, fmt::format("{} {}", name_of(dtype), to_string(shape)),
           fmt::format("{} {}", name_of(info.dtype), to_string(info.shape)));
  }
}

void QuantizedFolder::check_floating(const std::string& name, const Dims& shape) const {
  const TensorInfo& info = folder_->info(name);
  if (!is_floating(info.dtype) || !(info.shape == shape)) {
    refuse(name, fmt::format("floating numbers {}", to_string(shape)),
           fmt::format("{} {}", name_of(info.dtype), to_string(info.shape)));
  }
}

Tensor QuantizedFolder::part(const std::string& name, const Dims& offset, const Dims& shape) const {
  const TensorInfo& info = folder_->info(name);
  const Tensor values = empty(shape, is_floating(info.dtype) ? DType::f32 : info.dtype);
  folder_->read(name, {offset, shape}, values);
  return values;
}

std::vector<float> QuantizedFolder::floats(const std::string& name) const {
  const Dims& shape = folder_->info(name).shape;
  const Tensor values = part(name, Dims::filled(shape.size(), 0), shape);
  return {values.data<float>(), values.data<float>() + values.numel()};
}

void QuantizedFolder::add(const std::string& module, std::span<const std::string> parts,
                          CodedWeight weight) {
  for (const std::string& each : parts) {
    tensors_.erase(each);
  }
  const std::string name = module + std::string(weight_end);
  if (!tensors_.emplace(name, weight.info).second) {
    fail_input({.thing = path() + ": tensor '" + name + "'", .wrong = "it is there twice"});
  }
  weights_.emplace(name, std::move(weight));
}

// ---- GPTQ and AWQ: 32 / bits codes in a word ----

/// Code `place` of a word, the lowest bits first.
std::int64_t code_at(std::int32_t word, std::int64_t place, int bits) {
  return static_cast<std::uint32_t>(word) >> (place * bits) & ((1U << bits) - 1);
}

/// The group of each input. Error (input): of one that has no scale.
std::vector<std::int64_t> QuantizedFolder::groups_of(const WordCodes& stored) const {
  std::vector<std::int64_t> all(static_cast<std::size_t>(stored.inputs));
  const std::string name = stored.module + ".g_idx";
  if (!folder_->contains(name)) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i] = static_cast<std::int64_t>(i) / stored.group;
    }
    return all;
  }
  const Tensor given = part(name, {0}, {stored.inputs});
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i] = given.data<std::int32_t>()[i];
    if (all[i] < 0 || all[i] >= stored.groups) {
      refuse(name, fmt::format("groups from 0 to {}", stored.groups - 1),
             fmt::format("{}", all[i]));
    }
  }
  return all;
}

/// Words hold inputs of one output; zeros those of outputs.
Tensor QuantizedFolder::gptq_values(const WordCodes& stored, const WeightBox& box) const {
  const std::int64_t in_word = 32 / stored.bits;
  const std::vector<std::int64_t> of_input = groups_of(stored);
  const std::int64_t first = box.column / in_word;
  const std::int64_t count = (box.column + box.columns + in_word - 1) / in_word - first;
  const std::int64_t zero_first = box.row / in_word;
  const std::int64_t zero_count = (box.row + box.rows + in_word - 1) / in_word - zero_first;
  const Tensor words = part(stored.module + ".qweight", {first, box.row}, {count, box.rows});
  const Tensor zeros =
      part(stored.module + ".qzeros", {0, zero_first}, {stored.groups, zero_count});
  const Tensor scales = part(stored.module + ".scales", {0, box.row}, {stored.groups, box.rows});
  const Tensor values = empty({box.rows, box.columns}, DType::f32);
  for (std::int64_t o = 0; o < box.rows; ++o) {
    const std::int64_t out = box.row + o;
    for (std::int64_t i = 0; i < box.columns; ++i) {
      const std::int64_t in = box.column + i;
      const std::int64_t g = of_input[static_cast<std::size_t>(in)];
      const std::int32_t word = words.data<std::int32_t>()[(in / in_word - first) * box.rows + o];
      const std::int32_t of_zero =
          zeros.data<std::int32_t>()[g * zero_count + out / in_word - zero_first];
      const std::int64_t zero = (code_at(of_zero, out % in_word, stored.bits) + stored.added) &
                                ((std::int64_t{1} << stored.bits) - 1);
      values.data<float>()[o * box.columns + i] =
          scales.data<float>()[g * box.rows + o] *
          static_cast<float>(code_at(word, in % in_word, stored.bits) - zero);
    }
  }
  return values;
}

/// Words hold outputs of one input, with the even ones first.
Tensor QuantizedFolder::awq_values(const WordCodes& stored, const WeightBox& box) const {
  constexpr std::int64_t in_word = 8;
  constexpr std::array<std::int64_t, in_word> places = {0, 4, 1, 5, 2, 6, 3, 7};
  const std::int64_t first = box.row / in_word;
  const std::int64_t count = (box.row + box.rows + in_word - 1) / in_word - first;
  const Tensor words = part(stored.module + ".qweight", {box.column, first}, {box.columns, count});
  const Tensor zeros = part(stored.module + ".qzeros", {0, first}, {stored.groups, count});
  const Tensor scales = part(stored.module + ".scales", {0, box.row}, {stored.groups, box.rows});
  const Tensor values = empty({box.rows, box.columns}, DType::f32);
  for (std::int64_t o = 0; o < box.rows; ++o) {
    const std::int64_t word = (box.row + o) / in_word - first;
    const std::int64_t place = places.at(static_cast<std::size_t>((box.row + o) % in_word));
    for (std::int64_t i = 0; i < box.columns; ++i) {
      const std::int64_t g = (box.column + i) / stored.group;
      const std::int64_t zero =
          code_at(zeros.data<std::int32_t>()[g * count + word], place, stored.bits);
      const std::int64_t code =
          code_at(words.data<std::int32_t>()[i * count + word], place, stored.bits);
      values.data<float>()[o * box.columns + i] =
          scales.data<float>()[g * box.rows + o] * static_cast<float>(code - zero);
    }
  }
  return values;
}

void QuantizedFolder::add_gptq(QuantizedKeys& keys) {
  const Json bits_value = keys.value("bits", 4);
  if (bits_value != 4 && bits_value != 8) {
    keys.refuse("bits", bits_value, "4 or 8");
  }
  const int bits = bits_value.get<int>();
  const std::int64_t size = keys.group_size();
  const Json form = keys.value("checkpoint_format", "gptq");
  if (form != "gptq" && form != "gptq_v2") {
    keys.refuse("checkpoint_format", form, "\"gptq\" or \"gptq_v2\"");
  }
  const std::int64_t added = form == "gptq" ? 1 : 0;  // zeros are stored less one
  keys.only("is_marlin_format", false);
  keys.only("dynamic", Json::object());
  keys.only("pack_dtype", "int32");
  keys.others_are(gptq_others);
  const std::int64_t in_word = 32 / bits;
  for (const std::string& module : modules_with(".qweight")) {
    const std::string codes = module + ".qweight";
    const std::string zeros = module + ".qzeros";
    const std::string scales = module + ".scales";
    const Dims& words = folder_->info(codes).shape;
    if (words.size() != 2) {
      refuse(codes, "i32 [in / " + std::to_string(in_word) + ", out]", to_string(words));
    }
    const Dims shape{words[1], words[0] * in_word};
    const std::int64_t inputs = shape[1];
    const std::int64_t group = size == -1 ? std::max<std::int64_t>(inputs, 1) : size;
    const std::int64_t groups = (inputs + group - 1) / group;
    check(codes, DType::i32, words);
    check(zeros, DType::i32, {groups, (shape[0] + in_word - 1) / in_word});
    check_floating(scales, {groups, shape[0]});
    if (folder_->contains(module + ".g_idx")) {
      check(module + ".g_idx", DType::i32, {inputs});
    }
    const std::string parts[] = {codes, zeros, scales, module + ".g_idx"};
    add(module, parts,
        {{folder_->info(scales).dtype, shape},
         fmt::format("GPTQ, {} bits", bits),
         [this, stored = WordCodes{module, inputs, group, groups, bits, added}](
             const WeightBox& box) { return gptq_values(stored, box); }});
  }
}

void QuantizedFolder::add_awq(QuantizedKeys& keys) {
  keys.only("bits", 4);
  keys.only("zero_point", true);
  const std::int64_t size = keys.group_size();
  const Json form = keys.value("version", "gemm");
  if (form != "gemm" && form != "GEMM") {
    keys.refuse("version", form, "\"gemm\"");
  }
  keys.others_are(awq_others);
  constexpr std::int64_t in_word = 8;
  for (const std::string& module : modules_with(".qweight")) {
    const std::string codes = module + ".qweight";
    const std::string zeros = module + ".qzeros";
    const std::string scales = module + ".scales";
    const Dims& words = folder_->info(codes).shape;
    if (words.size() != 2) {
      refuse(codes, "i32 [in, out / 8]", to_string(words));
    }
    const Dims shape{words[1] * in_word, words[0]};
    const std::int64_t group = size == -1 ? std::max<std::int64_t>(shape[1], 1) : size;
    const std::int64_t groups = (shape[1] + group - 1) / group;
    check(codes, DType::i32, words);
    check(zeros, DType::i32, {groups, words[1]});
    check_floating(scales, {groups, shape[0]});
    const std::string parts[] = {codes, zeros, scales};
    add(module, parts,
        {{folder_->info(scales).dtype, shape},
         "AWQ, 4 bits",
         [this, stored = WordCodes{module, shape[1], group, groups, 4, 0}](const WeightBox& box) {
           return awq_values(stored, box);
         }});
  }
}

// ---- bitsandbytes ----

/// A whole number from 1 on of a quant_state; 0: it has none.
std::int64_t natural_of(const Json& state, const char* key) {
  const auto found = state.find(key);
  const bool fits = found != state.end() && found->is_number_unsigned() &&
                    *found <= std::numeric_limits<std::int32_t>::max();
  return fits ? found->get<std::int64_t>() : 0;
}

constexpr std::int64_t levels = 16;         // of a code
constexpr std::int64_t scale_levels = 256;  // of a scale's code

/// The scales of blocks, which may be codes themselves.
std::vector<float> QuantizedFolder::block_scales(const std::string& weight, const Json& state,
                                                 std::int64_t first, std::int64_t count) const {
  const Tensor stored = part(weight + ".absmax", {first}, {count});
  std::vector<float> scales(static_cast<std::size_t>(count));
  if (stored.dtype() == DType::f32) {
    std::copy_n(stored.data<float>(), count, scales.begin());
    return scales;
  }
  const std::int64_t size = natural_of(state, "nested_blocksize");
  const std::vector<float> factors = floats(weight + ".nested_absmax");
  const std::vector<float> values = floats(weight + ".nested_quant_map");
  const auto offset = state.at("nested_offset").get<float>();
  for (std::int64_t i = 0; i < count; ++i) {
    const float scale = values[stored.data<std::uint8_t>()[i]] *
                        factors[static_cast<std::size_t>((first + i) / size)];
    scales[static_cast<std::size_t>(i)] = scale + offset;
  }
  return scales;
}

Tensor QuantizedFolder::four_bits(const std::string& weight, const Json& state, std::int64_t inputs,
                                  const WeightBox& box) const {
  const std::int64_t size = natural_of(state, "blocksize");
  const std::int64_t begin = box.row * inputs;
  const std::int64_t end = (box.row + box.rows) * inputs;
  const std::int64_t first_block = begin / size;
  const std::vector<float> scales =
      block_scales(weight, state, first_block, (end + size - 1) / size - first_block);
  const std::vector<float> values = floats(weight + ".quant_map");
  const std::int64_t first_byte = begin / 2;
  const Tensor bytes = part(weight, {first_byte, 0}, {(end + 1) / 2 - first_byte, 1});
  const Tensor decoded = empty({box.rows, box.columns}, DType::f32);
  for (std::int64_t row = 0; row < box.rows; ++row) {
    for (std::int64_t column = 0; column < box.columns; ++column) {
      const std::int64_t element = begin + row * inputs + box.column + column;
      const unsigned two = bytes.data<std::uint8_t>()[element / 2 - first_byte];
      const unsigned code = element % 2 == 0 ? two >> 4U : two & 15U;
      decoded.data<float>()[row * box.columns + column] =
          values[code] * scales[static_cast<std::size_t>(element / size - first_block)];
    }
  }
  return decoded;
}

/// X.weight in 4 bits, with the JSON object X.weight.quant_state.bitsandbytes__KIND.
void QuantizedFolder::add_four_bits(const std::string& module, std::string_view kind) {
  const std::string weight = module + std::string(weight_end);
  const std::string name = fmt::format("{}.quant_state.bitsandbytes__{}", weight, kind);
  const TensorInfo& info = folder_->info(name);
  constexpr std::int64_t most = 4096;
  if (info.dtype != DType::u8 || info.shape.size() != 1 || info.shape[0] > most) {
    refuse(name, "a JSON object of at most 4096 bytes", to_string(info.shape));
  }
  const Tensor text = part(name, {0}, info.shape);
  const std::string letters(reinterpret_cast<const char*>(text.data<std::uint8_t>()),
                            static_cast<std::size_t>(text.numel()));
  const Json state = Json::parse(letters, nullptr, false);
  const Json& sizes = state.is_object() ? state.value("shape", Json()) : Json();
  const auto is_size = [](const Json& size) {
    return size.is_number_unsigned() && size > 0 &&
           size <= std::numeric_limits<std::int32_t>::max();
  };
  const std::int64_t size = natural_of(state, "blocksize");
  if (!sizes.is_array() || sizes.size() != 2 || !is_size(sizes[0]) || !is_size(sizes[1]) ||
      size == 0) {
    refuse(name, "a JSON object with shape (out, in) and blocksize", letters.substr(0, 100));
  }
  const Dims shape{sizes[0].get<std::int64_t>(), sizes[1].get<std::int64_t>()};
  const std::map<std::string, DType> types = {
      {"float32", DType::f32}, {"float16", DType::f16}, {"bfloat16", DType::bf16}};
  const Json dtype = state.value("dtype", Json());
  const auto type = types.find(dtype.is_string() ? dtype.get<std::string>() : "");
  if (type == types.end()) {
    refuse(name, "dtype float32, float16 or bfloat16", json_text(dtype));
  }
  const std::int64_t blocks = (shape.product() + size - 1) / size;
  check(weight, DType::u8, {(shape.product() + 1) / 2, 1});
  check(weight + ".quant_map", DType::f32, {levels});
  const bool nested = folder_->info(weight + ".absmax").dtype == DType::u8;
  check(weight + ".absmax", nested ? DType::u8 : DType::f32, {blocks});
  if (nested) {
    const std::int64_t outer = natural_of(state, "nested_blocksize");
    if (outer == 0 || !state.value("nested_offset", Json()).is_number()) {
      refuse(name, "nested_blocksize and nested_offset", letters.substr(0, 100));
    }
    check(weight + ".nested_absmax", DType::f32, {(blocks + outer - 1) / outer});
    check(weight + ".nested_quant_map", DType::f32, {scale_levels});
  }
  const std::string parts[] = {weight,
                               name,
                               weight + ".quant_map",
                               weight + ".absmax",
                               weight + ".nested_absmax",
                               weight + ".nested_quant_map"};
  add(module, parts,
      {{type->second, shape},
       fmt::format("bitsandbytes, {}", kind),
       [this, weight, state, inputs = shape[1]](const WeightBox& box) {
         return four_bits(weight, state, inputs, box);
       }});
}

/// X.weight i8 [O, I] with the largest of each row, X.SCB f32 [O].
void QuantizedFolder::add_eight_bits(const std::string& module) {
  const std::string weight = module + std::string(weight_end);
  const Dims& shape = folder_->info(weight).shape;
  if (shape.size() != 2) {
    refuse(weight, "i8 [out, in]", to_string(shape));
  }
  check(weight, DType::i8, shape);
  check(module + ".SCB", DType::f32, {shape[0]});
  const std::string form = module + ".weight_format";
  if (folder_->contains(form) && to_doubles(folder_->read(form)) != std::vector<double>{0}) {
    refuse(form, "0, rows", "another order of the weight's elements");
  }
  const std::string parts[] = {weight, module + ".SCB", form};
  add(module, parts,
      {{DType::f32, shape}, "bitsandbytes, 8 bits", [this, module, weight](const WeightBox& box) {
         const Tensor codes = part(weight, {box.row, box.column}, {box.rows, box.columns});
         const Tensor largest = part(module + ".SCB", {box.row}, {box.rows});
         const Tensor values = empty(codes.shape(), DType::f32);
         for (std::int64_t row = 0; row < box.rows; ++row) {
           for (std::int64_t i = row * box.columns; i < (row + 1) * box.columns; ++i) {
             const auto code = static_cast<float>(codes.data<std::int8_t>()[i]);
             values.data<float>()[i] = code * largest.data<float>()[row] * (1.0F / 127);
           }
         }
         return values;
       }});
}

void QuantizedFolder::add_bitsandbytes(QuantizedKeys& keys) {
  keys.only("bnb_4bit_quant_storage", "uint8");
  keys.only("llm_int8_has_fp16_weight", false);
  keys.others_are(bitsandbytes_others);
  for (const std::string_view kind : {"nf4", "fp4"}) {
    for (const std::string& module :
         modules_with(fmt::format(".weight.quant_state.bitsandbytes__{}", kind))) {
      add_four_bits(module, kind);
    }
  }
  for (const std::string& module : modules_with(".SCB")) {
    add_eight_bits(module);
  }
}

}  // namespace

std::vector<std::string> readable_forms(const models::ModelFamily& family) {
  std::vector<std::string> forms = family.packed_forms();
  for (const char* const method : {"gptq", "awq", "bitsandbytes"}) {
    forms.emplace_back(method);
  }
  return forms;
}

std::unique_ptr<TensorSource> decoded_folder(std::unique_ptr<TensorSource> folder) {
  const std::string where = (std::filesystem::path(folder->path()) / "config.json").string();
  const auto config = read_json_object(where);
  const auto found = config.value.find("quantization_config");
  // What is wrong with config.json, or of another method, is refused where the model is read.
  if (!config.problem.empty() || found == config.value.end() || !found->is_object()) {
    return folder;
  }
  using Adds = void (QuantizedFolder::*)(QuantizedKeys&);
  const std::map<std::string, Adds> methods = {
      {"gptq", &QuantizedFolder::add_gptq},
      {"awq", &QuantizedFolder::add_awq},
      {"bitsandbytes", &QuantizedFolder::add_bitsandbytes}};
  const Json named = found->value("quant_method", Json());
  const auto method = methods.find(named.is_string() ? named.get<std::string>() : "");
  if (method == methods.end()) {
    return folder;
  }
  QuantizedKeys keys(where, *found);
  auto decoded = std::make_unique<QuantizedFolder>(std::move(folder));
  ((*decoded).*(method->second))(keys);
  return decoded;
}

}  // namespace tessera::hub
