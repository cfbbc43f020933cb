module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>
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

using models::HubTensor;

/// The dim of the folder's tensor along which parts follow each other.
int parts_dim(const HubTensor& entry, const Dims& shape) {
  return entry.transposed ? static_cast<int>(shape.size()) - 1 : entry.dim;
}

/// The dims after the first one.
Dims without_first(const Dims& dims) {
  Dims rest;
  for (int d = 1; d < dims.size(); ++d) {
    rest.push_back(dims[d]);
  }
  return rest;
}

Dims with_first(std::int64_t first, const Dims& rest) {
  Dims dims{first};
  for (const std::int64_t d : rest) {
    dims.push_back(d);
  }
  return dims;
}

/// The shape of the other side: of a parameter's matrix, the folder's, and back.
Dims turned(Dims shape, const HubTensor& entry) {
  if (entry.transposed) {
    std::swap(shape[shape.size() - 2], shape[shape.size() - 1]);
  }
  return shape;
}

/// A view of the other side.
Tensor turned(const Tensor& x, const HubTensor& entry) {
  return entry.transposed ? ops::transpose(x, -2, -1) : x;
}

/// A part of a parameter, in the folder's tensor.
LocalPart stored_part(const LocalPart& own, const HubTensor& entry) {
  return entry.row ? LocalPart{with_first(0, own.offset), with_first(1, own.shape)}
                   : LocalPart{turned(own.offset, entry), turned(own.shape, entry)};
}

/// A part of a folder's tensor, in the parameter; also the shape of all of it.
Dims own_dims(const Dims& stored, const HubTensor& entry) {
  return entry.row ? without_first(stored) : turned(stored, entry);
}

/// Whether the tensor has the form that the entry is made for.
bool fits(const Dims& stored, const HubTensor& entry) {
  const int dim = parts_dim(entry, stored);
  return (!entry.row || (stored.size() == 2 && stored[0] == 1)) && stored.size() > dim &&
         (!entry.transposed || stored.size() >= 2) &&
         stored[dim] % (entry.parts * entry.groups) == 0;
}

/// Consecutive indices along the dim of the parts: of the parameter and of the folder's tensor.
struct PartRun {
  std::int64_t own = 0;
  std::int64_t stored = 0;
  std::int64_t count = 0;
};

/// The runs of an entry of which each group has one. `extent`: of the folder's tensor.
std::vector<PartRun> runs_of(const HubTensor& entry, std::int64_t extent) {
  const std::int64_t group = extent / entry.groups;
  const std::int64_t part = group / entry.parts;
  const std::int64_t count = part * entry.parts_taken;
  std::vector<PartRun> runs;
  for (std::int64_t g = 0; g < entry.groups; ++g) {
    runs.push_back({g * count, g * group + entry.part * part, count});
  }
  return runs;
}

/// What of a box along a dim is in a run that begins at `run`: where it begins in the run, and in
/// the box.
struct Overlap {
  std::int64_t in_run = 0;
  std::int64_t in_box = 0;
  std::int64_t count = 0;  // 0 or less: nothing
};
Overlap overlap(const LocalPart& box, int dim, std::int64_t run, std::int64_t count) {
  const std::int64_t begin = std::max(box.offset[dim], run);
  const std::int64_t end = std::min(box.offset[dim] + box.shape[dim], run + count);
  return {begin - run, begin - box.offset[dim], end - begin};
}

/// The box with so many indices from `begin` on along a dim.
LocalPart along(LocalPart box, int dim, std::int64_t begin, std::int64_t count) {
  box.offset[dim] = begin;
  box.shape[dim] = count;
  return box;
}

/// The name of entry `number` of a stacked parameter.
std::string numbered(const HubTensor& entry, std::int64_t number) {
  std::string name = entry.tensor;
  const std::size_t star = name.find('*');
  return star == std::string::npos ? name : name.replace(star, 1, std::to_string(number));
}

