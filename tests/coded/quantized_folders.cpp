// Folders whose weights are in the codes of GPTQ, AWQ and bitsandbytes: their values, those of
// boxes, and what is refused.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"
#include "folder.hpp"
#include "safetensors.hpp"

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.checkpoint;
import tessera.coded;
import tessera.hub;
import tessera.text;

using namespace tessera;
using nlohmann::json;

namespace {

const std::string data = TESSERA_REFERENCE_DATA "/quantized/";
const std::string module_name = "model.layers.0.self_attn.q_proj";
const std::string weight = module_name + ".weight";

using Stored = std::map<std::string, StoredTensor>;

/// Those of a method, and what they decode to as `values`.
Stored stored_of(const std::string& method) {
  return read_safetensors(data + method + ".safetensors");
}

json config_of(const std::string& method) {
  return json::parse(testing::read_file(data + method + ".json"));
}

/// A folder with these tensors, opened as commands open it.
std::unique_ptr<TensorSource> opened(const testing::Folder& scratch, Stored tensors,
                                     const json& config) {
  tensors.erase("values");
  scratch.write("folder/config.json", config.dump());
  write_safetensors(scratch / "folder/model.safetensors", tensors);
  return std::move(hub::open_hub_tensors(scratch / "folder").source);
}

std::vector<double> cut_of(const Tensor& whole, const LocalPart& box) {
  const Tensor rows = ops::narrow(whole, 0, box.offset[0], box.shape[0]);
  return to_doubles(ops::narrow(rows, 1, box.offset[1], box.shape[1]));
}

std::string refusal(const Stored& tensors, const json& config) {
  return testing::input_error([&] {
    const testing::Folder scratch;
    opened(scratch, tensors, config)->read(weight);
  });
}

}  // namespace

TEST_CASE("weights in codes have the values that their programs decode, in any box") {
  const NoGrad no_grad;
  const std::map<std::string, std::string> types = {{"gptq", "GPTQ, 4 bits"},
                                                    {"gptq_order", "GPTQ, 4 bits"},
                                                    {"gptq_eight", "GPTQ, 8 bits"},
                                                    {"gptq_second", "GPTQ, 4 bits"},
                                                    {"awq", "AWQ, 4 bits"},
                                                    {"nf4", "bitsandbytes, nf4"},
                                                    {"nf4_nested", "bitsandbytes, nf4"},
                                                    {"fp4", "bitsandbytes, fp4"},
                                                    {"int8", "bitsandbytes, 8 bits"}};
  for (const auto& [method, type] : types) {
    INFO(method);
    const testing::Folder scratch;
    const auto source = opened(scratch, stored_of(method), config_of(method));
    const Tensor values = SafetensorsFile(data + method + ".safetensors").read("values");
    REQUIRE(source->info(weight).shape == values.shape());
    CHECK(source->info(weight).dtype == values.dtype());
    CHECK(source->stored_type(weight) == type);
    CHECK(source->tensors().size() == 2);  // and the bias
    CHECK(source->read(module_name + ".bias").numel() == values.size(0));
    CHECK(to_doubles(source->read(weight)) == to_doubles(values));
    const std::int64_t rows = values.size(0);
    const std::int64_t columns = values.size(1);
    for (const LocalPart& box :
         {LocalPart{{1, 0}, {rows - 2, columns}}, LocalPart{{rows - 1, 0}, {1, columns}},
          LocalPart{{0, 3}, {rows, columns - 8}}, LocalPart{{rows / 2, columns / 2 + 1}, {2, 9}}}) {
      const Tensor part = empty(box.shape, DType::f32);
      source->read(weight, box, part);
      CHECK(to_doubles(part) == cut_of(values, box));
    }
  }
}

