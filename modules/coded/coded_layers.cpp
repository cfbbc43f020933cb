module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
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
import tessera.routed;
import tessera.nn;

namespace tessera::coded {
namespace {

nn::ParameterPointer untrained(const Dims& shape, DType dtype) {
  const auto parameter = std::make_shared<nn::Parameter>(
      shape, dtype, nn::Initialization{.kind = nn::Initialization::Kind::packed});
  parameter->value.set_requires_grad(false);
  return parameter;
}

/// The parameters in which a weight is kept, [rows, columns] or a stack of such matrices; layers
/// that share it share them.
class WeightCodes {
 public:
  WeightCodes(CodeType type, const nn::Parameter& weight)
      : type_(type), shape_(weight.value.shape()), first_(weight.initialization) {
    if (shape_.back() % block_of(type) != 0) {
      fail_input({.thing = "coded weight",
                  .wrong = "its rows are no whole blocks",
                  .expected = fmt::format("a multiple of {} columns", block_of(type)),
                  .got = to_string(shape_)});
    }
    Dims codes = shape_;
    codes.back() = bytes_of(type, shape_.back());
    codes_ = untrained(codes, DType::u8);
    if (type == CodeType::int8) {
      scales_ = untrained(row_dims(), DType::f32);
    }
  }

  CodeType type() const { return type_; }
  const Dims& shape() const { return shape_; }
  /// The dim of the rows of a matrix; that of its columns follows.
  int row_dim() const { return shape_.size() - 2; }
  int column_dim() const { return shape_.size() - 1; }
  const nn::ParameterPointer& codes() const { return codes_; }
  const nn::ParameterPointer& scales() const { return scales_; }  // null: there are none

  Layout layout() const {
    return codes_->use().is_distributed() ? codes_->use().layout() : Layout();
  }

  /// Those of this rank, of all matrices.
  CodeRows local() const {
    const Tensor& codes = local_of(codes_->use());
    const Tensor scales = scales_ ? local_of(scales_->use()) : Tensor();
    return {.type = type_,
            .codes = ops::reshape(codes, {rows_of(codes), codes.size(-1)}),
            .scales = scales ? ops::reshape(scales, {scales.numel()}) : Tensor()};
  }

  /// Of the rows of a matrix that this rank has, the first one.
  std::int64_t first_row() const { return part_of(*codes_).offset[row_dim()]; }

  nn::PackedWeight packed(std::string name) const {
    return {.name = std::move(name),
            .shape = shape_,
            .initialization = first_,
            .layout = {},
            .pack = {}};
  }

  void pack(const Tensor& values) const {
    const NoGrad no_gradients;
    const Tensor own = local_of(values);
    const LocalPart part = values_part();
    encode([&](const LocalPart& box) {
      Tensor result = own;
      for (int d = 0; d < box.shape.size(); ++d) {
        result = ops::narrow(result, d, box.offset[d] - part.offset[d], box.shape[d]);
      }
      return result;
    });
  }

  void encode(const std::function<Tensor(const LocalPart& part)>& read) const {
    const NoGrad no_gradients;
    const Tensor& codes = local_of(codes_->value);
    const auto matrix = [&](std::int64_t number) {
      const Tensor values = ops::contiguous(read(matrix_part(values_part(), number)));
      return ops::reshape(values, {rows_of(values), values.size(-1)});
    };
    Tensor scales = scales_ ? matrices(local_of(scales_->value), 1) : Tensor();
    const bool shares_rows =
        scales_ && codes_->value.is_distributed() && codes_->value.layout().shards(column_dim());
    if (shares_rows) {  // a scale is that of a row's parts on all ranks
      const Tensor own = empty(scales.shape(), DType::f32);
      for (std::int64_t m = 0; m < own.size(0); ++m) {
        ops::copy_(ops::select(own, 0, m), scales_of_rows(matrix(m)));
      }
      const Tensor of_all = scales_of_all(ops::reshape(own, local_of(scales_->value).shape()));
      ops::copy_(local_of(scales_->value), of_all);
    }
    const Tensor into = matrices(codes, 2);
    for (std::int64_t m = 0; m < into.size(0); ++m) {
      const Tensor values = matrix(m);
      const Tensor of_rows = scales ? ops::select(scales, 0, m) : Tensor();
      if (scales && !shares_rows) {
        ops::copy_(of_rows, scales_of_rows(values));
      }
      ops::copy_(ops::select(into, 0, m), encoded(type_, values, of_rows).codes);
    }
  }