/// How many tensors the folder has of a stacked parameter, whatever their numbers.
std::size_t numbered_in(const std::map<std::string, std::string>& stored, const HubTensor& entry) {
  const std::size_t star = entry.tensor.find('*');
  const std::string before = entry.tensor.substr(0, star);
  const std::string after = entry.tensor.substr(star + 1);
  std::size_t count = 0;
  for (auto found = stored.lower_bound(before);
       found != stored.end() && found->first.starts_with(before); ++found) {
    const std::string& name = found->first;
    const bool longer = name.size() > before.size() + after.size() && name.ends_with(after);
    const auto digits = name.find_first_not_of("0123456789", before.size());
    count += longer && digits == name.size() - after.size() ? 1 : 0;
  }
  return count;
}

bool has_packed(const HubNames& names) {
  return std::ranges::find(names.packed, "mxfp4") != names.packed.end();
}

bool matches_any(const std::string& name, const std::vector<std::string>& patterns) {
  return std::ranges::any_of(
      patterns, [&](const std::string& pattern) { return matches_pattern(name, pattern); });
}

}  // namespace

HubNames names_of(const models::ModelFamily& family, const models::ModelSizes& sizes) {
  std::vector<std::string> ignored = family.ignored_tensors();
  for (std::string& pattern : family.unused_tensors(sizes)) {
    ignored.push_back(std::move(pattern));
  }
  return {.tensors = family.tensors(sizes),
          .prefix = family.base_prefix(),
          .ignored = std::move(ignored),
          .packed = family.packed_forms(),
          .further = family.further_tensors(sizes)};
}

std::map<std::string, std::string> stored_names(const TensorSource& folder, const HubNames& known) {
  const auto begins = [](const std::string& name) {
    return [&name](const std::string& prefix) { return name.starts_with(prefix); };
  };
  std::map<std::string, std::string> names;
  for (const auto& [name, info] : folder.tensors()) {
    if (!matches_any(name, known.ignored) && !matches_any(name, known.further)) {
      // A base model's names lack the prefix, and it has no head.
      const bool whole =
          name.starts_with(known.prefix) || std::ranges::any_of(known.without_prefix, begins(name));
      names.emplace(whole ? name : known.prefix + name, name);
    }
  }
  return names;
}

HubWeights::HubWeights(const TensorSource& folder, const HubNames& names)
    : TensorSource(folder.path()),
      unpacked_(has_packed(names) ? unpacked_mxfp4(folder) : nullptr),
      folder_(unpacked_ ? *unpacked_ : folder) {
  for (const auto& [name, info] : folder_.tensors()) {
    if (matches_any(name, names.further)) {
      further_.push_back(name);
    }
  }
  const std::map<std::string, std::string> stored = stored_names(folder_, names);
  std::set<std::string> used;
  for (HubTensor entry : names.tensors) {
    if (entry.copy) {
      if (const auto found = stored.find(entry.tensor); found != stored.end()) {
        used.insert(found->second);
      }
      continue;
    }
    if (entry.stacked) {
      stack(entry, stored, used);
      continue;
    }
    const auto found = stored.find(entry.tensor);
    if (found == stored.end()) {
      continue;  // a later comparison finds that the parameter is missing
    }
    if (unpacked_ && !folder.contains(found->second)) {
      entry.transposed = false;  // packed matrices are as the model's
    }
    if (!fits(folder_.info(found->second).shape, entry)) {
      continue;
    }
    TensorInfo info = folder_.info(found->second);
    const int dim = parts_dim(entry, info.shape);
    info.shape[dim] = info.shape[dim] / entry.parts * entry.parts_taken;
    info.shape = own_dims(info.shape, entry);
    entry.tensor = found->second;
    used.insert(entry.tensor);
    tensors_.emplace(entry.parameter, info);
    entries_.emplace(entry.parameter, entry);
  }
  for (const auto& [name, own] : stored) {
    if (!used.contains(own)) {
      tensors_.emplace(name, folder_.info(own));
      entries_.emplace(name, HubTensor{.parameter = name, .tensor = own});
    }
  }
}

