// Folders in Hugging Face's format by the names of a model's parameters, and back: any box of a
// tensor, as a rank or a writer of large tensors asks for it.
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
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
    for (const std::int64_t begin : {std::int64_t{1}, extent / 3 - 1, 2 * extent / 3}) {
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
