#include "gemm_blocks.hpp"

#include <array>
#include <bit>
#include <cstddef>

#include "shared/kernels/parallel.hpp"

namespace tessera::kernels {
namespace {

constexpr std::int64_t kGrain = 1 << 14;

/// c [rows, columns] with a row stride += term, which is contiguous.
template <class T>
void add_rows(std::int64_t rows, std::int64_t columns, const T* term, T* c, std::int64_t stride) {
  parallel_for(0, rows, 1 + kGrain / (columns + 1), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const T* const from = term + row * columns;
      T* const to = c + row * stride;
      for (std::int64_t i = 0; i < columns; ++i) to[i] += from[i];
    }
  });
}

/// The sum over blocks of k of one block of C.
template <class T>
class BlockSum {
 public:
  BlockSum(Workspace& workspace, const Gemm& block, std::int64_t count)
      : workspace_(workspace), block_(block), count_(count) {
    // C is the first of the sums that wait, and has all that follow added to it.
    const int levels = std::bit_width(static_cast<std::uint64_t>(count - 1));
    for (int level = 0; level < levels; ++level) {
      waiting_.at(static_cast<std::size_t>(level)) = workspace.take<T>(block.m * block.n);
    }
  }

  void compute(const T* a, const T* b, T* c) const {
    const std::int64_t a_step = block_.k * (block_.trans_a ? block_.lda : 1);
    const std::int64_t b_step = block_.k * (block_.trans_b ? 1 : block_.ldb);
    std::size_t depth = 0;  // of the sums that wait, C included
    const auto join = [&] {
      --depth;
      const T* const right = waiting_.at(depth - 1);
      if (depth == 1) {
        add_rows(block_.m, block_.n, right, c, block_.ldc);
      } else {
        add_rows(block_.m, block_.n, right, waiting_.at(depth - 2), block_.n);
      }
    };
    for (std::int64_t i = 0; i < count_; ++i) {
      Gemm product = block_;
      T* to = c;
      if (depth > 0) {
        product.ldc = block_.n;
        to = waiting_.at(depth - 1);
      }
      const Workspace::Scope scope(workspace_);
      gemm(workspace_, product, a + i * a_step, b + i * b_step, to);
      ++depth;
      for (std::int64_t subtrees = i + 1; subtrees % 2 == 0; subtrees /= 2) join();
    }
    for (std::size_t rest = depth; rest > 1; --rest) join();
  }

  /// What compute() takes of a workspace that counts.
  void count() const {
    const Workspace::Scope scope(workspace_);
    gemm<T, T>(workspace_, block_, nullptr, nullptr, nullptr);
    Gemm apart = block_;
    apart.ldc = block_.n;
    gemm<T, T>(workspace_, apart, nullptr, nullptr, nullptr);
  }

 private:
  Workspace& workspace_;
  Gemm block_;
  std::int64_t count_;
  std::array<T*, 64> waiting_{};
};

}  // namespace

template <class T>
void gemm_in_blocks(Workspace& workspace, const Gemm& shape, const GemmBlocks& blocks, const T* a,
                    const T* b, T* c) {
  Gemm block = shape;
  block.m = shape.m / blocks.rows;
  block.n = shape.n / blocks.columns;
  block.k = shape.k / blocks.sum;
  const Workspace::Scope scope(workspace);
  const BlockSum<T> sum(workspace, block, blocks.sum);
  if (workspace.counts()) return sum.count();
  for (std::int64_t row = 0; row < blocks.rows; ++row) {
    for (std::int64_t column = 0; column < blocks.columns; ++column) {
      sum.compute(a + row * block.m * (shape.trans_a ? 1 : shape.lda),
                  b + column * block.n * (shape.trans_b ? shape.ldb : 1),
                  c + row * block.m * shape.ldc + column * block.n);
    }
  }
}

template void gemm_in_blocks(Workspace&, const Gemm&, const GemmBlocks&, const float*, const float*,
                             float*);
template void gemm_in_blocks(Workspace&, const Gemm&, const GemmBlocks&, const double*,
                             const double*, double*);

}  // namespace tessera::kernels
