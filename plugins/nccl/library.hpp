// NCCL's library, opened at the first use.
#pragma once
#include <string>

#include "nccl_api.hpp"

namespace tessera::nccl {

/// The library's functions. Errors (input): no library, one that is too old.
const Api& api();

/// "NCCL 2.28.9".
std::string version_text();

}  // namespace tessera::nccl
