module;
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <system_error>
#include <tessera/shown.hpp>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.plugin;
import tessera.mesh;
import tessera.tensor;
import tessera.collective;
import tessera.dtensor;
import tessera.program;
import tessera.capture;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import tessera.checkpoint;
import tessera.train;

namespace tessera::runs {
namespace {

/// A run must not find out at its first save that it cannot write: the nearest folder that exists
/// must be one, and writable. Nothing is made here.
void check_can_write(const char* key, const std::filesystem::path& folder) {
  std::filesystem::path at = std::filesystem::absolute(folder).lexically_normal();
  std::error_code ignored;
  while (!std::filesystem::exists(at, ignored) && at.has_relative_path()) {
    at = at.parent_path();
  }
  if (!std::filesystem::is_directory(at, ignored)) {
    fail_input({.thing = key,
                .wrong = fmt::format("{} is not a folder", at.string()),
                .advice = "choose another path"});
  }
  if (::access(at.c_str(), W_OK | X_OK) != 0) {
    fail_input(
        {.thing = key,
         .wrong = fmt::format("{} cannot be written in ({})", at.string(), std::strerror(errno)),
         .advice = "choose another path"});
  }
}

/// Pipes are written without waiting for their readers, or are not for this key.
enum class Streams { written, refused };

/// Checks a file that is to be written: empty means that none is.
void check_can_write_file(const char* key, const std::string& file, Streams streams) {
  if (file.empty()) {
    return;
  }
  std::error_code ignored;
  const std::filesystem::file_status there = std::filesystem::status(file, ignored);
  const auto refuse = [&](const char* what) {
    fail_input(
        {.thing = key, .wrong = fmt::format("{} is {}", file, what), .advice = "name a file"});
  };
  switch (there.type()) {
    case std::filesystem::file_type::directory:
      refuse("a folder");
      break;
    case std::filesystem::file_type::socket:
    case std::filesystem::file_type::block:
      refuse("a socket or a disk");
      break;
    case std::filesystem::file_type::fifo:
      if (streams == Streams::refused) {
        refuse("a pipe, whose reader could hold the run up");
      }
      return;
    default:
      break;
  }
  if (is_stream(file)) {
    return;
  }
  check_can_write(key, std::filesystem::absolute(output_place(file)).parent_path());
}

}  // namespace

void check_outputs(const RunSpec& config) {
  const auto folder = [&](const char* key, const std::string& path) {
    if (!path.empty()) {
      at_key(config, key, [&] { check_can_write(key, path); });
    }
  };
  const auto file = [&](const char* key, const std::string& path, Streams streams) {
    at_key(config, key, [&] { check_can_write_file(key, path, streams); });
  };
  if (!config.checkpoint.folder.empty()) {
    at_key(config, "checkpoint.folder",
           [&] { RunPlace::named(config.checkpoint.folder)->check_can_save(); });
  }
  folder("graph.offload", config.graph.offload);
  folder("graph.dump", config.graph.dump);
  folder("log.tensorboard", config.log.tensorboard);
  folder("log.blackbox", config.log.blackbox);
  file("log.metrics", config.log.metrics, Streams::written);
  file("graph.program", config.graph.program, Streams::refused);
  file("trace.file", config.trace.file, Streams::refused);
}

std::string resume_key(const RunSpec& config) {
  return config.given.contains("checkpoint.resume") ? "checkpoint.resume" : "checkpoint.folder";
}

std::optional<std::string> checkpoint_to_resume(const RunSpec& config) {
  const std::string& resume = config.checkpoint.resume;
  if (resume == "never" || (resume == "auto" && config.checkpoint.folder.empty())) {
    return std::nullopt;
  }
  if (resume == "auto") {
    return latest_checkpoint(config.checkpoint.folder);
  }
  return resume;
}

ContinuedRows rows_to_continue(const RunSpec& config) {
  try {
    const std::optional<std::string> resume = checkpoint_to_resume(config);
    if (!resume) {
      return {};
    }
    const CheckpointReader reader(*resume, OpenFiles::when_read);
    const std::string text = stored_text(reader, exclusions_text);
    return {.step = read_training_progress(reader).step,
            .before = text.empty() ? Exclusions() : exclusions_of(text, *resume)};
  } catch (const Error&) {
    return {};
  }
}

void check_folder(const RunSpec& config, const StartPoint& start) {
  const std::string& folder = config.checkpoint.folder;
  const std::vector<std::string> found =
      folder.empty() ? std::vector<std::string>{} : checkpoints_in(folder);
  std::error_code ignored;
  if (found.empty() || found.front() == start.checkpoint ||
      (start.checkpoint &&
       std::filesystem::equivalent(found.front(), *start.checkpoint, ignored))) {
    return;
  }
  fail_input({.where = config.place("checkpoint.folder"),
              .wrong = fmt::format(
                  "the folder holds {}, which this run does not continue ({})", found.front(),
                  start.checkpoint ? "it continues " + *start.checkpoint : "it is a new run"),
              .advice = "name another folder, or remove the checkpoints in it"});
}

void compare_runs(collective::World& world, const Run& run, const StartPoint& start) {
  // A machine that takes the place of another one has found newer checkpoints than the others had.
  const std::string from = start.from_kept ? "memory" : start.checkpoint.value_or("new");
  const std::string text = fmt::format("{}\n{}\n{}\n{} {}", to_json(run.config),
                                       to_json(run.fingerprint), run.base_hash, start.step, from);
  const auto mine = static_cast<std::int64_t>(std::hash<std::string>{}(text));
  std::vector<std::int64_t> all(static_cast<std::size_t>(world.size()));
  world.everyone().all_gather(&mine, all.data(), 1, DType::i64);
  const auto other = std::ranges::find_if(all, [&](std::int64_t hash) { return hash != all[0]; });
  if (other != all.end()) {
    fail_input({.thing = "train",
                .wrong = fmt::format("rank {} has another config, text or checkpoint than rank 0 "
                                     "(this rank starts after step {})",
                                     other - all.begin(), start.step),
                .advice = "start all ranks with the same command and the same files"});
  }
}

}  // namespace tessera::runs
