module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>
module tessera.coded;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;

namespace tessera::coded {
namespace {

nn::ParameterPointer untrained(const Dims& shape, DType dtype) {
  const auto parameter = std::make_shared<nn::Parameter>(
      shape, dtype, nn::Initialization{.kind = nn::Initialization::Kind::packed});
  parameter->value.set_requires_grad(false);
  return parameter;
}

/// The parameters in which a weight [rows, columns] is kept; layers that share it share them.
class WeightCodes {
 public:
  WeightCodes(CodeType type, const nn::Parameter& weight)
      : type_(type), shape_(weight.value.shape()), first_(weight.initialization) {
    const Dims& shape = shape_;
    if (shape[1] % block_of(type) != 0) {
      fail_input({.thing = "coded weight",
                  .wrong = "its rows are no whole blocks",
                  .expected = fmt::format("a multiple of {} columns", block_of(type)),
                  .got = to_string(shape)});
    }
    codes_ = untrained({shape[0], bytes_of(type, shape[1])}, DType::u8);
    if (type == CodeType::int8) {
      scales_ = untrained({shape[0]}, DType::f32);
    }
  }

  CodeType type() const { return type_; }
  const Dims& shape() const { return shape_; }
  const nn::Initialization& first() const { return first_; }
  const nn::ParameterPointer& codes() const { return codes_; }
  const nn::ParameterPointer& scales() const { return scales_; }  // null: there are none

  Layout layout() const {
    return codes_->use().is_distributed() ? codes_->use().layout() : Layout();
  }

  /// Those of this rank.
  CodeRows local() const {
    return {.type = type_,
            .codes = local_of(codes_->use()),
            .scales = scales_ ? local_of(scales_->use()) : Tensor()};
  }

  /// Of the rows that this rank has, the first one.
  std::int64_t first_row() const { return own_part().offset[0]; }

  void pack(const Tensor& values) const {
    const NoGrad no_gradients;
    if (scales_) {
      const Tensor& into = scales_->value;
      const Tensor own = scales_of_rows(local_of(values));
      ops::copy_(local_of(into), into.is_distributed() ? scales_of_all(own, values.layout()) : own);
    }
    const CodeRows own =
        encoded(type_, local_of(values), scales_ ? local_of(scales_->value) : Tensor());
    ops::copy_(local_of(codes_->value), own.codes);
  }

  void take(const std::function<Tensor(std::int64_t row, std::int64_t rows)>& read) const {
    const NoGrad no_gradients;
    const LocalPart part = own_part();
    ops::copy_(local_of(codes_->value),
               ops::narrow(read(part.offset[0], part.shape[0]), 1, part.offset[1], part.shape[1]));
  }

  /// Error (input): ranks have a part of a block each.
  void check_blocks(std::span<const int> axes, const std::string& module) const {
    for (const int axis : axes) {
      const std::int64_t ranks =
          layout() && layout().placement(axis) == Shard(1) ? layout().mesh().axis_size(axis) : 1;
      if (shape_[1] % (ranks * block_of(type_)) != 0) {
        fail_input({.thing = fmt::format("module '{}'", module),
                    .wrong = fmt::format("its weight is split by columns over {} ranks, which cuts "
                                         "blocks of {}",
                                         ranks, block_of(type_)),
                    .advice = "use fewer ranks, or another precision"});
      }
    }
  }

 private:
  /// This rank's scales of whole rows, of those of the rows' parts that the ranks have.
  Tensor scales_of_all(const Tensor& own, Layout layout) const {
    for (int axis = 0; axis < layout.ndim(); ++axis) {
      if (layout.placement(axis) == Shard(1)) {
        layout = layout.with_placement(axis, Partial(ReduceOp::max));
      }
    }
    const Tensor all = make_distributed(own, Spec::make(layout, {shape_[0]}, DType::f32));
    return redistribute(all, scales_->value.layout()).local();
  }

  LocalPart own_part() const {
    const Tensor& codes = codes_->value;
    return codes.is_distributed() ? local_part(codes.shape(), codes.layout(), current_rank())
                                  : LocalPart{{0, 0}, codes.shape()};
  }

  CodeType type_;
  Dims shape_;
  nn::Initialization first_;
  nn::ParameterPointer codes_;
  nn::ParameterPointer scales_;
};

/// A layer whose weight is kept in codes.
class CodedLayer : public nn::Module {
 public:
  std::vector<std::string> input_names() const override { return {"input"}; }

