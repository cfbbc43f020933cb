// plugins/cuda/driver_api.hpp against cuda.h, blas_api.hpp against cublasLt.h, and nvrtc_api.hpp
// against nvrtc.h, by the compiler, where a toolkit is.
#include <cuda.h>
#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#endif

#if __has_include(<nvrtc.h>)
#include <nvrtc.h>
#endif

#include <type_traits>

#include "blas_api.hpp"
#include "driver_api.hpp"
#include "nvrtc_api.hpp"

namespace {

using namespace tessera::cuda;

/// Whether calls pass them alike: two addresses, or two integers (enumerations) of one size.
template <class A, class B>
constexpr bool alike = sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>;

template <class Ours, class Theirs>
constexpr bool same = false;
template <auto waits, class A, class... As, class B, class... Bs>
constexpr bool same<LibraryFunction<waits, A(As...)>, B (*)(Bs...)> = [] {
  if constexpr (sizeof...(As) == sizeof...(Bs)) {
    return alike<A, B> && (alike<As, Bs> && ...);
  } else {
    return false;
  }
}();

// cuda.h's names are macros for the newest versions of the functions.
static_assert(same<decltype(DriverApi::init), decltype(&cuInit)>);
static_assert(same<decltype(DriverApi::driver_get_version), decltype(&cuDriverGetVersion)>);
static_assert(same<decltype(DriverApi::get_error_name), decltype(&cuGetErrorName)>);
static_assert(same<decltype(DriverApi::get_error_string), decltype(&cuGetErrorString)>);
static_assert(same<decltype(DriverApi::device_get_count), decltype(&cuDeviceGetCount)>);
static_assert(same<decltype(DriverApi::device_get), decltype(&cuDeviceGet)>);
static_assert(same<decltype(DriverApi::device_get_name), decltype(&cuDeviceGetName)>);
static_assert(same<decltype(DriverApi::device_total_mem), decltype(&cuDeviceTotalMem)>);
static_assert(same<decltype(DriverApi::device_get_attribute), decltype(&cuDeviceGetAttribute)>);
static_assert(
    same<decltype(DriverApi::device_primary_ctx_retain), decltype(&cuDevicePrimaryCtxRetain)>);
static_assert(same<decltype(DriverApi::ctx_set_current), decltype(&cuCtxSetCurrent)>);
static_assert(same<decltype(DriverApi::mem_alloc), decltype(&cuMemAlloc)>);
static_assert(same<decltype(DriverApi::mem_free), decltype(&cuMemFree)>);
static_assert(same<decltype(DriverApi::mem_host_alloc), decltype(&cuMemHostAlloc)>);
static_assert(same<decltype(DriverApi::mem_free_host), decltype(&cuMemFreeHost)>);
static_assert(same<decltype(DriverApi::memcpy_async), decltype(&cuMemcpyAsync)>);
static_assert(same<decltype(DriverApi::memcpy_htod_async), decltype(&cuMemcpyHtoDAsync)>);
static_assert(same<decltype(DriverApi::memcpy_dtoh_async), decltype(&cuMemcpyDtoHAsync)>);
static_assert(same<decltype(DriverApi::memset_d8_async), decltype(&cuMemsetD8Async)>);
static_assert(same<decltype(DriverApi::memset_d16_async), decltype(&cuMemsetD16Async)>);
static_assert(same<decltype(DriverApi::memset_d32_async), decltype(&cuMemsetD32Async)>);
static_assert(same<decltype(DriverApi::ctx_get_stream_priority_range),
                   decltype(&cuCtxGetStreamPriorityRange)>);
static_assert(same<decltype(DriverApi::stream_create), decltype(&cuStreamCreateWithPriority)>);
static_assert(same<decltype(DriverApi::stream_destroy), decltype(&cuStreamDestroy)>);
static_assert(same<decltype(DriverApi::stream_query), decltype(&cuStreamQuery)>);
static_assert(same<decltype(DriverApi::stream_synchronize), decltype(&cuStreamSynchronize)>);
static_assert(same<decltype(DriverApi::stream_wait_event), decltype(&cuStreamWaitEvent)>);
static_assert(same<decltype(DriverApi::stream_wait_value), decltype(&cuStreamWaitValue32)>);
static_assert(same<decltype(DriverApi::event_create), decltype(&cuEventCreate)>);
static_assert(same<decltype(DriverApi::event_destroy), decltype(&cuEventDestroy)>);
static_assert(same<decltype(DriverApi::event_record), decltype(&cuEventRecord)>);
static_assert(same<decltype(DriverApi::event_query), decltype(&cuEventQuery)>);
static_assert(same<decltype(DriverApi::module_load_data), decltype(&cuModuleLoadData)>);
static_assert(same<decltype(DriverApi::module_get_function), decltype(&cuModuleGetFunction)>);
static_assert(same<decltype(DriverApi::func_set_attribute), decltype(&cuFuncSetAttribute)>);
static_assert(same<decltype(DriverApi::launch_kernel), decltype(&cuLaunchKernel)>);
static_assert(same<decltype(DriverApi::launch_host_func), decltype(&cuLaunchHostFunc)>);
static_assert(same<decltype(DriverApi::stream_begin_capture), decltype(&cuStreamBeginCapture)>);
static_assert(same<decltype(DriverApi::stream_end_capture), decltype(&cuStreamEndCapture)>);
static_assert(same<decltype(DriverApi::graph_instantiate), decltype(&cuGraphInstantiate)>);
static_assert(same<decltype(DriverApi::graph_destroy), decltype(&cuGraphDestroy)>);
static_assert(same<decltype(DriverApi::graph_launch), decltype(&cuGraphLaunch)>);
static_assert(same<decltype(DriverApi::graph_exec_destroy), decltype(&cuGraphExecDestroy)>);

constexpr bool is(Result ours, CUresult theirs) {
  return static_cast<int>(ours) == static_cast<int>(theirs);
}
static_assert(is(Result::success, CUDA_SUCCESS));
static_assert(is(Result::invalid_value, CUDA_ERROR_INVALID_VALUE));
static_assert(is(Result::out_of_memory, CUDA_ERROR_OUT_OF_MEMORY));
static_assert(is(Result::not_initialized, CUDA_ERROR_NOT_INITIALIZED));
static_assert(is(Result::no_device, CUDA_ERROR_NO_DEVICE));
static_assert(is(Result::invalid_device, CUDA_ERROR_INVALID_DEVICE));
static_assert(is(Result::invalid_image, CUDA_ERROR_INVALID_IMAGE));
static_assert(is(Result::invalid_context, CUDA_ERROR_INVALID_CONTEXT));
static_assert(is(Result::no_binary_for_gpu, CUDA_ERROR_NO_BINARY_FOR_GPU));
static_assert(is(Result::not_found, CUDA_ERROR_NOT_FOUND));
static_assert(is(Result::not_ready, CUDA_ERROR_NOT_READY));
static_assert(is(Result::illegal_address, CUDA_ERROR_ILLEGAL_ADDRESS));
static_assert(is(Result::launch_failed, CUDA_ERROR_LAUNCH_FAILED));
static_assert(is(Result::capture_unsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
static_assert(is(Result::capture_invalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
static_assert(is(Result::ecc_uncorrectable, CUDA_ERROR_ECC_UNCORRECTABLE));
static_assert(is(Result::nvlink_uncorrectable, CUDA_ERROR_NVLINK_UNCORRECTABLE));
static_assert(is(Result::invalid_ptx, CUDA_ERROR_INVALID_PTX));
static_assert(is(Result::jit_compiler_not_found, CUDA_ERROR_JIT_COMPILER_NOT_FOUND));
static_assert(is(Result::unsupported_ptx_version, CUDA_ERROR_UNSUPPORTED_PTX_VERSION));
static_assert(is(Result::jit_compilation_disabled, CUDA_ERROR_JIT_COMPILATION_DISABLED));
static_assert(is(Result::launch_timeout, CUDA_ERROR_LAUNCH_TIMEOUT));
static_assert(is(Result::hardware_stack_error, CUDA_ERROR_HARDWARE_STACK_ERROR));
static_assert(is(Result::illegal_instruction, CUDA_ERROR_ILLEGAL_INSTRUCTION));
static_assert(is(Result::misaligned_address, CUDA_ERROR_MISALIGNED_ADDRESS));
static_assert(is(Result::invalid_address_space, CUDA_ERROR_INVALID_ADDRESS_SPACE));
static_assert(is(Result::invalid_pc, CUDA_ERROR_INVALID_PC));
static_assert(is(Result::unknown, CUDA_ERROR_UNKNOWN));

static_assert(compute_capability_major == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(compute_capability_minor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(most_launched_memory == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
static_assert(stream_non_blocking == CU_STREAM_NON_BLOCKING);
static_assert(event_disable_timing == CU_EVENT_DISABLE_TIMING);
static_assert(host_alloc_portable == CU_MEMHOSTALLOC_PORTABLE);
static_assert(host_alloc_device_map == CU_MEMHOSTALLOC_DEVICEMAP);
static_assert(wait_value_geq == CU_STREAM_WAIT_VALUE_GEQ);
static_assert(capture_thread_local == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
static_assert(CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT == 1 &&
              CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT == 2 && CU_LAUNCH_PARAM_END_AS_INT == 0);

#if __has_include(<nvrtc.h>)

static_assert(same<decltype(NvrtcApi::get_error_string), decltype(&nvrtcGetErrorString)>);
static_assert(same<decltype(NvrtcApi::version), decltype(&nvrtcVersion)>);
static_assert(same<decltype(NvrtcApi::create_program), decltype(&nvrtcCreateProgram)>);
static_assert(same<decltype(NvrtcApi::destroy_program), decltype(&nvrtcDestroyProgram)>);
static_assert(same<decltype(NvrtcApi::compile_program), decltype(&nvrtcCompileProgram)>);
static_assert(same<decltype(NvrtcApi::get_cubin_size), decltype(&nvrtcGetCUBINSize)>);
static_assert(same<decltype(NvrtcApi::get_cubin), decltype(&nvrtcGetCUBIN)>);
static_assert(same<decltype(NvrtcApi::get_log_size), decltype(&nvrtcGetProgramLogSize)>);
static_assert(same<decltype(NvrtcApi::get_log), decltype(&nvrtcGetProgramLog)>);
static_assert(static_cast<int>(NvrtcResult::success) == NVRTC_SUCCESS);
static_assert(static_cast<int>(NvrtcResult::compilation) == NVRTC_ERROR_COMPILATION);

#endif

#if __has_include(<cublasLt.h>)

static_assert(same<decltype(BlasApi::create), decltype(&cublasLtCreate)>);
static_assert(same<decltype(BlasApi::status_string), decltype(&cublasLtGetStatusString)>);
static_assert(same<decltype(BlasApi::product_create), decltype(&cublasLtMatmulDescCreate)>);
static_assert(same<decltype(BlasApi::product_set), decltype(&cublasLtMatmulDescSetAttribute)>);
static_assert(same<decltype(BlasApi::layout_create), decltype(&cublasLtMatrixLayoutCreate)>);
static_assert(same<decltype(BlasApi::layout_set), decltype(&cublasLtMatrixLayoutSetAttribute)>);
static_assert(
    same<decltype(BlasApi::preference_create), decltype(&cublasLtMatmulPreferenceCreate)>);
static_assert(
    same<decltype(BlasApi::preference_set), decltype(&cublasLtMatmulPreferenceSetAttribute)>);
static_assert(
    same<decltype(BlasApi::preference_destroy), decltype(&cublasLtMatmulPreferenceDestroy)>);
static_assert(same<decltype(BlasApi::choose), decltype(&cublasLtMatmulAlgoGetHeuristic)>);
static_assert(same<decltype(BlasApi::multiply), decltype(&cublasLtMatmul)>);
static_assert(same<decltype(BlasApi::first_multiply), decltype(&cublasLtMatmul)>);

template <class Ours, class Theirs>
constexpr bool is(Ours ours, Theirs theirs) {
  return sizeof(Ours) == sizeof(Theirs) && static_cast<int>(ours) == static_cast<int>(theirs);
}
static_assert(is(BlasStatus::success, CUBLAS_STATUS_SUCCESS));
static_assert(is(BlasStatus::not_initialized, CUBLAS_STATUS_NOT_INITIALIZED));
static_assert(is(BlasStatus::invalid_value, CUBLAS_STATUS_INVALID_VALUE));
static_assert(is(BlasStatus::execution_failed, CUBLAS_STATUS_EXECUTION_FAILED));
static_assert(is(BlasStatus::not_supported, CUBLAS_STATUS_NOT_SUPPORTED));
static_assert(is(BlasType::f32, CUDA_R_32F) && is(BlasType::f64, CUDA_R_64F));
static_assert(is(BlasType::f8e4m3, CUDA_R_8F_E4M3) && is(BlasType::f8e5m2, CUDA_R_8F_E5M2));
static_assert(is(BlasType::f16, CUDA_R_16F) && is(BlasType::bf16, CUDA_R_16BF));
static_assert(is(BlasCompute::f32, CUBLAS_COMPUTE_32F));
static_assert(is(BlasCompute::f64, CUBLAS_COMPUTE_64F));
static_assert(is(BlasOperation::none, CUBLAS_OP_N) && is(BlasOperation::transpose, CUBLAS_OP_T));
static_assert(is(BlasEpilogue::none, CUBLASLT_EPILOGUE_DEFAULT));
static_assert(is(BlasEpilogue::bias, CUBLASLT_EPILOGUE_BIAS));
static_assert(is(BlasProductAttribute::transpose_a, CUBLASLT_MATMUL_DESC_TRANSA));
static_assert(is(BlasProductAttribute::transpose_b, CUBLASLT_MATMUL_DESC_TRANSB));
static_assert(is(BlasProductAttribute::epilogue, CUBLASLT_MATMUL_DESC_EPILOGUE));
static_assert(is(BlasProductAttribute::bias, CUBLASLT_MATMUL_DESC_BIAS_POINTER));
static_assert(is(BlasProductAttribute::scale_of_a, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER));
static_assert(is(BlasProductAttribute::scale_of_b, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER));
#if CUBLAS_VERSION >= 120900
static_assert(is(BlasProductAttribute::scale_mode_of_a, CUBLASLT_MATMUL_DESC_A_SCALE_MODE));
static_assert(is(BlasProductAttribute::scale_mode_of_b, CUBLASLT_MATMUL_DESC_B_SCALE_MODE));
static_assert(is(BlasScaleMode::one, CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F));
static_assert(is(BlasScaleMode::each, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F));
#endif
static_assert(is(BlasLayoutAttribute::batch_count, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT));
static_assert(is(BlasLayoutAttribute::batch_offset, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET));
static_assert(is(BlasPreferenceAttribute::most_workspace,
                 CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES));
static_assert(is(BlasPreferenceAttribute::reduction_schemes,
                 CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK));
static_assert(is(BlasPreferenceAttribute::alignment_a, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES));
static_assert(is(BlasPreferenceAttribute::alignment_b, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES));
static_assert(is(BlasPreferenceAttribute::alignment_c, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES));
static_assert(is(BlasPreferenceAttribute::alignment_d, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES));
static_assert(reduction_in_workspace == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
static_assert(sizeof(BlasChoice) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(BlasChoice, workspace) ==
              offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
static_assert(offsetof(BlasChoice, state) == offsetof(cublasLtMatmulHeuristicResult_t, state));

#endif

}  // namespace
