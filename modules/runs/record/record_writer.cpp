module;
#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/utsname.h>

#include <cstdint>
#include <ctime>
#include <fstream>
#include <string>
#include <tessera/content_hash.hpp>
#include <utility>
#include <vector>

#include "file_bytes.hpp"
module tessera.runs;

import tessera.base;
import tessera.plugin;
import tessera.mesh;

namespace tessera::runs {
namespace {

/// "2026-12-01T03:50:12.345Z"
std::string utc_now() {
  std::timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  std::tm parts{};
  ::gmtime_r(&now.tv_sec, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", parts.tm_year + 1900,
                     parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                     now.tv_nsec / 1'000'000);
}

/// Of the program, and of the library that has this code where that is another file.
std::string program_hash() {
  ContentHash hash;
  std::ifstream program("/proc/self/exe", std::ios::binary);
  add_file(hash, program);
  Dl_info library{};
  if (::dladdr(reinterpret_cast<const void*>(&utc_now), &library) != 0 &&
      library.dli_fname != nullptr) {
    std::ifstream file(library.dli_fname, std::ios::binary);
    add_file(hash, file);
  }
  return hash.hex();
}

/// The value of the first line "model name : value".
std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "";
}

std::string system_name() {
  utsname names{};
  return ::uname(&names) == 0 ? fmt::format("{} {}", names.sysname, names.machine) : "";
}

}  // namespace

Session session_here() {
  return {.begun = utc_now(),
          .version = plugin::host_version(),
          .program = program_hash(),
          .system = system_name(),
          .processor = processor_name(),
          .cores = available_cores()};
}

Session session_of(const Run& run) {
  const RunSpec& config = run.config;
  Session session = session_here();
  session.command = public_command(config.command);
  session.machines = run.launchers;
  session.mesh = config.mesh.shape.empty() ? "one rank" : to_string(make_mesh(config));
  session.device = config.train.device;
  session.threads = threads_of_rank(config);
  session.config = {public_config(config)};
  session.fingerprint = {to_json(run.fingerprint)};
  return session;
}

std::string RecordWriter::continue_from(const std::string& text, std::int64_t done) {
  before_ = {};
  now_.from = done;
  now_.ledger = {};
  if (done == 0) {
    return "";
  }
  if (text.empty()) {
    return fmt::format("the checkpoint has no record of its run: one begins after step {}", done);
  }
  ReadRecord read = read_record(text);
  if (read.problem.empty() && read.record.step() != done) {
    read.problem =
        fmt::format("it is of step {}, and the checkpoint of step {}", read.record.step(), done);
  }
  if (!read.problem.empty()) {
    return fmt::format(
        "the checkpoint's record of its run is left out: {}; one begins after step {}",
        read.problem, done);
  }
  before_ = std::move(read.record);
  // Ranks that are started again in one start, and a run that goes back, continue its session.
  if (const Session& last = before_.sessions.back();
      last.begun == now_.begun && last.program == now_.program && last.command == now_.command) {
    now_.from = last.from;
    now_.ledger = last.ledger;
    before_.sessions.pop_back();
  }
  return "";
}

void RecordWriter::step(const StepMetrics& metrics) {
  std::vector<CurvePoint>& curve = before_.curve;
  while (!curve.empty() && curve.back().step >= metrics.step) {
    curve.pop_back();
  }
  curve.push_back({.step = metrics.step,
                   .loss = metrics.loss,
                   .grad_norm = metrics.grad_norm,
                   .lr = metrics.lr,
                   .validation_loss = metrics.validation_loss});
  if (curve.size() > 4 * most_points) {
    thin_curve(curve);
  }
}

std::string RecordWriter::text(std::int64_t done, const TimeBook& ledger) {
  now_.to = done;
  now_.saved = utc_now();
  now_.ledger = ledger;
  now_.plugins.clear();
  for (const plugin::LoadedPlugin& one : plugin::host().loaded()) {
    now_.plugins.push_back({.name = one.name, .version = one.version, .hash = one.digest});
  }
  RunRecord record = before_;
  thin_curve(record.curve);
  record.sessions.push_back(now_);
  limit_sessions(record);
  return to_json(record);
}

}  // namespace tessera::runs