TEST_CASE("a model whose layers are in GPTQ has the logits of its values") {
  const auto logits = [](coded::WeightForm form) {
    text::ModelFiles files(data + "model");
    files.precision = form;
    const text::TextModel model(files);
    return model.ranks().next_logits(std::vector<std::int64_t>{3, 1, 7, 5}, 1, true);
  };
  const std::vector<double> expected =
      to_doubles(SafetensorsFile(data + "logits.safetensors").read("logits"));
  const std::vector<double> exact = logits(coded::WeightForm::f32);
  REQUIRE(exact.size() == expected.size());
  for (std::size_t i = 0; i < exact.size(); ++i) {
    CHECK(std::abs(exact[i] - expected[i]) < 1e-5);
  }
  // An export has numbers.
  CHECK(hub::hub_config(hub::read_model_folder(data + "model")).find("quantization_config") ==
        std::string::npos);
  const std::vector<double> stored = logits(coded::WeightForm::stored);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    CHECK(std::abs(stored[i] - exact[i]) < 1e-5);
  }
}

TEST_CASE("what of quantization_config is not understood is refused by its key") {
  const auto refused = [](const std::string& method, const std::string& key, const json& value,
                          const std::string& expected) {
    json config = config_of(method);
    config["quantization_config"][key] = value;
    CHECK_THAT(refusal(stored_of(method), config),
               Catch::Contains("quantization_config." + key + ": ") && Catch::Contains(expected));
  };
  refused("gptq", "bits", 3, "3 is not supported (expected 4 or 8)");
  refused("gptq", "bits", "4", "expected 4 or 8");
  refused("gptq", "group_size", 0, "expected -1, or a number of inputs");
  refused("gptq", "checkpoint_format", "marlin", "\"marlin\" is not supported");
  refused("gptq", "is_marlin_format", true, "expected false");
  refused("gptq", "dynamic", {{"+:.*", {{"bits", 8}}}}, "expected {}");
  refused("gptq", "rotation", "hadamard", "expected a key that is known");
  refused("awq", "version", "gemv", "expected \"gemm\"");
  refused("awq", "zero_point", false, "expected true");
  refused("nf4", "bnb_4bit_quant_storage", "bfloat16", "expected \"uint8\"");
}

TEST_CASE("parts of a weight in codes that do not fit are refused by name") {
  const auto without = [](const std::string& method, const std::string& part) {
    Stored tensors = stored_of(method);
    REQUIRE(tensors.erase(module_name + part) == 1);
    return refusal(tensors, config_of(method));
  };
  CHECK_THAT(without("gptq", ".qzeros"), Catch::Contains("no tensor '" + module_name + ".qzeros'"));
  CHECK_THAT(without("awq", ".scales"), Catch::Contains("no tensor '" + module_name + ".scales'"));
  CHECK_THAT(without("nf4", ".weight.absmax"),
             Catch::Contains("no tensor '" + weight + ".absmax'"));
  CHECK_THAT(without("int8", ".weight"), Catch::Contains("no tensor '" + weight + "'"));
  const auto changed = [](const std::string& method, const std::string& part, const auto& change) {
    Stored tensors = stored_of(method);
    change(tensors.at(module_name + part));
    return refusal(tensors, config_of(method));
  };
  CHECK_THAT(
      changed("gptq", ".scales", [](StoredTensor& part) { part.shape = {2, 48}; }),
      Catch::Contains(".scales': it is not a part of a weight in codes (expected floating numbers "
                      "[4, 24], got f16 [2, 48])"));
  CHECK_THAT(
      changed("gptq_order", ".g_idx", [](StoredTensor& part) { part.bytes[0] = std::byte{9}; }),
      Catch::Contains("expected groups from 0 to 3, got 9"));
  CHECK_THAT(
      changed("int8", ".weight_format", [](StoredTensor& part) { part.bytes[0] = std::byte{1}; }),
      Catch::Contains("expected 0, rows"));
  CHECK_THAT(changed("nf4", ".weight.quant_state.bitsandbytes__nf4",
                     [](StoredTensor& part) { part.bytes[0] = std::byte{'['}; }),
             Catch::Contains("expected a JSON object with shape (out, in) and blocksize"));
  Stored twice = stored_of("gptq");
  twice[weight] = twice.at(module_name + ".bias");
  CHECK_THAT(refusal(twice, config_of("gptq")), Catch::Contains("it is there twice"));
}