 protected:
  /// `packs`: it is the first layer that has this weight.
  CodedLayer(std::shared_ptr<const WeightCodes> weight, bool packs) : weight_(std::move(weight)) {
    add_parameter("codes", weight_->codes());
    if (weight_->scales()) {
      add_parameter("scales", weight_->scales());
    }
    if (!packs) {
      return;
    }
    attach<nn::PackedWeights>().weights.push_back(
        {.name = "weight",
         .shape = weight_->shape(),
         .initialization = weight_->first(),
         .layout = [weight = weight_] { return weight->layout(); },
         .pack = [weight = weight_](const Tensor& values) { weight->pack(values); }});
    StoredCodes& stored = attach<StoredCodes>();
    stored.type = weight_->type();
    stored.take = [weight = weight_](const auto& read) { weight->take(read); };
  }

  const WeightCodes& weight() const { return *weight_; }

  nn::LayerSplit by_rows_of_weight(std::string_view name, Placement output) const {
    nn::LayerSplit split{.name = std::string(name), .inputs = {Replicate()}, .output = output};
    for (const auto& [own, parameter] : parameters()) {
      split.parameters.push_back({parameter, Shard(0)});
    }
    return split;
  }

  /// x as the local products need it: `wanted` of the placements of codes and x along an axis.
  template <class F>
  static Tensor placed(const Tensor& x, const Layout& codes, F&& wanted) {
    if (!codes) {
      return x;
    }
    Layout layout = x.layout();
    for (int axis = 0; axis < layout.ndim(); ++axis) {
      layout = layout.with_placement(axis, wanted(codes.placement(axis), layout.placement(axis)));
    }
    return redistribute(x, layout);
  }

  void refuse_gradient(const Tensor& x) const {
    if (x.requires_grad() && grad_enabled()) {
      fail({.thing = fmt::format("module '{}'", name()),
            .wrong = "its weight is kept in codes, through which no gradients pass",
            .advice = "train the model with the weights themselves"});
    }
  }

 private:
  std::shared_ptr<const WeightCodes> weight_;
};

class CodedLinear final : public CodedLayer {
 public:
  CodedLinear(const nn::Module& before, std::shared_ptr<const WeightCodes> weight, bool packs,
              Activations activations)
      : CodedLayer(std::move(weight), packs), activations_(activations) {
    for (const auto& [name, parameter] : before.parameters()) {
      if (parameter != before.parameter("weight")) {
        add_parameter(name, parameter);
        bias_ = parameter;
      }
    }
    nn::LayerSplits& splits = attach<nn::LayerSplits>();
    splits.declared = [this] {
      return std::vector<nn::LayerSplit>{by_rows_of_weight("columns", Shard(-1)),
                                         {.name = "rows",
                                          .parameters = {{this->weight().codes(), Shard(1)}},
                                          .inputs = {Shard(-1)},
                                          .output = Partial()}};
    };
    splits.check = [this](std::span<const int> axes) { this->weight().check_blocks(axes, name()); };
  }

  std::string_view kind() const override { return "CodedLinear"; }

  Tensors forward(const Tensors& inputs) override {
    const Tensor& given = input(inputs, 0);
    refuse_gradient(given);
    const NoGrad no_gradients;
    const Layout codes = weight().layout();
    const int last = given.dims() - 1;
    const Tensor x = placed(given, codes, [&](Placement of_codes, Placement of_x) {
      const bool whole = of_codes == Shard(0) || of_x.is_partial() || of_x.is_shard(last);
      return of_codes == Shard(1) ? Placement(Shard(last)) : whole ? Placement(Replicate()) : of_x;
    });
    Tensor y = product(local_of(x), weight().local(), activations_);
    Tensor bias = bias_ ? bias_->use() : Tensor();
    if (codes) {
      Layout layout = x.layout();
      for (int axis = 0; axis < layout.ndim(); ++axis) {
        if (codes.placement(axis) == Shard(0)) {
          layout = layout.with_placement(axis, Shard(last));
        } else if (codes.placement(axis) == Shard(1)) {
          layout = layout.with_placement(axis, Partial());
          if (bias) {  // a term of the sum too
            bias = redistribute(bias, bias.layout().with_placement(axis, Partial()));
          }
        }
      }
      Dims shape = x.shape();
      shape.back() = weight().shape()[0];
      y = make_distributed(y, Spec::make(layout, shape, y.dtype()));
    }
    return {ops::cast(bias ? ops::add(y, bias) : y, given.dtype())};
  }

