module;
#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
module tessera.program;

import tessera.base;
import :roles;

namespace tessera {
namespace {

constexpr std::array<std::string_view, role_count> role_names = {
    "other", "parameter",  "buffer",          "optimizer_state", "gradient",
    "rows",  "loss_scale", "transform_state", "pending"};
constexpr std::array<std::string_view, section_kind_count> section_names = {
    "step", "gradients", "free", "update", "evaluation"};
constexpr std::array<std::string_view, phase_count> phase_names = {"",
                                                                   "step",
                                                                   "forward",
                                                                   "backward",
                                                                   "recomputation",
                                                                   "gradient norm",
                                                                   "gradient reduction",
                                                                   "optimizer",
                                                                   "evaluation",
                                                                   "offload",
                                                                   "fetch"};

/// The value of an enumeration that has this name.
template <class E>
std::optional<E> named(std::span<const std::string_view> names, std::string_view name) {
  const auto found = std::ranges::find(names, name);
  return found == names.end() ? std::optional<E>()
                              : std::optional<E>(static_cast<E>(found - names.begin()));
}

}  // namespace

std::string_view name_of(Role role) { return role_names[static_cast<std::size_t>(role)]; }
std::optional<Role> role_named(std::string_view name) { return named<Role>(role_names, name); }
bool is_given_anew(Role role) { return role == Role::rows || role == Role::scaler_factor; }

std::string_view name_of(SectionKind kind) { return section_names[static_cast<std::size_t>(kind)]; }
std::optional<SectionKind> section_kind_named(std::string_view name) {
  return named<SectionKind>(section_names, name);
}

std::string_view name_of(Phase phase) { return phase_names[static_cast<std::size_t>(phase)]; }
std::optional<Phase> phase_named(std::string_view name) { return named<Phase>(phase_names, name); }

}  // namespace tessera
