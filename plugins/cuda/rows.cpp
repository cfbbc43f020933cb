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

unsigned blocks_of(std::int64_t count) {
  return static_cast<unsigned>(std::clamp<std::int64_t>(count, 1, most_blocks));
}

std::int64_t* kept_of(RowArray& array) { return array.kept; }
std::int64_t* along_of(RowArray& array) { return array.along; }

}  // namespace

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

RowArray& Rows::add(const Tensor& x) {
  require(arrays_ < most_row_arrays, "cuda: a kernel of rows has too many arrays");
  RowArray& array = arguments_.arrays[arrays_++];
  if (x) {
    array.data = x.device_address();
    array.type = x.dtype();
  }
  return array;
}

Rows& Rows::placed(const Tensor& x, int (*place)(int dim, int dims)) {
  RowArray& array = add(x);
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
  RowArray& array = add(x);
  const bool all_dims = x && x.dims() == shape_.size();
  int kept = 0;
  for (int dim = 0; x && dim < shape_.size(); ++dim) {
    if (!along_.contains(dim)) {
      array.kept[kept] = x.strides()[all_dims ? dim : kept];
      ++kept;
    }
  }
  return *this;
}

Rows& Rows::shared(const Tensor& x) {
  RowArray& array = add(x);
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
  return arguments_;
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

void Rows::launch_each_row(const Tensor& on, const std::string& kernel) {
  if (arguments_.rows != 0) {
    const RowArguments& a = finish();
    launch(on, kernel, blocks_for(a.rows), threads_per_block, a);
  }
}

void Rows::launch_columns(const Tensor& on, const std::string& kernel) {
  if (arguments_.length == 0) {
    return;
  }
  const RowArguments& a = finish();
  launch(on, kernel, blocks_of((a.length + warp - 1) / warp), threads_per_block, a);
}

std::string with_type(const std::string& kernel, DType type) {
  return kernel + (type == DType::f64 ? "_f64" : "_f32");
}

}  // namespace tessera::cuda