 private:
  nn::ParameterPointer bias_;  // null: none
  Activations activations_;
};

class CodedEmbedding final : public CodedLayer {
 public:
  CodedEmbedding(std::shared_ptr<const WeightCodes> weight, bool packs)
      : CodedLayer(std::move(weight), packs) {
    attach<nn::LayerSplits>().declared = [this] {
      return std::vector<nn::LayerSplit>{by_rows_of_weight("rows", Partial())};
    };
  }

  std::string_view kind() const override { return "CodedEmbedding"; }

  Tensors forward(const Tensors& inputs) override {
    const NoGrad no_gradients;
    const Layout codes = weight().layout();
    const Tensor tokens = placed(input(inputs, 0), codes, [](Placement of_codes, Placement of_x) {
      return of_codes == Shard(0) ? Placement(Replicate()) : of_x;
    });
    const Tensor numbers = ops::cast(local_of(tokens), DType::i64);
    if (!codes) {
      return {decoded_rows(weight().local(), numbers)};
    }
    // Rows of other ranks are zeros here, and the ranks' sum has all of them.
    const std::int64_t first = weight().first_row();
    const std::int64_t rows = local_of(weight().codes()->use()).size(0);
    const Tensor own = ops::contiguous(ops::add_scalar(numbers, -static_cast<double>(first)));
    auto* const places = own.data<std::int64_t>();
    std::replace_if(
        places, places + own.numel(),
        [&](std::int64_t place) { return codes.shards(0) && (place < 0 || place >= rows); }, -1);
    Layout layout = tokens.layout();
    for (int axis = 0; axis < layout.ndim(); ++axis) {
      if (codes.placement(axis) == Shard(0)) {
        layout = layout.with_placement(axis, Partial());
      }
    }
    Dims shape = tokens.shape();
    shape.push_back(weight().shape()[1]);
    return {make_distributed(decoded_rows(weight().local(), own),
                             Spec::make(layout, shape, DType::f32))};
  }
};

/// A layer that may be replaced.
struct Place {
  nn::Module* parent;
  std::string name;
  nn::ParameterPointer weight;
  bool embeds = false;
};

std::vector<Place> places_in(nn::Module& root) {
  std::vector<Place> places;
  for (nn::Module* const parent : nn::all_modules(root)) {
    for (const auto& [name, child] : parent->children()) {
      const nn::Module& module = *child;
      const bool embeds = typeid(module) == typeid(nn::Embedding);
      if (embeds || typeid(module) == typeid(nn::Linear)) {
        places.push_back({parent, name, module.parameter("weight"), embeds});
      }
    }
  }
  // A weight that is shared has its first values, and its name, in the embedding.
  std::ranges::stable_partition(places, &Place::embeds);
  return places;
}

}  // namespace

int use_codes(nn::Module& root,
              const std::function<std::optional<CodeType>(const CodableWeight& weight)>& type,
              Activations activations) {
  struct ChosenCode {
    std::shared_ptr<const WeightCodes> codes;  // null: the weight stays
    StoredCodes* stored = nullptr;             // of the first layer
  };
  const std::vector<Place> places = places_in(root);
  std::set<const nn::Parameter*> of_tokens;
  for (const Place& place : places) {
    if (place.embeds) {
      of_tokens.insert(place.weight.get());
    }
  }
  std::map<const nn::Parameter*, ChosenCode> weights;
  int replaced = 0;
  for (const Place& place : places) {
    const auto [found, first] = weights.try_emplace(place.weight.get());
    ChosenCode& chosen = found->second;
    if (first) {
      const Dims& shape = place.weight->value.shape();
      const auto form = type({.name = place.weight->name,
                              .shape = shape,
                              .of_tokens = of_tokens.contains(place.weight.get())});
      chosen.codes = form ? std::make_shared<const WeightCodes>(*form, *place.weight) : nullptr;
    }
    if (!chosen.codes) {
      continue;
    }
    const std::string own =
        place.parent->name().empty() ? place.name : place.parent->name() + "." + place.name;
    place.parent->replace_child(
        place.name, [&](const std::shared_ptr<nn::Module>& before) -> std::shared_ptr<nn::Module> {
          if (place.embeds) {
            return std::make_shared<CodedEmbedding>(chosen.codes, first);
          }
          return std::make_shared<CodedLinear>(*before, chosen.codes, first, activations);
        });
    if (first) {
      const auto& children = place.parent->children();
      const auto child =
          std::ranges::find(children, place.name, [](const auto& entry) { return entry.first; });
      chosen.stored = &child->second->attach<StoredCodes>();
    } else {
      chosen.stored->other_names.push_back(own + ".weight");
    }
    ++replaced;
  }
  root.set_names(root.name());
  return replaced;
}

}  // namespace tessera::coded