  void take(const std::function<Tensor(std::int64_t row, std::int64_t rows)>& read) const {
    const NoGrad no_gradients;
    const LocalPart part = part_of(*codes_);
    const int rows = row_dim();
    const Tensor into = matrices(local_of(codes_->value), 2);
    for (std::int64_t m = 0; m < into.size(0); ++m) {
      const std::int64_t before = rows == 0 ? 0 : (part.offset[0] + m) * shape_[rows];
      const Tensor own = read(before + part.offset[rows], part.shape[rows]);
      ops::copy_(ops::select(into, 0, m),
                 ops::narrow(own, 1, part.offset[rows + 1], part.shape[rows + 1]));
    }
  }

  /// Error (input): ranks have a part of a block each.
  void check_blocks(std::span<const int> axes, const std::string& module) const {
    for (const int axis : axes) {
      const std::int64_t ranks = layout() && layout().placement(axis) == Shard(column_dim())
                                     ? layout().mesh().axis_size(axis)
                                     : 1;
      if (shape_.back() % (ranks * block_of(type_)) != 0) {
        fail_input({.thing = fmt::format("module '{}'", module),
                    .wrong = fmt::format("its weight is split by columns over {} ranks, which cuts "
                                         "blocks of {}",
                                         ranks, block_of(type_)),
                    .advice = "use fewer ranks, or another precision"});
      }
    }
  }

 private:
  static std::int64_t rows_of(const Tensor& x) {
    return x.shape().product() / std::max<std::int64_t>(x.size(-1), 1);
  }
  Dims row_dims() const {
    Dims dims;
    for (int d = 0; d < column_dim(); ++d) {
      dims.push_back(shape_[d]);
    }
    return dims;
  }
  /// With a dim for the matrices in front; `dims`: of what a matrix has.
  static Tensor matrices(const Tensor& x, int dims) {
    return x.dims() > dims ? x : ops::unsqueeze(x, 0);
  }
  /// The part of a matrix alone, of this rank's.
  LocalPart matrix_part(LocalPart part, std::int64_t number) const {
    if (row_dim() > 0) {
      part.offset[0] += number;
      part.shape[0] = 1;
    }
    return part;
  }

  /// This rank's scales of whole rows, of those of the rows' parts that the ranks have.
  Tensor scales_of_all(const Tensor& own) const {
    Layout layout = codes_->value.layout();
    for (int axis = 0; axis < layout.ndim(); ++axis) {
      if (layout.placement(axis) == Shard(column_dim())) {
        layout = layout.with_placement(axis, Partial(ReduceOp::max));
      }
    }
    const Tensor all = make_distributed(own, Spec::make(layout, row_dims(), DType::f32));
    return redistribute(all, scales_->value.layout()).local();
  }

  static LocalPart part_of(const nn::Parameter& parameter) {
    const Tensor& value = parameter.value;
    return value.is_distributed() ? local_part(value.shape(), value.layout(), current_rank())
                                  : LocalPart{Dims::filled(value.shape().size(), 0), value.shape()};
  }
  /// Of the weight's values, what this rank has.
  LocalPart values_part() const {
    const Tensor& codes = codes_->value;
    return codes.is_distributed() ? local_part(shape_, codes.layout(), current_rank())
                                  : LocalPart{Dims::filled(shape_.size(), 0), shape_};
  }

  CodeType type_;
  Dims shape_;
  nn::Initialization first_;
  nn::ParameterPointer codes_;
  nn::ParameterPointer scales_;
};

using SharedCodes = std::shared_ptr<const WeightCodes>;

/// Says how the module takes values for a weight.
void attach_codes(nn::Module& module, const std::string& name, const SharedCodes& weight) {
  nn::PackedWeight packed = weight->packed(name);
  packed.layout = [weight] { return weight->layout(); };
  packed.pack = [weight](const Tensor& values) { weight->pack(values); };
  module.attach<nn::PackedWeights>().weights.push_back(std::move(packed));
  module.attach<StoredCodes>().weights.push_back(
      {.name = name,
       .type = weight->type(),
       .take = [weight](const auto& read) { weight->take(read); },
       .encode = [weight](const auto& read) { weight->encode(read); }});
}

/// Error: the input would get a gradient.
void refuse_gradient(const nn::Module& module, const Tensor& x) {
  if (x.requires_grad() && grad_enabled()) {
    fail({.thing = fmt::format("module '{}'", module.name()),
          .wrong = "its weight is kept in codes, through which no gradients pass",
          .advice = "train the model with the weights themselves"});
  }
}

/// A layer whose weight is kept in codes.
class CodedLayer : public nn::Module {
 public:
  std::vector<std::string> input_names() const override { return {"input"}; }

