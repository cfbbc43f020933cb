module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/limits.hpp>
#include <utility>
#include <vector>
module tessera.checkpoint;

import tessera.base;
import tessera.stores;
import :place;
import :store_place;

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view front = "step-";

}  // namespace

std::optional<std::uint64_t> checkpoint_detail::checkpoint_number(const std::string& name) {
  constexpr std::size_t most_digits = 18;
  const std::string digits = name.starts_with(front) ? name.substr(front.size()) : "";
  if (digits.empty() || digits.size() > most_digits ||
      digits.find_first_not_of("0123456789") != std::string::npos) {
    return std::nullopt;
  }
  return std::stoull(digits);
}

namespace {

/// Why the folder cannot be used; "" when it can.
std::string problem_of(const std::string& path) {
  try {
    const CheckpointReader reader(path);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

std::string checkpoint_folder(const std::string& folder, std::int64_t step) {
  return (fs::path(folder) / fmt::format("{}{:08}", front, step)).string();
}

std::vector<std::string> checkpoints_in(const std::string& folder) {
  if (const std::optional<stores::Address> address = checkpoint_detail::address_of(folder)) {
    return checkpoint_detail::stored_checkpoints(*address);
  }
  std::vector<std::pair<std::uint64_t, std::string>> steps;
  std::error_code error;
  std::error_code ignored;
  for (fs::directory_iterator next(folder, error), end; !error && next != end;
       next.increment(error)) {
    const fs::directory_entry& entry = *next;
    const std::optional<std::uint64_t> number =
        checkpoint_detail::checkpoint_number(entry.path().filename().string());
    if (number && (entry.is_directory(ignored) || entry.is_symlink(ignored))) {
      steps.emplace_back(*number, entry.path().string());
    }
  }
  if (error && error != std::errc::no_such_file_or_directory &&
      error != std::errc::not_a_directory) {
    fail_input({.thing = folder,
                .wrong = fmt::format("the folder cannot be read ({})", reason_of(error.value())),
                .advice = "check its permissions"});
  }
  std::sort(steps.begin(), steps.end(), std::greater<>());
  std::vector<std::string> paths;
  paths.reserve(steps.size());
  for (auto& [step, path] : steps) {
    paths.push_back(std::move(path));
  }
  return paths;
}

void check_checkpoint_folder(const HeldFolder& folder) {
  if (folder.is_lost()) {
    fail({.thing = folder.path(),
          .wrong = "the folder of the run's checkpoints was removed, moved or replaced during the "
                   "run",
          .advice = "put it back and start the run again: it continues the newest checkpoint"});
  }
}

std::optional<std::string> latest_checkpoint(const std::string& folder) {
  const std::vector<std::string> steps = checkpoints_in(folder);
  if (steps.empty()) {
    return std::nullopt;
  }
  const std::string problem = problem_of(steps[0]);
  if (problem.empty()) {
    return steps[0];
  }
  const auto good = std::find_if(steps.begin() + 1, steps.end(),
                                 [](const std::string& path) { return problem_of(path).empty(); });
  fail_input(
      {.thing = "checkpoint",
       .wrong = fmt::format("the newest one, '{}', cannot be used ({})", steps[0], problem),
       .advice = good != steps.end()
                     ? fmt::format("remove it to continue from '{}', the newest good one", *good)
                     : std::string("there is no good one: remove it to start a new run")});
}

void prune_checkpoints(const HeldFolder& folder, int keep) {
  if (keep < 1) {
    fail_input({.thing = "checkpoint",
                .wrong = "at least one must be kept",
                .got = fmt::format("{}", keep)});
  }
  // By the descriptor: another folder may have the name at any moment.
  const std::string place = fmt::format("/proc/self/fd/{}", folder.descriptor());
  std::vector<std::string> remaining = checkpoint_detail::complete_removals(place);
  const std::vector<std::string> steps = checkpoints_in(place);
  for (std::size_t i = static_cast<std::size_t>(keep); i < steps.size(); ++i) {
    std::string problem = checkpoint_detail::remove_checkpoint(steps[i]);
    if (!problem.empty()) {
      remaining.push_back(std::move(problem));
    }
  }
  if (!remaining.empty()) {
    std::ranges::sort(remaining);
    std::string text = fmt::format("{}", fmt::join(remaining, ", "));
    const std::string name = (fs::path(folder.path()) / ".").lexically_normal().parent_path();
    for (std::size_t at = 0; (at = text.find(place, at)) != std::string::npos; at += name.size()) {
      text.replace(at, place.size(), name);
    }
    fail({.thing = "checkpoint",
          .wrong = "old ones cannot be removed: " + text,
          .advice = "remove what is in the way, or remove them by hand"});
  }
}

}  // namespace tessera
