module;
#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.tensor;

import tessera.base;
import tessera.plugin;

namespace tessera {
namespace {

[[maybe_unused]] const bool declared = plugin::declare_kind<OperatorPlugin>();

const Op* registered(std::string_view name) {
  const std::vector<const Op*> ops = all_ops();
  const auto found = std::ranges::find(ops, name, [](const Op* op) { return op->name; });
  return found == ops.end() ? nullptr : *found;
}

}  // namespace

const Op& load_operator(std::string_view name) {
  static std::mutex mutex;  // ranks that are threads call this at the same time
  const std::lock_guard lock(mutex);
  if (const Op* op = registered(name)) {
    return *op;
  }
  Op op = plugin::host().find<OperatorPlugin>(name)();
  if (!op.schema.starts_with(std::string(name) + "(")) {
    fail({.thing = fmt::format("operator '{}'", name),
          .wrong = "its plugin registers the wrong schema",
          .expected = fmt::format("'{}(...)'", name),
          .got = fmt::format("'{}'", op.schema),
          .advice = "offer an operator under its own name"});
  }
  return register_op(std::move(op));
}

}  // namespace tessera
