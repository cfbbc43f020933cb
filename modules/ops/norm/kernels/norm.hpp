#pragma once
// Normalisations over the last dim. T is float, double, BFloat16 or Half; C is Compute<T>.
// Instantiated in norm.cpp, softmax.cpp and softmax_columns.cpp.

#include <cstdint>

#include "shared/kernels/types.hpp"
#include "shared/kernels/workspace.hpp"

namespace tessera::kernels {

/// y[r, i] = x[r, i] * rstd[r] * weight[i], rstd[r] = 1 / sqrt(mean_i x[r, i]^2 + eps).
/// x, y [rows, n]; weight [n], or null for ones; rstd [rows]. y may be x.
/// Source: Zhang and Sennrich, Root Mean Square Layer Normalization (2019).
template <class T>
void rms_norm_forward(std::int64_t rows, std::int64_t n, const T* x, const T* weight, double eps,
                      T* y, Compute<T>* rstd);

/// dx = rstd (w dy - xhat mean(w dy xhat)) with xhat = x rstd; dweight[i] = sum_r dy xhat, summed
/// in blocks of rows of a fixed size, in order. dx may be dy or x. dweight may be null; it is
/// overwritten, or added to when accumulate_dweight. Takes the sums of the blocks;
/// counting assumes that dweight is wanted.
template <class T>
void rms_norm_backward(Workspace& workspace, std::int64_t rows, std::int64_t n, const T* dy,
                       const T* x, const T* weight, const Compute<T>* rstd, T* dx,
                       Compute<T>* dweight, bool accumulate_dweight = false);

/// y = (x - mean) * rstd * weight + bias, rstd = 1 / sqrt(variance + eps), variance over n (not n -
/// 1). weight and bias may be null. y may be x. mean, rstd [rows]. Source: Ba et al., Layer
/// Normalization.
template <class T>
void layer_norm_forward(std::int64_t rows, std::int64_t n, const T* x, const T* weight,
                        const T* bias, double eps, T* y, Compute<T>* mean, Compute<T>* rstd);

/// dx = rstd (w dy - mean(w dy) - xhat mean(w dy xhat)); dweight = sum_r dy xhat, dbias = sum_r dy,
/// in fixed order. dx may be dy or x. dweight and dbias may be null; counting assumes that they are
/// wanted.
template <class T>
void layer_norm_backward(Workspace& workspace, std::int64_t rows, std::int64_t n, const T* dy,
                         const T* x, const T* weight, const Compute<T>* mean,
                         const Compute<T>* rstd, T* dx, Compute<T>* dweight, Compute<T>* dbias,
                         bool accumulate_parameters = false);

/// y[r, i] = exp(x[r, i] - max) / sum exp(x[r, .] - max). y may be x. A row of -infinity only gives
/// NaN.
template <class T>
void softmax_forward(Workspace& workspace, std::int64_t rows, std::int64_t n, const T* x, T* y);

/// dx = y (dy - sum(y dy)), with y the forward's output. dx may be dy or y.
template <class T>
void softmax_backward(std::int64_t rows, std::int64_t n, const T* dy, const T* y, T* dx);

/// y[r, i] = x[r, i] - max - log(sum exp(x[r, .] - max)). y may be x.
template <class T>
void log_softmax_forward(std::int64_t rows, std::int64_t n, const T* x, T* y);

/// dx = dy - exp(y) sum(dy), with y the forward's output. dx may be dy or y.
template <class T>
void log_softmax_backward(std::int64_t rows, std::int64_t n, const T* dy, const T* y, T* dx);

/// softmax_forward, or log_softmax_forward, over the middle dim of [outer, n, inner]. y may be x.
/// Takes n * 64 bytes or more for each thread, so inner should be 16 or more.
template <class T>
void softmax_columns_forward(Workspace& workspace, bool logarithm, std::int64_t outer,
                             std::int64_t n, std::int64_t inner, const T* x, T* y);

/// Their gradients, from the forward's output. dx may be dy or y.
template <class T>
void softmax_columns_backward(bool logarithm, std::int64_t outer, std::int64_t n,
                              std::int64_t inner, const T* dy, const T* y, T* dx);

}  // namespace tessera::kernels
