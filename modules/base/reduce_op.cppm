export module tessera.base:reduce_op;

import :standard;

export namespace tessera {

/// How values of several ranks become one: of a collective, and of a partial placement.
enum class ReduceOp : std::uint8_t { sum, avg, max, min, product };
inline constexpr int reduce_op_count = 5;

/// "sum", "avg", "max", "min", "product".
std::string_view name_of(ReduceOp op);
std::optional<ReduceOp> reduce_op_from_name(std::string_view name);

}  // namespace tessera
