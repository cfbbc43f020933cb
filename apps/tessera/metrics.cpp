#include "metrics.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <system_error>
#include <tessera/json.hpp>
#include <utility>

import tessera.base;

namespace tessera::app {
namespace {

[[noreturn]] void cannot_write(const std::filesystem::path& path, int code) {
  fail({.thing = "metrics",
        .wrong = fmt::format("{} cannot be written: {}", path.string(),
                             std::error_code(code, std::generic_category()).message())});
}

/// The lines of steps up to `last`, as they are.
std::string kept_lines(const std::filesystem::path& path, std::int64_t last) {
  std::ifstream stream(path, std::ios::binary);
  std::string kept;
  std::string line;
  while (std::getline(stream, line) && !stream.eof()) {  // a line without its end is incomplete
    const auto json = parse_json(line, false);
    if (json.is_object() && json.contains("step") && json["step"].is_number_integer() &&
        json["step"].get<std::int64_t>() <= last) {
      kept += line + "\n";
    }
  }
  return kept;
}

void write_all(int file, const std::string& text, const std::filesystem::path& path) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t count = ::write(file, text.data() + done, text.size() - done);
    if (count < 0 && errno != EINTR) {
      cannot_write(path, errno);
    }
    done += count > 0 ? static_cast<std::size_t>(count) : 0;
  }
}

}  // namespace

std::string to_json(const StepMetrics& m) {
  nlohmann::ordered_json json = {{"step", m.step},
                                 {"loss", m.loss},
                                 {"grad_norm", m.grad_norm},
                                 {"lr", m.lr},
                                 {"tokens_per_second", m.tokens_per_second},
                                 {"seconds", m.seconds},
                                 {"memory_bytes", m.memory_bytes}};
  if (m.skipped) {
    json["skipped"] = true;
  }
  for (const auto& [category, bytes] : m.memory_peaks) {
    json["memory_peaks"][category] = bytes;
  }
  if (m.save_seconds > 0) {
    json["save_seconds"] = m.save_seconds;
  }
  if (m.validation_loss) {
    json["validation_loss"] = *m.validation_loss;
  }
  return json_text(json);
}

MetricsWriter::MetricsWriter(std::filesystem::path file, std::int64_t resumed_step)
    : path_(std::move(file)) {
  std::error_code error;
  if (path_.has_parent_path()) {
    std::filesystem::create_directories(path_.parent_path(), error);
  }
  constexpr int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
  if (std::filesystem::exists(path_, error) && !std::filesystem::is_regular_file(path_, error)) {
    file_ = ::open(path_.c_str(), flags, 0644);  // a pipe or a device stores no lines
    if (file_ < 0) {
      cannot_write(path_, errno);
    }
    return;
  }
  const std::string kept = resumed_step > 0 ? kept_lines(path_, resumed_step) : "";
  // The kept lines go to a new file that then replaces the old one: a crash here loses nothing.
  const std::filesystem::path fresh = path_.string() + ".new";
  file_ = ::open(fresh.c_str(), flags | O_TRUNC, 0644);
  if (file_ < 0) {
    cannot_write(path_, errno);
  }
  try {
    write_all(file_, kept, path_);
    if (::rename(fresh.c_str(), path_.c_str()) != 0) {
      cannot_write(path_, errno);
    }
  } catch (...) {
    ::close(file_);
    ::unlink(fresh.c_str());
    throw;
  }
}

MetricsWriter::~MetricsWriter() { ::close(file_); }

void MetricsWriter::write(const StepMetrics& metrics) {
  write_all(file_, to_json(metrics) + "\n", path_);
}

}  // namespace tessera::app