void HubWeights::stack(const HubTensor& entry, const std::map<std::string, std::string>& stored,
                       std::set<std::string>& used) {
  std::vector<std::string> names;
  for (auto found = stored.find(numbered(entry, 0)); found != stored.end();
       found = stored.find(numbered(entry, std::ssize(names)))) {
    const TensorInfo& info = folder_.info(found->second);
    const TensorInfo& first = folder_.info(names.empty() ? found->second : names[0]);
    if (!(info == first)) {
      fail_input({.thing = path() + ": tensor '" + found->second + "'",
                  .wrong = "it has not the shape and type of '" + names[0] + "'",
                  .expected = to_string(first.shape),
                  .got = to_string(info.shape)});
    }
    names.push_back(found->second);
  }
  if (names.size() < numbered_in(stored, entry)) {
    fail_input({.thing = path() + ": tensor '" + numbered(entry, std::ssize(names)) + "'",
                .wrong = "it is missing, while others of its layer are there"});
  }
  if (names.empty()) {
    return;
  }
  used.insert(names.begin(), names.end());
  const TensorInfo one = folder_.info(names[0]);
  tensors_.emplace(entry.parameter,
                   TensorInfo{one.dtype, with_first(std::ssize(names), one.shape)});
  stacked_.emplace(entry.parameter, std::move(names));
}

std::uint64_t HubWeights::bytes_read() const { return folder_.bytes_read(); }

std::string HubWeights::stored_type(const std::string& name) const {
  info(name);  // throws for a name that is not there
  const auto found = entries_.find(name);
  return folder_.stored_type(found != entries_.end() ? found->second.tensor
                                                     : stacked_.at(name).front());
}

namespace {

/// stored_rows() of a parameter that the folder has one matrix after the other.
Tensor rows_of_stack(const TensorSource& folder, const std::vector<std::string>& matrices,
                     std::int64_t row, std::int64_t rows) {
  // Each matrix may be stored in its own way.
  const std::string type = folder.stored_type(matrices[0]);
  const auto own_rows = [&](const std::string& matrix, std::int64_t first, std::int64_t count) {
    return folder.stored_type(matrix) == type ? folder.stored_rows(matrix, first, count) : Tensor();
  };
  if (rows == 0) {
    const bool all = std::ranges::all_of(
        matrices, [&](const std::string& matrix) { return own_rows(matrix, 0, 0).defined(); });
    return all ? own_rows(matrices[0], 0, 0) : Tensor();
  }
  const std::int64_t each = folder.info(matrices[0]).shape[0];
  std::vector<Tensor> pieces;
  for (std::int64_t next = row; next < row + rows;) {
    const std::int64_t matrix = next / each;
    const std::int64_t count = std::min(row + rows, (matrix + 1) * each) - next;
    pieces.push_back(own_rows(matrices[static_cast<std::size_t>(matrix)], next % each, count));
    if (!pieces.back()) {
      return {};
    }
    next += count;
  }
  return pieces.size() == 1 ? pieces[0] : ops::cat(pieces, 0);
}

/// How many rows each matrix of a folder's stack has.
std::int64_t rows_of_matrix(const Dims& stack, const HubTensor& entry) {
  return stack[entry.transposed ? 2 : 1];
}

/// stored_rows() of a parameter that has some rows of each matrix of a stack.
Tensor rows_of_parts(const TensorSource& folder, const HubTensor& entry, std::int64_t row,
                     std::int64_t rows) {
  const std::int64_t stored = rows_of_matrix(folder.info(entry.tensor).shape, entry);
  const std::int64_t own = stored / entry.parts * entry.parts_taken;
  if (rows == 0) {
    return folder.stored_rows(entry.tensor, 0, 0);
  }
  std::vector<Tensor> pieces;
  for (std::int64_t next = row; next < row + rows;) {
    const std::int64_t first = next % own;
    const std::int64_t matrix = next / own * stored;
    const std::int64_t count = std::min(row + rows - next, own - first);
    next += count;
    if (entry.alternating) {
      const Tensor both =
          folder.stored_rows(entry.tensor, matrix + first * entry.parts, count * entry.parts);
      if (!both) {
        return {};
      }
      pieces.push_back(ops::select(ops::unflatten(both, 0, {count, entry.parts}), 1, entry.part));
      continue;
    }
    for (const PartRun& run : runs_of(entry, stored)) {
      const Overlap part = overlap({{first}, {count}}, 0, run.own, run.count);
      if (part.count > 0) {
        pieces.push_back(
            folder.stored_rows(entry.tensor, matrix + run.stored + part.in_run, part.count));
        if (!pieces.back()) {
          return {};
        }
      }
    }
  }
  return ops::cat(pieces, 0);
}

}  // namespace

