module;
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
module tessera.hub;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.nn;
import tessera.models;
import tessera.checkpoint;

namespace tessera::hub {
namespace {

/// The shapes of all parameters, by each of their names.
std::map<std::string, Dims> shapes_of(const ModelShape& shape) {
  const auto model = family_of(shape).build(sizes_of(shape), 0);
  std::map<std::string, Dims> shapes;
  for (const auto& [name, parameter] : nn::named_parameters(*model)) {
    shapes.emplace(name, parameter->value.shape());
  }
  return shapes;
}

}  // namespace

WithNewTokens::WithNewTokens(const TensorSource& weights, const ModelShape& shape)
    : TensorSource(weights.path()), weights_(weights) {
  tensors_ = weights.tensors();
  meta_ = weights.meta();
  files_ = weights.files();
  left_out_ = weights.left_out();
  ModelShape other = shape;
  ++other.vocab;
  const std::map<std::string, Dims> more = shapes_of(other);
  for (const auto& [name, dims] : shapes_of(shape)) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end() || dims == more.at(name)) {
      continue;  // it has no row for each token
    }
    Dims stored = found->second.shape;
    if (stored.size() == dims.size() && stored[0] > 0 && stored[0] < dims[0]) {
      found->second.shape[0] = dims[0];
    }
  }
}

std::uint64_t WithNewTokens::bytes_read() const { return weights_.bytes_read(); }

Tensor WithNewTokens::mean_row(const std::string& name, const LocalPart& box) const {
  constexpr std::int64_t elements = std::int64_t{1} << 20;  // of a part
  LocalPart part = box;
  part.shape[0] = 1;
  const std::int64_t rows = weights_.info(name).shape[0];
  const std::int64_t at_once = std::max<std::int64_t>(1, elements / part.shape.product());
  Tensor sum = zeros(part.shape, DType::f64);
  for (part.offset[0] = 0; part.offset[0] < rows; part.offset[0] += part.shape[0]) {
    part.shape[0] = std::min(at_once, rows - part.offset[0]);
    const Tensor values = empty(part.shape, DType::f64);
    weights_.read(name, part, values);
    sum = ops::add(sum, ops::sum(values, {0}, true));
  }
  return ops::mul_scalar(sum, 1 / static_cast<double>(rows));
}

void WithNewTokens::copy_box(const std::string& name, const LocalPart& box,
                             const Tensor& into) const {
  const std::int64_t stored = weights_.info(name).shape[0];
  const std::int64_t own = box.shape.size() == 0 || stored == info(name).shape[0]
                               ? -1
                               : std::clamp<std::int64_t>(stored - box.offset[0], 0, box.shape[0]);
  if (own < 0) {
    weights_.read(name, box, into);
    return;
  }
  if (own > 0) {
    LocalPart part = box;
    part.shape[0] = own;
    weights_.read(name, part, ops::narrow(into, 0, 0, own));
  }
  if (own < box.shape[0]) {
    ops::copy_(ops::narrow(into, 0, own, box.shape[0] - own),
               ops::to_device(mean_row(name, box), into.device()));
  }
}

FolderWeights::FolderWeights(const std::string& from, const ModelShape& shape,
                             const FolderOptions& options) {
  const auto add = [&](std::unique_ptr<TensorSource> source) {
    sources_.push_back(std::move(source));
  };
  if (is_checkpoint(from)) {
    const std::string prefix = "model.";
    checkpoint_ =
        std::make_unique<WholeCheckpoint>(from, OpenFiles::when_read, options.use, options.base);
    const TensorSource& whole = checkpoint_->tensors();
    add(std::make_unique<MergedWeights>(whole, stored_updates(whole.meta(), from), prefix));
    add(std::make_unique<SelectedTensors>(*sources_.back(), TensorSelection{.prefix = prefix}));
  } else {
    add(open_hub_tensors(from).source);
    add(std::make_unique<HubWeights>(*sources_.back(), family_of(shape), sizes_of(shape)));
  }
  if (options.adds_tokens) {
    add(std::make_unique<WithNewTokens>(*sources_.back(), shape));
  }
}

const TensorSource& FolderWeights::source() const { return *sources_.back(); }

}  // namespace tessera::hub
