// libcuda.so.1 for a library that compiles kernels without a GPU: there is no device, and every
// other function succeeds and does nothing. It has those that cuDNN's engines look for.
namespace {

int nothing;

}  // namespace

#define SUCCEEDS(NAME) \
  extern "C" int NAME() { return 0; }
/// Its first argument gets a handle that is not null.
#define MAKES(NAME)                  \
  extern "C" int NAME(void** made) { \
    *made = &nothing;                \
    return 0;                        \
  }

/// CUDA_ERROR_NO_DEVICE: NVRTC looks for one.
extern "C" int cuInit(unsigned) { return 100; }

MAKES(cuLibraryLoadData)
MAKES(cuLibraryLoadFromFile)
MAKES(cuLibraryGetKernel)
MAKES(cuModuleLoadData)
MAKES(cuModuleLoadDataEx)
MAKES(cuModuleGetFunction)
MAKES(cuKernelGetFunction)
SUCCEEDS(cuLibraryUnload)
SUCCEEDS(cuModuleUnload)
SUCCEEDS(cuKernelSetAttribute)
SUCCEEDS(cuKernelGetAttribute)
SUCCEEDS(cuFuncSetAttribute)
SUCCEEDS(cuFuncGetAttribute)
MAKES(cuCtxGetCurrent)
SUCCEEDS(cuCtxGetDevice)
SUCCEEDS(cuCtxGetLimit)
SUCCEEDS(cuCtxPopCurrent)
SUCCEEDS(cuCtxPushCurrent)
SUCCEEDS(cuCtxSetCurrent)
SUCCEEDS(cuDeviceGet)
SUCCEEDS(cuDeviceGetAttribute)
SUCCEEDS(cuDeviceGetCount)
SUCCEEDS(cuDriverGetVersion)
SUCCEEDS(cuGetErrorName)
SUCCEEDS(cuGetErrorString)
SUCCEEDS(cuLinkCreate)
SUCCEEDS(cuLinkAddData)
SUCCEEDS(cuLinkComplete)
SUCCEEDS(cuLinkDestroy)
SUCCEEDS(cuLaunchKernel)
SUCCEEDS(cuLaunchKernelEx)
SUCCEEDS(cuLaunchCooperativeKernel)
SUCCEEDS(cuMemsetD8Async)
SUCCEEDS(cuMemsetD32Async)
SUCCEEDS(cuOccupancyMaxActiveBlocksPerMultiprocessor)
SUCCEEDS(cuOccupancyMaxActiveClusters)
SUCCEEDS(cuOccupancyMaxPotentialClusterSize)
SUCCEEDS(cuStreamGetCtx)
SUCCEEDS(cuStreamIsCapturing)
SUCCEEDS(cuStreamWaitEvent)
SUCCEEDS(cuTensorMapEncodeTiled)
SUCCEEDS(cuTensorMapEncodeIm2col)
SUCCEEDS(cuDevicePrimaryCtxRelease)
SUCCEEDS(cuDevicePrimaryCtxReset)
SUCCEEDS(cuDevicePrimaryCtxRetain)
SUCCEEDS(cuGetExportTable)
SUCCEEDS(cuLinkAddData_v2)
SUCCEEDS(cuLinkAddFile_v2)
SUCCEEDS(cuLinkCreate_v2)
SUCCEEDS(cuMemcpyDtoH_v2)
SUCCEEDS(cuModuleGetGlobal_v2)
SUCCEEDS(cuModuleLoadFatBinary)
SUCCEEDS(cuStreamSynchronize)
