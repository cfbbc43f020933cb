// The operators: what PyTorch's users know by these names, on plain and on distributed tensors. Not
// here: operators that a layer, an optimizer or the backward calls (linear_grad_weight, adamw_,
// foreach_add_), which `import tessera.ops;` has.
export module tessera:operators;

import tessera.ops;

export namespace tessera::ops {

// Elementwise, with broadcasting and promotion. A name that ends in `_` writes its first operand.
using ops::abs, ops::acos, ops::add, ops::add_scalar, ops::addcdiv, ops::addcmul, ops::asin,
    ops::atan, ops::atan2, ops::bitwise_and, ops::bitwise_not, ops::bitwise_or, ops::bitwise_xor,
    ops::cast, ops::ceil, ops::clamp, ops::clone, ops::cos, ops::cosh, ops::div, ops::elu, ops::eq,
    ops::erf, ops::exp, ops::exp2, ops::expm1, ops::floor, ops::floor_divide, ops::fmod, ops::frac,
    ops::ge, ops::gelu, ops::gt, ops::hardsigmoid, ops::hardswish, ops::hardtanh, ops::isfinite,
    ops::isinf, ops::isnan, ops::le, ops::leaky_relu, ops::lerp, ops::lerp_scalar, ops::log,
    ops::log10, ops::log1p, ops::log2, ops::log_sigmoid, ops::logical_and, ops::logical_not,
    ops::logical_or, ops::logical_xor, ops::lt, ops::masked_fill, ops::maximum, ops::minimum,
    ops::mish, ops::mul, ops::mul_scalar, ops::nan_to_num, ops::ne, ops::neg, ops::ones_like,
    ops::pow, ops::pow_scalar, ops::reciprocal, ops::relu, ops::remainder, ops::round, ops::rsqrt,
    ops::sigmoid, ops::sign, ops::silu, ops::sin, ops::sinh, ops::softplus, ops::sqrt, ops::square,
    ops::sub, ops::tan, ops::tanh, ops::trunc, ops::where, ops::zeros_like;
using ops::abs_, ops::add_, ops::add_scalar_, ops::addcdiv_, ops::addcmul_, ops::clamp_, ops::copy_,
    ops::div_, ops::exp_, ops::fill_, ops::lerp_, ops::lerp_scalar_, ops::log_, ops::masked_fill_,
    ops::mul_, ops::mul_scalar_, ops::neg_, ops::pow_scalar_, ops::reciprocal_, ops::relu_,
    ops::rsqrt_, ops::sigmoid_, ops::sqrt_, ops::square_, ops::sub_, ops::tanh_;

// Reductions, running sums, sorting.
using ops::all, ops::amax, ops::amin, ops::any, ops::argmax, ops::argmin, ops::count_nonzero,
    ops::cumprod, ops::cumsum, ops::logcumsumexp, ops::logsumexp, ops::max, ops::mean, ops::min,
    ops::norm, ops::prod, ops::std, ops::sum, ops::ValuesAndIndices, ops::var, ops::vector_norm;
using ops::argsort, ops::sort, ops::topk, ops::unique, ops::UniqueElements;

// Matrix products.
using ops::addmm, ops::baddbmm, ops::bmm, ops::dot, ops::einsum, ops::grouped_mm, ops::linear,
    ops::matmul, ops::mm, ops::mv, ops::outer;

// Views, joins, indices.
using ops::as_strided, ops::chunk, ops::contiguous, ops::detach, ops::diagonal, ops::expand,
    ops::flatten, ops::movedim, ops::narrow, ops::permute, ops::reshape, ops::select, ops::slice,
    ops::split, ops::split_with_sizes, ops::squeeze, ops::swapaxes, ops::to_device, ops::transpose,
    ops::unbind, ops::unflatten, ops::unsqueeze, ops::view, ops::view_as;
using ops::cat, ops::flip, ops::pad, ops::PadMode, ops::repeat, ops::repeat_interleave, ops::roll,
    ops::stack;
using ops::embedding, ops::gather, ops::index, ops::index_add, ops::index_fill, ops::index_put,
    ops::index_select, ops::masked_select, ops::nonzero, ops::one_hot, ops::scatter,
    ops::scatter_add, ops::take_along_dim, ops::tril, ops::triu;

// Layers as functions, and losses.
using ops::adaptive_avg_pool2d, ops::avg_pool2d, ops::conv1d, ops::conv2d, ops::Convolution,
    ops::interpolate, ops::InterpolateMode, ops::max_pool2d, ops::Pooling;
using ops::batch_norm, ops::group_norm, ops::layer_norm, ops::log_softmax, ops::rms_norm,
    ops::softmax;
using ops::binary_cross_entropy_with_logits, ops::counted_rows, ops::cross_entropy,
    ops::CrossEntropyOptions, ops::kl_div, ops::l1_loss, ops::mse_loss, ops::nll_loss,
    ops::Reduction, ops::smooth_l1_loss;
using ops::Causal, ops::causal_attention, ops::CausalOptions, ops::rotary, ops::RotaryScaling,
    ops::scaled_dot_product_attention, ops::swiglu;

// Random numbers.
using ops::bernoulli, ops::bernoulli_, ops::dropout, ops::multinomial, ops::normal_, ops::randint_,
    ops::randperm_, ops::uniform_;

// Collectives of plain tensors, waited for or begun; with gradients.
using ops::all_gather, ops::all_reduce, ops::all_reduce_, ops::all_to_all, ops::all_to_all_rows,
    ops::broadcast, ops::RankGroup, ops::Ranks, ops::receive_, ops::reduce_scatter, ops::RowOrder,
    ops::send, ops::shift;
using ops::all_gather_async, ops::all_reduce_async, ops::all_to_all_async, ops::PendingTensor,
    ops::reduce_scatter_async, ops::shift_async;

// Threads of a rank.
using ops::set_threads, ops::threads;

}  // namespace tessera::ops