Tensor HubWeights::stored_rows(const std::string& name, std::int64_t row, std::int64_t rows) const {
  info(name);  // throws for a name that is not there
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    return rows_of_stack(folder_, stacked_.at(name), row, rows);
  }
  const HubTensor& entry = found->second;
  const Dims& stored = folder_.info(entry.tensor).shape;
  const bool divides_rows = entry.parts > 1 || entry.groups > 1;
  // Codes run along a matrix's inputs: a stack that has these first gives the rows of the turned
  // one.
  if ((entry.transposed && stored.size() != 3) || entry.row || stored.size() < 2) {
    return {};
  }
  if (!divides_rows) {
    return folder_.stored_rows(entry.tensor, row, rows);
  }
  if (stored.size() == 3 && (entry.transposed || entry.dim == 1)) {
    return rows_of_parts(folder_, entry, row, rows);
  }
  if (stored.size() != 2 || entry.alternating || entry.dim != 0) {
    return {};
  }
  std::vector<Tensor> pieces;
  for (const PartRun& run : runs_of(entry, folder_.info(entry.tensor).shape[0])) {
    const Overlap part = overlap({{row}, {rows}}, 0, run.own, run.count);
    if (part.count > 0 || rows == 0) {
      pieces.push_back(folder_.stored_rows(entry.tensor,
                                           run.stored + std::max<std::int64_t>(part.in_run, 0),
                                           std::max<std::int64_t>(part.count, 0)));
    }
  }
  const bool all = !pieces.empty() && std::ranges::all_of(pieces, &Tensor::defined);
  return !all ? Tensor() : pieces.size() == 1 ? pieces[0] : ops::cat(pieces, 0);
}

void HubWeights::copy_box(const std::string& name, const LocalPart& box, const Tensor& into) const {
  if (const auto found = stacked_.find(name); found != stacked_.end()) {
    for (std::int64_t i = 0; i < box.shape[0]; ++i) {
      folder_.read(found->second[static_cast<std::size_t>(box.offset[0] + i)],
                   {without_first(box.offset), without_first(box.shape)}, ops::select(into, 0, i));
    }
    return;
  }
  const HubTensor& entry = entries_.at(name);
  if (box.shape.empty()) {  // a scalar has no parts
    folder_.read(entry.tensor, box, into);
    return;
  }
  const LocalPart outside = stored_part(box, entry);
  const int dim = parts_dim(entry, outside.shape);
  const Tensor target = entry.row ? ops::unsqueeze(into, 0) : turned(into, entry);
  if (entry.alternating) {
    // All parts of these indices at once: one by one would be a call for each.
    LocalPart both = outside;
    both.offset[dim] *= entry.parts;
    both.shape[dim] *= entry.parts;
    const Tensor read = empty(both.shape, into.dtype());
    folder_.read(entry.tensor, both, read);
    const Tensor parts = ops::unflatten(read, dim, {outside.shape[dim], entry.parts});
    ops::copy_(target, ops::select(parts, dim + 1, entry.part));
    return;
  }
  for (const PartRun& run : runs_of(entry, folder_.info(entry.tensor).shape[dim])) {
    const Overlap part = overlap(outside, dim, run.own, run.count);
    if (part.count > 0) {
      folder_.read(entry.tensor, along(outside, dim, run.stored + part.in_run, part.count),
                   ops::narrow(target, dim, part.in_box, part.count));
    }
  }
}

HubExport::HubExport(const TensorSource& model, const std::string& prefix, const HubNames& names)
    : TensorSource(model.path()), model_(model) {
  std::map<std::string, HubTensor> renamed;
  for (const HubTensor& entry : names.tensors) {
    if (!entry.copy) {
      renamed.emplace(entry.parameter, entry);
    } else if (const auto found = model.tensors().find(prefix + entry.parameter);
               found != model.tensors().end()) {
      tensors_.emplace(entry.tensor, found->second);
      parts_[entry.tensor].push_back({.parameter = found->first, .tensor = entry.tensor});
    }
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
    for (std::int64_t i = 0; entry.stacked && i < info.shape[0]; ++i) {
      tensors_.emplace(numbered(entry, i), TensorInfo{info.dtype, without_first(info.shape)});
      stacked_.emplace(numbered(entry, i), std::pair(name, i));
    }
    if (entry.stacked) {
      continue;
    }
    TensorInfo stored{info.dtype, stored_part({info.shape, info.shape}, entry).shape};
    if (!stored.shape.empty()) {
      const int dim = parts_dim(entry, stored.shape);
      stored.shape[dim] = stored.shape[dim] / entry.parts_taken * entry.parts;
    }
    tensors_.emplace(entry.tensor, stored);
    parts_[entry.tensor].push_back(entry);
  }
}

