// Folders in Hugging Face's format by the names of a model's parameters, and back: any box of a
// tensor, as a rank or a writer of large tensors asks for it.
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "support.hpp"

import tessera.base;
import tessera.plugin;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.nn;
import tessera.models;
import tessera.checkpoint;
import tessera.hub;

using namespace tessera;

namespace {

const std::string folder = TESSERA_SOURCE_FOLDER "/tests/reference/data/gpt2/tied";

/// The box by the source, and cut from the whole tensor.
void has_the_box(const TensorSource& source, const std::string& name, const Tensor& whole,
                 const LocalPart& box) {
  INFO(name << " from " << to_string(box.offset) << ", " << to_string(box.shape));
  const Tensor part = empty(box.shape);
  source.read(name, box, part);
  Tensor cut = whole;
  for (int dim = 0; dim < whole.dims(); ++dim) {
    cut = ops::narrow(cut, dim, box.offset[dim], box.shape[dim]);
  }
  CHECK(to_doubles(part) == to_doubles(cut));
}

/// The whole tensor, and boxes that begin and end inside of it, across the thirds of each dim.
void has_all_boxes(const TensorSource& source, const std::string& name, const Tensor& whole) {
  has_the_box(source, name, whole, {Dims::filled(whole.dims(), 0), whole.shape()});
  for (int dim = 0; dim < whole.dims(); ++dim) {
    const std::int64_t extent = whole.size(dim);
    for (const std::int64_t begin :
         {std::int64_t{1}, std::max<std::int64_t>(extent / 3 - 1, 0), 2 * extent / 3}) {
      LocalPart box{Dims::filled(whole.dims(), 0), whole.shape()};
      box.offset[dim] = begin;
      box.shape[dim] = extent / 2 < extent - begin ? extent / 2 : extent - begin;
      has_the_box(source, name, whole, box);
    }
  }
}

double deviation_of(const Tensor& values) {
  double squares = 0;
  for (const double value : to_doubles(values)) {
    squares += value * value;
  }
  return std::sqrt(squares / static_cast<double>(values.numel()));
}

}  // namespace

TEST_CASE("boxes of a fused and transposed tensor are those of its parts, both ways") {
  const NoGrad no_grad;
  plugin::host().load(TESSERA_SHIPPED_PLUGINS "/gpt2.so");
  const hub::ModelShape shape = hub::read_model_folder(folder);
  const SafetensorsFolder stored(folder);
  const hub::HubWeights weights(stored, hub::family_of(shape), hub::sizes_of(shape));
  const hub::HubExport back(weights, "", hub::family_of(shape), hub::sizes_of(shape));
  const std::string attention = "transformer.h.1.attn.";
  const Tensor fused = stored.read(attention + "c_attn.weight");
  const Tensor bias = stored.read(attention + "c_attn.bias");
  std::int64_t part = 0;
  for (const char* name : {"q_proj", "k_proj", "v_proj"}) {
    has_all_boxes(weights, attention + name + ".weight",
                  ops::transpose(ops::narrow(fused, 1, part * 40, 40), 0, 1));
    has_all_boxes(weights, attention + name + ".bias", ops::narrow(bias, 0, part * 40, 40));
    ++part;
  }
  REQUIRE(back.tensors() == stored.tensors());
  for (const auto& [name, info] : stored.tensors()) {
    has_all_boxes(back, name, stored.read(name));
  }
}

namespace {

const std::string packed_layer = "model.layers.0.mlp.experts.";

hub::ModelShape small_gpt_oss() {
  return hub::parse_hub_config(R"({"model_type": "gpt_oss", "vocab_size": 8, "hidden_size": 64,
      "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 4,
      "intermediate_size": 32, "num_local_experts": 2, "num_experts_per_tok": 1,
      "quantization_config": {"quant_method": "mxfp4"}})",
                               "config.json");
}

}  // namespace

