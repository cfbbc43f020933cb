module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/content_hash.hpp>
#include <tessera/json.hpp>
#include <tessera/json_reading.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>

#include "file_bytes.hpp"
module tessera.runs;

import tessera.base;
import tessera.tensor;
import tessera.checkpoint;
import tessera.train;

namespace tessera::runs {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::int64_t export_version = 1;
constexpr JsonLimits limits{.bytes = 32'000'000, .values = 1'000'000, .depth = 64};
constexpr std::size_t most_files = 20'000;

void add_text(ContentHash& hash, const std::string& text) {
  hash.add(std::as_bytes(std::span(text)));
}

Json json_of(const RecordedFile& file) {
  Json json = {{"name", file.name}, {"bytes", file.bytes}};
  if (!file.hash.empty()) {
    json["hash"] = file.hash;
  }
  return json;
}

std::vector<RecordedFile> files_of(const Json& value, const std::string& name) {
  if (!value.is_array() || value.size() > most_files) {
    throw JsonProblem(fmt::format("'{}' is not a list of at most {}", name, most_files));
  }
  std::vector<RecordedFile> files;
  for (const Json& one : value) {
    if (!one.is_object() || !one.contains("name") || !one.contains("bytes")) {
      throw JsonProblem(fmt::format("'{}' has a file without name and bytes", name));
    }
    files.push_back({.name = json_value<std::string>(one["name"], name),
                     .bytes = json_value<std::int64_t>(one["bytes"], name),
                     .hash = one.contains("hash") ? json_value<std::string>(one["hash"], name)
                                                  : std::string()});
  }
  return files;
}

/// What the checkpoint says of the data's files, without their times and this machine's folders.
std::vector<RecordedFile> data_files(const CheckpointReader& checkpoint) {
  std::vector<RecordedFile> files;
  const nlohmann::json meta = parse_json(checkpoint.meta(), false);
  for (const nlohmann::json& file :
       meta.is_object() ? meta.value("files", nlohmann::json::array()) : nlohmann::json::array()) {
    if (file.is_object() && file.contains("path") && file["path"].is_string() &&
        file.contains("bytes") && file["bytes"].is_number_integer()) {
      files.push_back({.name = public_path(file["path"].get<std::string>()),
                       .bytes = file["bytes"].get<std::int64_t>()});
    }
  }
  return files;
}

}  // namespace

std::string stored_hash(const TensorSource& source, std::string_view prefix) {
  ContentHash hash;
  for (const auto& [name, info] : source.tensors()) {
    if (!name.starts_with(prefix)) {
      continue;
    }
    add_text(hash,
             fmt::format("{} {} {};", name, tessera::name_of(info.dtype), to_string(info.shape)));
    if (info.shape.product() > 0) {
      const Tensor whole = source.read(name);
      hash.add({static_cast<const std::byte*>(whole.raw_data()),
                static_cast<std::size_t>(whole.numel()) * size_of(whole.dtype())});
    }
  }
  return hash.hex();
}

ReadRecord stored_record(const CheckpointReader& checkpoint) {
  const std::string text = stored_text(checkpoint, record_text);
  if (text.empty()) {
    return {.record = {}, .problem = "there is none"};
  }
  ReadRecord read = read_record(text);
  const std::int64_t step = read_training_progress(checkpoint).step;
  if (read.problem.empty() && read.record.step() != step) {
    read = {.record = {},
            .problem = fmt::format("it is of step {}, and the checkpoint of step {}",
                                   read.record.step(), step)};
  }
  return read;
}

RecordedFile recorded_file(const std::string& path, const std::string& name) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    fail_input({.thing = shown(path), .wrong = "it cannot be read"});
  }
  ContentHash hash;
  const std::int64_t bytes = add_file(hash, file);
  return {.name = name, .bytes = bytes, .hash = hash.hex()};
}