void check_takes_adapters(const models::ModelFamily& family, const models::ModelSizes& sizes,
                          std::span<const std::string> layers, const std::string& where) {
  std::set<std::string> other;
  for (const HubTensor& entry : family.tensors(sizes)) {
    if (entry.tensor != entry.parameter || entry.transposed || entry.parts > 1 || entry.row) {
      other.insert(entry.parameter);
    }
  }
  for (const std::string& layer : layers) {
    if (other.contains(layer + ".weight")) {
      fail_input({.where = where,
                  .wrong = "adapters need a model whose parameters have Hugging Face's names",
                  .got = layer + ", which a folder has in another form",
                  .advice = "export the whole model instead, with the updates merged"});
    }
  }
}

std::uint64_t HubExport::bytes_read() const { return model_.bytes_read(); }

std::string HubExport::stored_type(const std::string& name) const {
  info(name);  // throws for a name that is not there
  const auto found = stacked_.find(name);
  return model_.stored_type(found != stacked_.end() ? found->second.first
                                                    : parts_.at(name).front().parameter);
}

namespace {

/// stored_rows() of a stack whose matrices have rows of several parameters, all of one type.
Tensor rows_of_joined(const TensorSource& model, std::span<const HubTensor> entries,
                      const Dims& shape, std::int64_t row, std::int64_t rows) {
  const HubTensor& first = entries.front();
  const std::int64_t stored = rows_of_matrix(shape, first);
  const auto fits = [&](const HubTensor& entry) {
    return entry.groups == 1 && entry.parts_taken == 1 && !entry.row &&
           entry.parts == std::ssize(entries) && (entry.transposed || entry.dim == 1) &&
           entry.alternating == first.alternating &&
           model.stored_type(entry.parameter) == model.stored_type(first.parameter) &&
           model.stored_rows(entry.parameter, 0, 0);
  };
  if (shape.size() != 3 || !std::ranges::all_of(entries, fits)) {
    return {};
  }
  if (rows == 0) {
    return model.stored_rows(first.parameter, 0, 0);
  }
  const std::int64_t each = stored / first.parts;
  std::vector<Tensor> pieces;
  for (std::int64_t next = row; next < row + rows;) {
    const std::int64_t begin = next % stored;
    const std::int64_t own = next / stored * each;  // of the matrix in a parameter
    const std::int64_t count = std::min(row + rows - next, stored - begin);
    next += count;
    std::vector<Tensor> parts(entries.size());
    if (first.alternating) {
      const std::int64_t from = begin / first.parts;
      const std::int64_t to = (begin + count + first.parts - 1) / first.parts;
      for (const HubTensor& entry : entries) {
        parts.at(static_cast<std::size_t>(entry.part)) =
            model.stored_rows(entry.parameter, own + from, to - from);
      }
      const Tensor turns = ops::stack(parts, 1);  // (rows, parts, bytes)
      pieces.push_back(
          ops::narrow(ops::flatten(turns, 0, 1), 0, begin - from * first.parts, count));
      continue;
    }
    for (const HubTensor& entry : entries) {
      const Overlap part = overlap({{begin}, {count}}, 0, entry.part * each, each);
      if (part.count > 0) {
        parts.at(static_cast<std::size_t>(entry.part)) = model.stored_rows(
            entry.parameter, own + std::max<std::int64_t>(part.in_run, 0), part.count);
      }
    }
    std::ranges::copy_if(parts, std::back_inserter(pieces), &Tensor::defined);
  }
  return ops::cat(pieces, 0);
}

}  // namespace

