// Products of rows, as a kernel's structure without addresses. Include it after kernels.hpp.
#pragma once
#include "kernels/arguments.hpp"

namespace tessera::cuda {

/// x [..., k] times weight, whose dim `summed` is summed over; plus bias [n], which may be
/// undefined.
ProductArguments rows_times(const Tensor& x, const Tensor& weight, int summed, const Tensor& bias,
                            const Tensor& y);
/// dy [..., m] transposed times x [..., n].
ProductArguments columns_times(const Tensor& dy, const Tensor& x, const Tensor& y);
/// Lets the product add to what y holds.
void add_to_result(ProductArguments& p, const Tensor& y);

}  // namespace tessera::cuda