TEST_CASE("experts in MXFP4 are read as transformers reads them, gates and the rest in turns") {
  const NoGrad no_grad;
  const hub::ModelShape shape = small_gpt_oss();
  const SafetensorsFile stored(TESSERA_SOURCE_FOLDER "/tests/reference/data/mxfp4.safetensors");
  const Tensor values = stored.read("values");  // [experts, in, gates and the rest]
  const Tensor rows = ops::contiguous(ops::transpose(values, 1, 2));
  const std::unique_ptr<TensorSource> unpacked = hub::unpacked_mxfp4(stored);
  REQUIRE(unpacked != nullptr);
  CHECK(unpacked->stored_type(packed_layer + "gate_up_proj") == "MXFP4");
  has_all_boxes(*unpacked, packed_layer + "gate_up_proj", rows);
  const hub::HubWeights weights(stored, hub::family_of(shape), hub::sizes_of(shape));
  std::int64_t part = 0;
  for (const char* name : {"gate_proj", "up_proj"}) {
    has_all_boxes(weights, packed_layer + name,
                  ops::contiguous(ops::transpose(ops::slice(values, 2, part, 64, 2), 1, 2)));
    ++part;
  }
  // An export has them as numbers.
  const hub::HubExport back(weights, "", hub::family_of(shape), hub::sizes_of(shape));
  has_all_boxes(back, packed_layer + "gate_up_proj", values);
  CHECK(hub::hub_config(shape).find("quantization_config") == std::string::npos);
  CHECK(hub::unpacked_mxfp4(TensorsInMemory({{"values", values}})) == nullptr);
}

TEST_CASE("packed experts that do not fit are refused by name") {
  const SafetensorsFile stored(TESSERA_SOURCE_FOLDER "/tests/reference/data/mxfp4.safetensors");
  const std::string name = packed_layer + "gate_up_proj";
  const Tensor blocks = stored.read(name + "_blocks");
  const Tensor scales = stored.read(name + "_scales");
  const auto refused = [&](std::map<std::string, Tensor> tensors) {
    return testing::input_error([&] {
      const TensorsInMemory source(std::move(tensors));
      const auto unpacked = hub::unpacked_mxfp4(source);
      unpacked->read(name);
    });
  };
  const auto has = [](const std::string& text, const std::string& part) {
    CHECK_THAT(text, Catch::Contains(part));
  };
  has(refused({{name + "_blocks", blocks}}), name + "_scales'");
  has(refused({{name + "_scales", scales}}), name + "_blocks'");
  has(refused({{name + "_blocks", ops::select(blocks, 0, 0)}, {name + "_scales", scales}}),
      "it is not a part of experts in MXFP4 (expected u8 [experts, out, in / 32, 16], got u8 [64, "
      "2, 16])");
  has(refused({{name + "_blocks", blocks}, {name + "_scales", ops::narrow(scales, 1, 0, 3)}}),
      "expected u8 [2, 64, 2], got u8 [2, 3, 2]");
  has(refused({{name + "_blocks", blocks}, {name + "_scales", ops::cast(scales, DType::i8)}}),
      "expected u8 [2, 64, 2], got i8 [2, 64, 2]");
  has(refused({{name + "_blocks", blocks},
               {name + "_scales", scales},
               {name, full({2}, 1, DType::f32)}}),
      "it is there twice");
  const Tensor without = ops::add_scalar(scales, 0);
  without.data<std::uint8_t>()[5] = 255;
  has(refused({{name + "_blocks", blocks}, {name + "_scales", without}}),
      "it has a scale of 255, which stands for no number");
  has(testing::input_error([] {
        hub::parse_hub_config(R"({"model_type": "gpt_oss", "vocab_size": 8, "hidden_size": 64,
            "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 32,
            "quantization_config": {"quant_method": "fp8"}})",
                              "config.json");
      }),
      "quantization_config");
}

TEST_CASE("what GPT-2's layers add to the residual stream begins smaller") {
  plugin::host().load(TESSERA_SHIPPED_PLUGINS "/gpt2.so");
  const models::ModelFamily& family = models::model_family("gpt2");
  models::ModelSizes sizes{
      .vocab = 16, .max_positions = 8, .values = models::ModelValues(family.keys())};
  REQUIRE(family.complete(sizes).empty());
  const auto model = family.build(sizes, 0);
  nn::materialize(*model);
  set_seed(1);
  nn::initialize(*model);
  for (const auto& [name, parameter] : nn::named_parameters(*model)) {
    if (name.ends_with("_proj.weight") || name.ends_with("c_fc.weight")) {
      INFO(name);
      const bool added = name.ends_with("o_proj.weight") || name.ends_with("c_proj.weight");
      CHECK(deviation_of(parameter->value) == Approx(added ? 0.02 / 4 : 0.02).epsilon(0.02));
    }
  }
}
