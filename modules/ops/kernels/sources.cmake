# Relative to modules/ops.
set(TESSERA_KERNEL_SOURCES
    kernels/parallel.cpp
    kernels/gemm.cpp
    kernels/attention.cpp
    kernels/attention_backward.cpp
    kernels/norm.cpp
    kernels/softmax.cpp
    kernels/rotary.cpp
    kernels/swiglu.cpp
    kernels/cross_entropy.cpp
    kernels/adamw.cpp
    kernels/unary.cpp
    kernels/binary.cpp
    kernels/copy.cpp
    kernels/reduce.cpp
    kernels/indexing.cpp
    kernels/philox.cpp)
