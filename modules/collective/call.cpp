module;
#include <fmt/format.h>

#include <string>
#include <string_view>
module tessera.collective;

import tessera.base;

namespace tessera::collective {

std::string_view name_of(CallKind kind) {
  constexpr std::string_view names[] = {"barrier",
                                        "all_reduce",
                                        "all_gather",
                                        "reduce_scatter",
                                        "all_to_all",
                                        "all_to_all with counts",
                                        "broadcast",
                                        "scatter",
                                        "gather",
                                        "reduce",
                                        "all_gather of segments",
                                        "reduce_scatter of segments",
                                        "all_reduce of segments",
                                        "send",
                                        "receive"};
  return names[static_cast<int>(kind)];
}

std::string to_string(const Call& call) {
  if (call.kind == CallKind::barrier) {
    return "barrier()";
  }
  std::string text =
      fmt::format("{}({}, {}", name_of(call.kind), tessera::name_of(call.dtype), call.count);
  switch (call.kind) {
    case CallKind::all_reduce:
    case CallKind::reduce_scatter:
    case CallKind::reduce:
    case CallKind::reduce_scatter_segments:
    case CallKind::all_reduce_segments:
      text += fmt::format(", {}", tessera::name_of(call.reduce));
      break;
    default:
      break;
  }
  if (call.root >= 0) {
    text += fmt::format(", root {}", call.root);
  }
  if (call.shape != 0) {
    text += fmt::format(", extents {:08x}", static_cast<unsigned>(call.shape));
  }
  return text + ")";
}

}  // namespace tessera::collective
