// NCCL's library, opened at the first use.
#pragma once
#include <cstddef>
#include <string>

#include "nccl_api.hpp"

namespace tessera::nccl {

/// The library's functions. Errors (input): no library, one that is too old.
const Api& api();

/// "NCCL 2.28.9"; with windows "NCCL 2.28.9, windows of 16 MiB". Errors (input): those of the other
/// functions here.
std::string version_text();

/// Bytes of the symmetric window of each group: TESSERA_NCCL_WINDOW, a number of MiB; 0, the
/// default: no windows. Error (input): it is not such a number.
std::size_t windows_asked_for();
/// Error (input) where the library has no symmetric windows: it is older than 2.27.
void refuse_windows_where_none();

}  // namespace tessera::nccl