std::string write_export_record(const CheckpointReader& checkpoint, const std::string& folder,
                                const ExportForm& form) {
  const ReadRecord read = stored_record(checkpoint);
  if (!read.problem.empty()) {
    return read.problem;
  }
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = fs::relative(entry.path(), folder).string();
    if (entry.is_regular_file() && name != "README.md" && name != record_file) {
      names.push_back(name);
    }
  }
  std::ranges::sort(names);
  Json files = Json::array();
  for (const std::string& name : names) {
    files.push_back(json_of(recorded_file((fs::path(folder) / name).string(), name)));
  }
  Json data = Json::array();
  for (const RecordedFile& file : data_files(checkpoint)) {
    data.push_back(json_of(file));
  }
  const TrainingProgress progress = read_training_progress(checkpoint);
  const std::string excluded = stored_text(checkpoint, exclusions_text);
  const Json json = {{"version", export_version},
                     {"step", progress.step},
                     {"tokens", progress.tokens},
                     {"weights", stored_hash(checkpoint, "model.")},
                     {"export",
                      {{"format", form.format},
                       {"dtype", form.dtype},
                       {"tokenizer", form.tokenizer},
                       {"max_file_bytes", form.max_file_bytes}}},
                     {"files", std::move(files)},
                     {"data", std::move(data)},
                     {"excluded", parse_ordered_json(excluded.empty() ? "[]" : excluded)},
                     {"record", parse_ordered_json(to_json(read.record))}};
  write_text((fs::path(folder) / record_file).string(), json_text(json, 1));
  return "";
}

ExportRecord read_export_record(const std::string& folder) {
  const std::string path = (fs::path(folder) / record_file).string();
  const ParsedOrderedJson parsed = read_ordered_json_object(path, limits);
  const auto refuse = [&](const std::string& problem) {
    fail_input({.thing = shown(path),
                .wrong = "it is not the record of an export",
                .got = problem,
                .advice = "get the folder again from who has exported it"});
  };
  if (!parsed.problem.empty()) {
    refuse(parsed.problem);
  }
  ExportRecord record;
  try {
    const Json& json = parsed.value;
    for (const char* name : {"version", "step", "tokens", "weights", "export", "files", "data",
                             "excluded", "record"}) {
      if (!json.contains(name)) {
        throw JsonProblem(fmt::format("it has no member '{}'", name));
      }
    }
    if (json_value<std::int64_t>(json["version"], "version") != export_version) {
      throw JsonProblem(fmt::format("its version is not {}", export_version));
    }
    record.step = json_value<std::int64_t>(json["step"], "step");
    record.tokens = json_value<std::int64_t>(json["tokens"], "tokens");
    record.weights = json_value<std::string>(json["weights"], "weights");
    const Json& form = json["export"];
    for (const char* name : {"format", "dtype", "tokenizer", "max_file_bytes"}) {
      if (!form.is_object() || !form.contains(name)) {
        throw JsonProblem(fmt::format("'export' has no member '{}'", name));
      }
    }
    record.form = {
        .format = json_value<std::string>(form["format"], "format"),
        .dtype = json_value<std::string>(form["dtype"], "dtype"),
        .tokenizer = json_value<bool>(form["tokenizer"], "tokenizer"),
        .max_file_bytes = json_value<std::int64_t>(form["max_file_bytes"], "max_file_bytes")};
    record.files = files_of(json["files"], "files");
    record.data = files_of(json["data"], "data");
    record.excluded = json_text(json["excluded"]);
    ReadRecord read = read_record(json_text(json["record"]));
    if (!read.problem.empty()) {
      throw JsonProblem(read.problem);
    }
    if (read.record.step() != record.step) {
      throw JsonProblem(fmt::format("'record' is of step {}, and the export of step {}",
                                    read.record.step(), record.step));
    }
    record.record = std::move(read.record);
  } catch (const JsonProblem& problem) {
    refuse(problem.what());
  }
  return record;
}

std::vector<std::string> changed_exports(const ExportRecord& record, const std::string& folder) {
  std::vector<std::string> changed;
  for (const RecordedFile& file : record.files) {
    const fs::path name = fs::path(file.name).lexically_normal();
    std::error_code ignored;
    if (name.is_absolute() || name.string().starts_with("..")) {
      changed.push_back(fmt::format("{}: it is not in the folder", shown(file.name)));
    } else if (!fs::is_regular_file(fs::path(folder) / name, ignored)) {
      changed.push_back(fmt::format("{}: it is gone", shown(file.name)));
    } else if (const RecordedFile now =
                   recorded_file((fs::path(folder) / name).string(), file.name);
               now.hash != file.hash) {
      changed.push_back(fmt::format("{}: its hash is not that of the record (expected {}, got {})",
                                    shown(file.name), shown(file.hash), now.hash));
    }
  }
  return changed;
}

}  // namespace tessera::runs
