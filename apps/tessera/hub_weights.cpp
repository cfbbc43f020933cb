#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.nn;
import tessera.models;
import tessera.checkpoint;

#include "hub_weights.hpp"

namespace tessera::app {
namespace {

using models::HubTensor;

/// The dim of the folder's tensor along which parts follow each other.
int parts_dim(const HubTensor& entry) { return entry.transposed ? 1 : 0; }

/// The shape of the other side: of a parameter's matrix, the folder's, and back.
Dims turned(const Dims& shape, const HubTensor& entry) {
  return entry.transposed ? Dims{shape[1], shape[0]} : shape;
}

/// Whether the tensor has the form that the entry is made for.
bool fits(const Dims& stored, const HubTensor& entry) {
  return stored.size() > parts_dim(entry) && (!entry.transposed || stored.size() == 2) &&
         stored[parts_dim(entry)] % entry.parts == 0;
}

/// The folder's tensors: from the name that transformers gives them to the one that they have.
std::map<std::string, std::string> names_in(const TensorSource& folder,
                                            const models::ModelFamily& family) {
  const std::vector<std::string> ignored = family.ignored_tensors();
  const std::string prefix = family.base_prefix();
  std::map<std::string, std::string> names;
  for (const auto& [name, info] : folder.tensors()) {
    const bool is_ignored = std::ranges::any_of(
        ignored, [&](const std::string& pattern) { return matches_pattern(name, pattern); });
    if (!is_ignored) {
      // A base model's names lack the prefix, and it has no head.
      const bool whole = name.starts_with(prefix) || name.starts_with("lm_head.");
      names.emplace(whole ? name : prefix + name, name);
    }
  }
  return names;
}

}  // namespace

HubWeights::HubWeights(const TensorSource& folder, const models::ModelFamily& family,
                       const models::ModelSizes& sizes)
    : TensorSource(folder.path()), folder_(folder) {
  const std::map<std::string, std::string> stored = names_in(folder, family);
  std::set<std::string> used;
  for (HubTensor entry : family.tensors(sizes)) {
    const auto found = stored.find(entry.tensor);
    if (found == stored.end() || !fits(folder.info(found->second).shape, entry)) {
      continue;  // a later comparison finds that the parameter is missing
    }
    TensorInfo info = folder.info(found->second);
    info.shape[parts_dim(entry)] /= entry.parts;
    info.shape = turned(info.shape, entry);
    entry.tensor = found->second;
    used.insert(entry.tensor);
    tensors_.emplace(entry.parameter, info);
    entries_.emplace(entry.parameter, entry);
  }
  for (const auto& [name, own] : stored) {
    if (!used.contains(own)) {
      tensors_.emplace(name, folder.info(own));
      entries_.emplace(name, HubTensor{.parameter = name, .tensor = own});
    }
  }
}

std::uint64_t HubWeights::bytes_read() const { return folder_.bytes_read(); }

void HubWeights::copy_box(const std::string& name, const LocalPart& box, const Tensor& into) const {
  const HubTensor& entry = entries_.at(name);
  LocalPart inside{turned(box.offset, entry), turned(box.shape, entry)};
  const std::int64_t extent = folder_.info(entry.tensor).shape[parts_dim(entry)] / entry.parts;
  inside.offset[parts_dim(entry)] += entry.part * extent;
  folder_.read(entry.tensor, inside, entry.transposed ? ops::transpose(into, 0, 1) : into);
}

HubExport::HubExport(const TensorSource& model, const std::string& prefix,
                     const models::ModelFamily& family, const models::ModelSizes& sizes)
    : TensorSource(model.path()), model_(model) {
  std::map<std::string, HubTensor> renamed;
  for (const HubTensor& entry : family.tensors(sizes)) {
    renamed.emplace(entry.parameter, entry);
  }
  for (const auto& [name, info] : model.tensors()) {
    if (!name.starts_with(prefix)) {
      continue;
    }
    const std::string parameter = name.substr(prefix.size());
    const auto found = renamed.find(parameter);
    HubTensor entry = found != renamed.end()
                          ? found->second
                          : HubTensor{.parameter = parameter, .tensor = parameter};
    entry.parameter = name;
    TensorInfo stored{info.dtype, turned(info.shape, entry)};
    stored.shape[parts_dim(entry)] *= entry.parts;
    tensors_.emplace(entry.tensor, stored);
    parts_[entry.tensor].push_back(entry);
  }
}

void check_takes_adapters(const models::ModelFamily& family, const models::ModelSizes& sizes,
                          const std::string& where) {
  if (!family.tensors(sizes).empty()) {
    fail_input({.where = where,
                .wrong = "adapters need a model whose parameters have Hugging Face's names",
                .advice = "export the whole model instead, with the updates merged"});
  }
}

std::uint64_t HubExport::bytes_read() const { return model_.bytes_read(); }

void HubExport::copy_box(const std::string& name, const LocalPart& box, const Tensor& into) const {
  const Dims& shape = info(name).shape;
  for (const HubTensor& entry : parts_.at(name)) {
    const int dim = parts_dim(entry);
    const std::int64_t extent = shape[dim] / entry.parts;
    const std::int64_t begin = std::max(box.offset[dim], entry.part * extent);
    const std::int64_t end = std::min(box.offset[dim] + box.shape[dim], (entry.part + 1) * extent);
    if (begin >= end) {
      continue;
    }
    LocalPart inside = box;
    inside.offset[dim] = begin - entry.part * extent;
    inside.shape[dim] = end - begin;
    const Tensor part = ops::narrow(into, dim, begin - box.offset[dim], end - begin);
    model_.read(entry.parameter, {turned(inside.offset, entry), turned(inside.shape, entry)},
                entry.transposed ? ops::transpose(part, 0, 1) : part);
  }
}

}  // namespace tessera::app