Tensor HubExport::stored_rows(const std::string& name, std::int64_t row, std::int64_t rows) const {
  const Dims& shape = info(name).shape;
  if (const auto stacked = stacked_.find(name); stacked != stacked_.end()) {
    const auto& [stack, number] = stacked->second;
    return model_.stored_rows(stack, number * shape[0] + row, rows);
  }
  const auto found = parts_.find(name);
  if (found == parts_.end()) {
    return {};
  }
  if (shape.size() == 3) {
    const std::vector<HubTensor>& entries = found->second;
    const bool whole = entries.size() == 1 && entries[0].parts == 1 && entries[0].groups == 1;
    return whole ? model_.stored_rows(entries[0].parameter, row, rows)
                 : rows_of_joined(model_, entries, shape, row, rows);
  }
  std::map<std::int64_t, Tensor> pieces;  // by their first row of these
  for (const HubTensor& entry : found->second) {
    if (entry.transposed || entry.row || entry.alternating || entry.dim != 0) {
      return {};
    }
    for (const PartRun& run : runs_of(entry, shape[0])) {
      const Overlap part = overlap({{row}, {rows}}, 0, run.stored, run.count);
      if (part.count > 0 || (rows == 0 && pieces.empty())) {
        pieces.emplace(
            part.in_box,
            model_.stored_rows(entry.parameter, run.own + std::max<std::int64_t>(part.in_run, 0),
                               std::max<std::int64_t>(part.count, 0)));
      }
    }
  }
  std::vector<Tensor> all;
  for (const auto& [first, piece] : pieces) {
    if (!piece) {
      return {};
    }
    all.push_back(piece);
  }
  return all.empty() ? Tensor() : all.size() == 1 ? all[0] : ops::cat(all, 0);
}

void HubExport::copy_alternating(const HubTensor& entry, const LocalPart& box, int dim,
                                 const Tensor& into) const {
  // Of the box's indices along the dim, those that are `part` more than a multiple of `parts`.
  const auto rounded = [&](std::int64_t index) {
    return (index - entry.part + entry.parts - 1) / entry.parts;
  };
  LocalPart inside = box;
  inside.offset[dim] = rounded(box.offset[dim]);
  inside.shape[dim] = rounded(box.offset[dim] + box.shape[dim]) - inside.offset[dim];
  if (inside.shape[dim] == 0) {
    return;
  }
  const LocalPart own{turned(inside.offset, entry), turned(inside.shape, entry)};
  const Tensor values = empty(own.shape, into.dtype());
  model_.read(entry.parameter, own, values);
  const Tensor outside = turned(values, entry);
  const std::int64_t first = inside.offset[dim] * entry.parts + entry.part - box.offset[dim];
  const std::int64_t last = first + (inside.shape[dim] - 1) * entry.parts;
  ops::copy_(ops::slice(into, dim, first, last + 1, entry.parts), outside);
}

void HubExport::copy_box(const std::string& name, const LocalPart& box, const Tensor& into) const {
  if (const auto found = stacked_.find(name); found != stacked_.end()) {
    const auto& [parameter, entry] = found->second;
    model_.read(parameter, {with_first(entry, box.offset), with_first(1, box.shape)},
                ops::unsqueeze(into, 0));
    return;
  }
  const Dims& shape = info(name).shape;
  for (const HubTensor& entry : parts_.at(name)) {
    if (box.shape.empty()) {  // a scalar has no parts
      model_.read(entry.parameter, box, into);
      return;
    }
    const int dim = parts_dim(entry, shape);
    if (entry.alternating) {
      copy_alternating(entry, box, dim, into);
      continue;
    }
    for (const PartRun& run : runs_of(entry, shape[dim])) {
      const Overlap part = overlap(box, dim, run.stored, run.count);
      if (part.count <= 0) {
        continue;
      }
      const LocalPart inside = along(box, dim, run.own + part.in_run, part.count);
      const Tensor target = ops::narrow(into, dim, part.in_box, part.count);
      model_.read(entry.parameter, {own_dims(inside.offset, entry), own_dims(inside.shape, entry)},
                  entry.row ? ops::select(target, 0, 0) : turned(target, entry));
    }
  }
}

}  // namespace tessera::hub
