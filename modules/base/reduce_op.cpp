module;
#include <optional>
#include <string_view>
module tessera.base;

namespace tessera {

namespace {
constexpr std::string_view names[reduce_op_count] = {"sum", "avg", "max", "min", "product"};
}  // namespace

std::string_view name_of(ReduceOp op) { return names[static_cast<int>(op)]; }

std::optional<ReduceOp> reduce_op_from_name(std::string_view name) {
  for (int i = 0; i < reduce_op_count; ++i) {
    if (names[i] == name) {
      return static_cast<ReduceOp>(i);
    }
  }
  return std::nullopt;
}

}  // namespace tessera
