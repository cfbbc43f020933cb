#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

import tessera.base;
import tessera.device;
import tessera.placement;
import tessera.tensor;

#include "kernels.hpp"
#include "rows.hpp"

namespace tessera::cuda {
namespace {

constexpr unsigned warp = 32;
constexpr std::int64_t most_blocks = 65535;
constexpr std::int64_t piece_bytes = 16;
/// Blocks that fill any GPU.
constexpr std::int64_t enough_blocks = 1024;

unsigned blocks_of(std::int64_t count) {
  return static_cast<unsigned>(std::clamp<std::int64_t>(count, 1, most_blocks));
}

std::int64_t pieces_in(std::int64_t count, std::int64_t each) { return (count + each - 1) / each; }

std::int64_t* kept_of(RowArray& array) { return array.kept; }
std::int64_t* along_of(RowArray& array) { return array.along; }

}  // namespace

int elements_of_piece(DType type) {
  return static_cast<int>(piece_bytes / static_cast<std::int64_t>(size_of(type)));
}

Rows::Rows(const Dims& shape, const Dims& along) : shape_(shape), along_(along) {
  require(shape.size() <= most_dims, "cuda: a tensor has more than 8 dims");
  RowArguments& a = arguments_;
  a.rows = 1;
  a.length = 1;
  for (int dim = 0; dim < shape.size(); ++dim) {
    if (along.contains(dim)) {
      a.along_extents[a.along_dims++] = shape[dim];
      a.length *= shape[dim];
    } else {
      a.kept_extents[a.kept_dims++] = shape[dim];
      a.rows *= shape[dim];
    }
  }
}

Rows Rows::of_last_dim(const Dims& shape) { return Rows(shape, Dims{shape.size() - 1}); }

RowArray& Rows::add(const Tensor& x, bool along) {
  require(arrays_ < most_row_arrays, "cuda: a kernel of rows has too many arrays");
  has_rows_[arrays_] = along;
  RowArray& array = arguments_.arrays[arrays_++];
  if (x) {
    array.data = x.device_address();
    array.type = x.dtype();
  }
  return array;
}

Rows& Rows::placed(const Tensor& x, int (*place)(int dim, int dims)) {
  RowArray& array = add(x, true);
  int kept = 0;
  int along = 0;
  for (int dim = 0; x && dim < shape_.size(); ++dim) {
    (along_.contains(dim) ? array.along[along++] : array.kept[kept++]) =
        x.strides()[place(dim, shape_.size())];
  }
  return *this;
}

Rows& Rows::whole(const Tensor& x) {
  return placed(x, [](int dim, int) { return dim; });
}

Rows& Rows::turned(const Tensor& x) {
  return placed(x, [](int dim, int dims) { return (dim + 1) % dims; });
}

Rows& Rows::per_row(const Tensor& x) {
  RowArray& array = add(x, false);
  const bool all_dims = x && x.dims() == shape_.size();
  int kept = 0;
  for (int dim = 0; x && x.dims() > 0 && dim < shape_.size(); ++dim) {
    if (!along_.contains(dim)) {
      array.kept[kept] = x.strides()[all_dims ? dim : kept];
      ++kept;
    }
  }
  return *this;
}

Rows& Rows::shared(const Tensor& x) {
  RowArray& array = add(x, true);
  const bool all_dims = x && x.dims() == shape_.size();
  int along = 0;
  for (int dim = 0; x && dim < shape_.size(); ++dim) {
    if (along_.contains(dim)) {
      array.along[along] = x.strides()[all_dims ? dim : along];
      ++along;
    }
  }
  return *this;
}

Rows& Rows::memory(void* data) {
  add({}, false).data = data;
  return *this;
}

Rows& Rows::number(double value) {
  arguments_.numbers[numbers_++] = value;
  return *this;
}

void Rows::join(int& dims, std::int64_t* extents, std::int64_t* (*strides)(RowArray&)) {
  int joined = 0;
  for (int dim = 0; dim < dims; ++dim) {
    if (extents[dim] == 1) {
      continue;
    }
    bool joins = joined > 0;
    for (std::size_t i = 0; i < arrays_; ++i) {
      const std::int64_t* of = strides(arguments_.arrays[i]);
      joins = joins && of[joined - 1] == of[dim] * extents[dim];
    }
    const int at = joins ? joined - 1 : joined++;
    extents[at] = joins ? extents[at] * extents[dim] : extents[dim];
    for (std::size_t i = 0; i < arrays_; ++i) {
      std::int64_t* of = strides(arguments_.arrays[i]);
      of[at] = of[dim];
    }
  }
  dims = joined;
}

Rows& Rows::integer(std::int64_t value) {
  arguments_.integers[integers_++] = value;
  return *this;
}

const RowArguments& Rows::finish() {
  join(arguments_.kept_dims, arguments_.kept_extents, kept_of);
  join(arguments_.along_dims, arguments_.along_extents, along_of);
  arguments_.piece = elements_of_piece(arguments_.arrays[0].type);
  arguments_.team = static_cast<int>(warp);
  return arguments_;
}

template <class Fits>
bool Rows::all_along(Fits fits) const {
  bool all = true;
  for (std::size_t i = 0; i < arrays_; ++i) {
    const RowArray& array = arguments_.arrays[i];
    all = all && (array.data == nullptr || !has_rows_[i] || fits(array));
  }
  return all;
}

bool Rows::are_contiguous() {
  const RowArguments& a = finish();
  const DType type = a.arrays[0].type;
  const bool one_stride = a.along_dims == 1 && a.kept_dims <= 1;
  const bool loaded = type == DType::f32 || type == DType::bf16 || type == DType::f16;
  return loaded && one_stride && all_along([&](const RowArray& array) {
           return array.type == type && array.along[0] == 1;
         });
}

bool Rows::has_pieces() {
  return are_contiguous() && all_along([&](const RowArray& array) {
           return reinterpret_cast<std::uintptr_t>(array.data) % piece_bytes == 0 &&
                  (arguments_.kept_dims == 0 || array.kept[0] % arguments_.piece == 0);
         });
}

void Rows::launch_blocks(const Tensor& on, const std::string& kernel, std::int64_t blocks) {
  if (blocks == 0) {
    return;
  }
  const RowArguments& a = finish();
  const auto needed = static_cast<unsigned>(std::min<std::int64_t>(a.length, threads_per_block));
  const unsigned threads = std::max(warp, (needed + warp - 1) / warp * warp);
  launch(on, kernel, blocks_of(blocks), threads, a);
}

void Rows::launch_rows(const Tensor& on, const std::string& kernel) {
  launch_blocks(on, kernel, arguments_.rows);
}

bool Rows::launch_teams(const Tensor& on, const std::string& name, int pieces, std::int64_t teams) {
  constexpr std::int64_t largest_team = 512;  // as in row_pieces.hpp
  constexpr std::int64_t threads_of_small_teams = 128;
  RowArguments a = finish();
  const std::int64_t whole_pieces = pieces_in(a.length, a.piece);
  const std::int64_t team = std::clamp<std::int64_t>(
      pieces_in(pieces_in(whole_pieces, pieces), warp) * warp, warp, largest_team);
  a.team = static_cast<int>(team);
  const std::int64_t threads = team == warp ? threads_of_small_teams : team;
  const bool in_registers =
      has_pieces() && a.length % a.piece == 0 && whole_pieces <= pieces * largest_team;
  const std::int64_t count = in_registers && teams != 0 ? teams : a.rows;
  if (count > 0) {
    const DType type = a.arrays[0].type;
    launch(on,
           in_registers ? name + "_pieces_" + std::string(name_of(type)) : with_type(name, type),
           blocks_of(pieces_in(count * team, threads)), static_cast<unsigned>(threads), a);
  }
  return in_registers;
}

void Rows::launch_long_rows(const Tensor& on, const std::string& name) {
  RowArguments a = finish();
  const DType type = a.arrays[0].type;
  const std::int64_t threads = std::clamp<std::int64_t>(
      pieces_in(pieces_in(a.length, a.piece), warp) * warp, warp, threads_per_block);
  const bool contiguous = are_contiguous();
  a.integers[2] = has_pieces() ? 1 : 0;
  if (a.rows > 0) {
    launch(on, contiguous ? name + "_pieces_" + std::string(name_of(type)) : with_type(name, type),
           blocks_of(a.rows), static_cast<unsigned>(threads), a);
  }
}

void Rows::launch_each_row(const Tensor& on, const std::string& kernel) {
  if (arguments_.rows != 0) {
    const RowArguments& a = finish();
    launch(on, kernel, blocks_for(a.rows), threads_per_block, a);
  }
}

RowArray partials_at(void* data, DType type) {
  RowArray array = {};
  array.data = data;
  array.type = type;
  return array;
}

Parts parts_of_rows(std::int64_t rows, std::int64_t length, DType type) {
  // A thread has one piece of a part at least, and four where that leaves a part for all
  // processors.
  constexpr std::int64_t processors = 160;
  const std::int64_t once = threads_per_block * elements_of_piece(type);
  std::int64_t each = once;
  while (each < length && (rows * pieces_in(length, each) > enough_blocks ||
                           (each < 4 * once && rows * pieces_in(length, 2 * each) >= processors))) {
    each *= 2;
  }
  return {each, std::max<std::int64_t>(pieces_in(length, each), 1)};
}

namespace {

constexpr unsigned threads_of_columns = 1024;
constexpr std::int64_t pieces_across = 8;  // that a block has of a row

std::int64_t blocks_across(std::int64_t length, DType type) {
  return pieces_in(length, pieces_across * elements_of_piece(type));
}

}  // namespace

Parts groups_of_rows(std::int64_t rows, std::int64_t length, DType type) {
  constexpr std::int64_t blocks = enough_blocks / 2;  // what a block does once costs more than rows
  std::int64_t each = 128;                            // four for each line of threads
  while (each < rows && blocks_across(length, type) * pieces_in(rows, each) > blocks) {
    each *= 2;
  }
  return {each, std::max<std::int64_t>(pieces_in(rows, each), 1)};
}

std::size_t bytes_of_groups(std::int64_t rows, std::int64_t length, DType type) {
  const std::int64_t groups = groups_of_rows(rows, length, type).count;
  return groups == 1 ? 0 : static_cast<std::size_t>(groups * length) * size_of(summed_type(type));
}

namespace {

/// Queues the sums of columns over groups of rows; several groups' are put one after the other.
void launch_columns(RowArguments a, const Parts& groups, bool has_pieces, const Tensor& on) {
  const DType type = a.arrays[0].type;
  a.integers[0] = groups.each;
  a.integers[1] = groups.count;
  if (has_pieces && a.length % a.piece == 0) {
    launch(on, "sum_column_pieces_" + std::string(name_of(type)),
           blocks_of(blocks_across(a.length, type) * groups.count), threads_per_block, a);
  } else {
    launch(on, with_summed_type("sum_columns", type),
           blocks_of(pieces_in(a.length, warp) * groups.count), threads_of_columns, a);
  }
}

}  // namespace

void join_groups(RowArguments a, const RowArray& result, void* partials, std::int64_t groups,
                 const Tensor& on) {
  RowArray& x = a.arrays[0];
  x = partials_at(partials, summed_type(x.type));
  a.arrays[1] = result;
  std::int64_t stride = 1;
  for (int dim = a.along_dims - 1; dim >= 0; --dim) {
    x.along[dim] = stride;
    stride *= a.along_extents[dim];
  }
  x.kept[0] = a.length;
  a.rows = a.kept_extents[0] = groups;
  a.kept_dims = 1;
  a.piece = elements_of_piece(x.type);
  launch_columns(a, {.each = groups, .count = 1}, x.type == DType::f32 && a.along_dims == 1, on);
}

void sum_columns(Rows& rows, const Tensor& y, std::span<std::byte> memory) {
  RowArguments a = rows.finish();
  if (a.length == 0) {
    return;
  }
  const RowArray result = a.arrays[1];
  const DType type = a.arrays[0].type;
  const Parts groups = groups_of_rows(a.rows, a.length, type);
  if (groups.count > 1) {
    a.arrays[1] = partials_at(memory.data(), summed_type(type));
  }
  launch_columns(a, groups, rows.has_pieces(), y);
  if (groups.count > 1) {
    join_groups(a, result, memory.data(), groups.count, y);
  }
}

DType summed_type(DType type) {
  return !is_floating(type) ? DType::i64 : type == DType::f64 ? DType::f64 : DType::f32;
}

std::string with_summed_type(const std::string& kernel, DType type) {
  return kernel + "_" + std::string(name_of(summed_type(type)));
}

std::string with_type(const std::string& kernel, DType type) {
  return kernel + (type == DType::f64 ? "_f64" : "_f32");
}

}  // namespace tessera::cuda