 protected:
  /// `packs`: it is the first layer that has this weight.
  CodedLayer(SharedCodes weight, bool packs) : weight_(std::move(weight)) {
    add_parameter("codes", weight_->codes());
    if (weight_->scales()) {
      add_parameter("scales", weight_->scales());
    }
    if (packs) {
      attach_codes(*this, "weight", weight_);
    }
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

 private:
  SharedCodes weight_;
};

class CodedLinear final : public CodedLayer {
 public:
  CodedLinear(const nn::Module& before, SharedCodes weight, bool packs, Activations activations)
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
    refuse_gradient(*this, given);
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
  CodedEmbedding(SharedCodes weight, bool packs) : CodedLayer(std::move(weight), packs) {
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

/// Experts whose matrices are kept in codes, all or some of them.
class CodedExperts final : public nn::Module {
 public:
  /// `codes`: of the matrices in their order; null: the matrix stays.
  CodedExperts(const nn::Module& before, std::span<const SharedCodes> codes,
               Activations activations)
      : function_(before.attached<routed::ExpertFunction>()), activations_(activations) {
    for (const auto& [name, parameter] : before.parameters()) {
      const std::size_t place = matrices_.size();
      if (place >= codes.size()) {
        biases_.push_back(parameter);
        add_parameter(name, parameter);
        continue;
      }
      const SharedCodes& own = codes[place];
      matrices_.push_back({name, own ? own->codes() : parameter, own});
      if (own) {
        add_parameter(name + "_codes", own->codes());
        if (own->scales()) {
          add_parameter(name + "_scales", own->scales());
        }
        attach_codes(*this, name, own);
      } else {
        add_parameter(name, parameter);
      }
    }
    nn::LayerSplits& splits = attach<nn::LayerSplits>();
    splits.declared = [this] { return declared(); };
    splits.check = [this](std::span<const int> axes) {
      for (const Matrix& matrix : matrices_) {
        if (matrix.codes) {
          matrix.codes->check_blocks(axes, this->name());
        }
      }
    };
  }

  std::string_view kind() const override { return "CodedExperts"; }
  std::vector<std::string> input_names() const override {
    return {"hidden_states", "weights", "experts", "kept"};
  }

  Tensors forward(const Tensors& inputs) override {
    const Tensor& hidden = input(inputs, 0);
    refuse_gradient(*this, hidden);
    const NoGrad no_gradients;
    routed::ExpertLayer layer{
        .name = name(),
        .function = function_,
        .products = [this](const Tensor& rows, const routed::ExpertMatrices& own,
                           const Tensor& counts, std::int64_t expected) {
          return products(rows, own, counts, expected);
        }};
    for (const Matrix& matrix : matrices_) {
      layer.matrices.push_back(matrix.parameter->use());
    }
    for (const nn::ParameterPointer& bias : biases_) {
      layer.biases.push_back(bias->use());
    }
    return {ops::cast(routed::expert_sums({.hidden = hidden,
                                           .weights = input(inputs, 1),
                                           .chosen = input(inputs, 2),
                                           .kept = inputs.size() > 3 ? inputs[3] : Tensor()},
                                          layer),
                      hidden.dtype())};
  }

 private:
  struct Matrix {
    std::string name;
    nn::ParameterPointer parameter;  // the codes, or the matrix itself
    SharedCodes codes;               // null: it is not kept in codes
  };

  /// Those in codes in one loop.
  Tensors products(const Tensor& rows, const routed::ExpertMatrices& own, const Tensor& counts,
                   std::int64_t expected) const {
    Tensors results(own.matrices.size());
    std::vector<CodeRows> stacks;
    for (std::size_t i = 0; i < results.size(); ++i) {
      const Matrix& matrix = matrices_[own.first + i];
      if (matrix.codes) {
        stacks.push_back(matrix.codes->local());
      } else {
        results[i] = ops::grouped_mm(rows, ops::transpose(own.matrices[i], 1, 2), counts, expected);
      }
    }
    Tensors coded = group_products(rows, counts, stacks, activations_);
    auto next = coded.begin();
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (matrices_[own.first + i].codes) {
        results[i] = *next++;
      }
    }
    return results;
  }

  /// As nn::Experts.
  std::vector<nn::LayerSplit> declared() const {
    nn::LayerSplit experts{.name = "experts"};
    nn::LayerSplit rows{
        .name = "rows", .inputs = {Replicate(), Replicate(), Replicate()}, .output = Partial()};
    for (const auto& [name, parameter] : parameters()) {
      experts.parameters.push_back({parameter, Shard(0)});
    }
    for (const Matrix& matrix : matrices_) {
      const bool last = &matrix == &matrices_.back();
      rows.parameters.push_back({matrix.parameter, Shard(last ? 2 : 1)});
      if (!last && matrix.codes && matrix.codes->scales()) {
        rows.parameters.push_back({matrix.codes->scales(), Shard(1)});
      }
    }
    for (std::size_t i = 0; i + 1 < biases_.size(); ++i) {
      rows.parameters.push_back({biases_[i], Shard(1)});
    }
    return {std::move(experts), std::move(rows)};
  }

  routed::ExpertFunction function_;
  Activations activations_;
  std::vector<Matrix> matrices_;
  std::vector<nn::ParameterPointer> biases_;
};

enum class PlaceKind : std::uint8_t { linear, embedding, experts };

/// A layer that may be replaced.
struct Place {
  nn::Module* parent;
  std::string name;
  PlaceKind kind;
  std::vector<nn::ParameterPointer> weights;  // one, but of experts

  bool embeds() const { return kind == PlaceKind::embedding; }
};

std::vector<Place> places_in(nn::Module& root) {
  std::vector<Place> places;
  for (nn::Module* const parent : nn::all_modules(root)) {
    for (const auto& [name, child] : parent->children()) {
      const nn::Module& module = *child;
      if (typeid(module) == typeid(nn::Embedding)) {
        places.push_back({parent, name, PlaceKind::embedding, {module.parameter("weight")}});
      } else if (typeid(module) == typeid(nn::Linear)) {
        places.push_back({parent, name, PlaceKind::linear, {module.parameter("weight")}});
      } else if (typeid(module) == typeid(nn::Experts)) {
        Place place{parent, name, PlaceKind::experts, {}};
        for (const auto& [own, parameter] : module.parameters()) {
          if (parameter->value.dims() == 3) {
            place.weights.push_back(parameter);
          }
        }
        places.push_back(std::move(place));
      }
    }
  }
  // A weight that is shared has its first values, and its name, in the embedding.
  std::ranges::stable_partition(places, &Place::embeds);
  return places;
}

/// The codes of a model's weights.
class ChosenCodes {
 public:
  using TypeOf = std::function<std::optional<CodeType>(const CodableWeight& weight)>;

  ChosenCodes(const TypeOf& type, std::span<const Place> places) : type_(type) {
    for (const Place& place : places) {
      if (place.embeds()) {
        of_tokens_.insert(place.weights[0].get());
      }
    }
  }

  struct Choice {
    SharedCodes codes;  // null: the weight stays
    bool first = false;
  };
  /// Those of the weight; `splits_columns`: see CodableWeight.
  Choice of(const nn::ParameterPointer& weight, bool splits_columns = true) {
    const auto [found, first] = weights_.try_emplace(weight.get());
    if (first) {
      const auto form = type_({.name = weight->name,
                               .shape = weight->value.shape(),
                               .of_tokens = of_tokens_.contains(weight.get()),
                               .splits_columns = splits_columns});
      found->second = form ? std::make_shared<const WeightCodes>(*form, *weight) : nullptr;
    }
    return {found->second, first};
  }

 private:
  const TypeOf& type_;
  std::set<const nn::Parameter*> of_tokens_;
  std::map<const nn::Parameter*, SharedCodes> weights_;
};

}  // namespace

int use_codes(nn::Module& root,
              const std::function<std::optional<CodeType>(const CodableWeight& weight)>& type,
              Activations activations) {
  const std::vector<Place> places = places_in(root);
  ChosenCodes chosen(type, places);
  std::map<const WeightCodes*, StoredCodes*> stored;  // of the first layers
  int replaced = 0;
  for (const Place& place : places) {
    std::vector<SharedCodes> codes;
    bool first = true;
    for (const nn::ParameterPointer& weight : place.weights) {
      const bool splits = place.kind != PlaceKind::experts || weight == place.weights.back();
      const ChosenCodes::Choice choice = chosen.of(weight, splits);
      codes.push_back(choice.codes);
      first = choice.first;
    }
    if (std::ranges::none_of(codes, [](const SharedCodes& own) { return own != nullptr; })) {
      continue;
    }
    place.parent->replace_child(
        place.name, [&](const std::shared_ptr<nn::Module>& before) -> std::shared_ptr<nn::Module> {
          switch (place.kind) {
            case PlaceKind::embedding:
              return std::make_shared<CodedEmbedding>(codes[0], first);
            case PlaceKind::linear:
              return std::make_shared<CodedLinear>(*before, codes[0], first, activations);
            case PlaceKind::experts:
              break;
          }
          return std::make_shared<CodedExperts>(*before, codes, activations);
        });
    ++replaced;
    if (place.kind == PlaceKind::experts) {
      continue;
    }
    const auto [own, is_first] = stored.try_emplace(codes[0].get());
    if (is_first) {
      const auto& children = place.parent->children();
      const auto child =
          std::ranges::find(children, place.name, [](const auto& entry) { return entry.first; });
      own->second = &child->second->attach<StoredCodes>();
    } else {
      const std::string& parent = place.parent->name();
      own->second->other_names.push_back((parent.empty() ? place.name : parent + "." + place.name) +
                                         ".weight");
    }
  }
  root.set_names(root.name());
  return replaced;
}

}  // namespace tessera::coded
