module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <variant>
#include <vector>
module tessera.app.commands;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import tessera.checkpoint;
import tessera.app.base;
import tessera.hub;
import tessera.encoders;
import tessera.runs;
import :stored_paths;

// Content of checkpoints and model folders: shown, compared, and written in other formats.
namespace tessera::app {
namespace {

using Json = nlohmann::ordered_json;

std::uint64_t bytes_of(const TensorSource& source) {
  std::uint64_t bytes = 0;
  for (const auto& [name, info] : source.tensors()) {
    bytes += static_cast<std::uint64_t>(info.shape.product()) * size_of(info.dtype);
  }
  return bytes;
}

/// Statements of a run's checkpoint about its run; null members where there is none.
struct RunStatements {
  nlohmann::json fingerprint;
  std::string model;
  std::string mesh;
  std::string written_by;  // the version of Tessera; empty: one that does not say
  runs::ReadRecord record = {.record = {}, .problem = "there is none"};
};

/// The scalar of a checkpoint that has the record of its run.
const std::string record_scalar = std::string("progress.text.") + runs::record_text;

/// "3 starts (12 s), the last one after step 20, on mesh(shard=2), by tessera train run.toml".
std::string text_of(const runs::RunRecord& record) {
  const runs::Session& last = record.sessions.back();
  std::string command;
  for (const std::string& word : last.command) {
    command += (command.empty() ? "" : " ") + word;
  }
  double seconds = 0;
  for (const runs::Session& one : record.sessions) {
    seconds += one.ledger.total();
  }
  return fmt::format("{} ({:.0f} s), the last one after step {}, on {}, by {}",
                     count_text(std::ssize(record.sessions) + record.left_out, "start"), seconds,
                     last.from, shown(last.mesh),
                     command.empty() ? "a program of its own" : shown(command));
}

RunStatements about(const TensorSource& source) {
  RunStatements result;
  nlohmann::json meta = parse_json(source.meta());
  if (const auto encoder = encoders::stored_encoder(source.meta(), source.path())) {
    result.model = fmt::format("{}: an encoder with {}", encoder->family,
                               count_text(std::ssize(encoder->labels), "label"));
  } else if (const auto decoder = hub::stored_classifier(source.meta(), source.path())) {
    result.model = fmt::format("{}: a decoder with {}", decoder->model.family,
                               count_text(std::ssize(decoder->labels), "label"));
  } else if (meta.contains("model")) {
    const hub::ModelShape model = hub::stored_model(source.meta(), source.path());
    std::optional<hub::WholeCheckpoint> whole;
    if (source.base()) {
      whole.emplace(source.path(), OpenFiles::when_read, hub::BaseUse::names);
    }
    const hub::MergedWeights merged(whole ? whole->tensors() : source,
                                    hub::stored_updates(source.meta(), source.path()), "model.");
    hub::check_stored_sizes(model, merged, "model.", source.path());
    result.model = fmt::format("{}: {} parameters, {}", model.family,
                               format_count(static_cast<double>(model.parameters())), model.text());
  }
  if (meta.contains("written_by") && meta["written_by"].is_string()) {
    result.written_by = meta["written_by"];
  }
  if (meta.contains("fingerprint")) {
    result.fingerprint = std::move(meta["fingerprint"]);
    if (const auto* const reader = dynamic_cast<const CheckpointReader*>(&source)) {
      result.record = runs::stored_record(*reader);
    }
  } else if (std::error_code ignored; std::filesystem::exists(
                 std::filesystem::path(source.path()) / runs::record_file, ignored)) {
    try {
      result.record = {.record = runs::read_export_record(source.path()).record, .problem = {}};
    } catch (const Error& error) {
      result.record.problem = error.what();
    }
  }
  for (const auto& [name, info] : source.tensors()) {
    const std::string layout = source.saved_layout(name);
    if (const std::size_t on = layout.find(" on "); on != std::string::npos) {
      result.mesh = layout.substr(on + 4);
      break;
    }
  }
  return result;
}

Json scalar_json(const StateDict::Scalar& scalar) {
  return std::visit([](const auto& value) { return Json(value); }, scalar);
}

void print_json(const OpenedTensors& opened, const RunStatements& run) {
  const TensorSource& source = *opened.source;
  Json json = {{"format", opened.format}, {"path", source.path()}, {"bytes", bytes_of(source)}};
  if (std::ranges::any_of(source.tensors(), [&](const auto& tensor) {
        return !source.saved_layout(tensor.first).empty();
      })) {
    json["mesh"] = run.mesh;
    if (!run.written_by.empty()) {
      json["written_by"] = run.written_by;
    }
    json["run"] = parse_ordered_json(json_text(run.fingerprint));
  }
  if (run.record.problem.empty()) {
    json["record"] = parse_ordered_json(runs::to_json(run.record.record));
  }
  if (const auto& base = source.base()) {
    json["base"] = {{"path", base->path}, {"hash", base->hash}, {"tensors", Json::array()}};
    for (const auto& [name, info] : base->tensors) {
      json["base"]["tensors"].push_back(name);
    }
  }
  json["scalars"] = Json::object();
  for (const auto& [name, scalar] : source.scalars()) {
    if (name != record_scalar) {  // it is above, or damaged
      json["scalars"][name] = scalar_json(scalar);
    }
  }
  json["tensors"] = Json::object();
  for (const auto& [name, info] : source.tensors()) {
    Json tensor = {{"dtype", source.stored_type(name)},
                   {"shape", std::vector<std::int64_t>(info.shape.begin(), info.shape.end())}};
    if (std::string layout = source.saved_layout(name); !layout.empty()) {
      tensor["layout"] = std::move(layout);
    }
    json["tensors"][name] = std::move(tensor);
  }
  fmt::print("{}\n", json_text(json, 1));
}

/// "f32", or "bf16 and f32".
std::string types_of(const TensorSource& source) {
  std::set<std::string> names;
  for (const auto& [name, info] : source.tensors()) {
    names.insert(source.stored_type(name));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

/// Prefix of the tensors of `one` to compare with another format: a run's weights are under
/// "model." beside its optimizer's state; in a model folder they are all.
std::string weights_prefix(const OpenedTensors& one, const OpenedTensors& other) {
  const auto prefix = checkpoint_format(one.format).weights_prefix();
  const auto others = checkpoint_format(other.format).weights_prefix();
  return one.format != other.format && prefix && others ? *prefix : "";
}

/// Whether both leave out the same tensors of the same base, which need not be compared.
bool have_one_base(const TensorSource& first, const TensorSource& second) {
  return first.base() && second.base() && first.base()->hash == second.base()->hash &&
         first.base()->tensors == second.base()->tensors;
}

/// One of two that are compared: with the tensors of its base, unless both have the same ones.
class ComparedSource {
 public:
  ComparedSource(const OpenedTensors& opened, const std::string& moved, bool alike)
      : stored_(*opened.source) {
    if (stored_.base() && !alike) {
      whole_.emplace(stored_.path(), OpenFiles::when_read, hub::BaseUse::values, moved);
    }
  }
  const TensorSource& tensors() const { return whole_ ? whole_->tensors() : stored_; }

 private:
  const TensorSource& stored_;
  std::optional<hub::WholeCheckpoint> whole_;
};

std::string difference_text(const TensorDifference& d) {
  if (!d.problem.empty()) {
    return d.problem;
  }
  const std::string values =
      d.elements == 0
          ? "equal values"
          : fmt::format("{}, by at most {:.3g} ({:.3g} of the larger)",
                        count_text(d.elements, "element"), d.max_absolute, d.max_relative);
  return d.types.empty() ? values : d.types + ": " + values;
}

}  // namespace

int run_checkpoint_info(const std::string& given, bool json) {
  InputCopies copies;
  std::string path = given;
  copies.take_unless_checkpoint(path);
  const OpenedTensors opened = open_tensors(path);
  const TensorSource& source = *opened.source;
  const RunStatements run = about(source);
  if (json) {
    print_json(opened, run);
    return 0;
  }
  TableRows rows;
  if (!run.model.empty()) {
    rows.push_back({"model", run.model});
  }
  rows.push_back({"format", opened.format});
  if (!run.written_by.empty()) {
    rows.push_back({"written by", "Tessera " + run.written_by});
  }
  rows.push_back({"bytes", format_bytes(bytes_of(source))});
  const auto& scalars = source.scalars();
  if (const auto step = scalars.find("progress.step");
      step != scalars.end() && std::holds_alternative<std::int64_t>(step->second)) {
    rows.push_back({"step", fmt::format("{}", std::get<std::int64_t>(step->second))});
  }
  if (!run.mesh.empty()) {
    rows.push_back({"mesh", run.mesh});
  }
  if (run.record.problem.empty()) {
    rows.push_back({"record", text_of(run.record.record)});
  } else if (run.record.problem != RunStatements().record.problem) {
    rows.push_back({"record", run.record.problem});
  }
  for (const char* key : {"optimizer.name", "train.seed", "data.content"}) {
    if (run.fingerprint.contains(key)) {
      rows.push_back({key, json_text(run.fingerprint[key])});
    }
  }
  if (const auto& base = source.base()) {
    rows.push_back({"base", fmt::format("{}, whose hash is {}: {} are not stored here", base->path,
                                        base->hash, count_text(base->tensors.size(), "tensor"))});
  }
  rows.push_back({"tensors", fmt::format("{}", source.tensors().size()), types_of(source)});
  const std::string prefix = run.model.empty() ? "" : "model.";
  for (const auto& [name, info] : source.tensors()) {
    if (name.starts_with(prefix)) {
      rows.push_back({"", name.substr(prefix.size()),
                      fmt::format("{}{}", source.stored_type(name), to_string(info.shape)),
                      source.saved_layout(name)});
    }
  }
  fmt::print("{}", format_table(rows));
  return 0;
}

int run_checkpoint_diff(const DiffArguments& given) {
  DiffArguments arguments = given;
  InputCopies copies;
  copies.take_unless_checkpoint(arguments.first);
  copies.take_unless_checkpoint(arguments.second);
  copies.take(arguments.base, true);
  const OpenedTensors first = open_tensors(arguments.first);
  const OpenedTensors second = open_tensors(arguments.second);
  const CompareOptions options{.first_prefix = weights_prefix(first, second),
                               .second_prefix = weights_prefix(second, first)};
  const bool alike = have_one_base(*first.source, *second.source);
  const ComparedSource one(first, arguments.base, alike);
  const ComparedSource other(second, arguments.base, alike);
  const std::vector<TensorDifference> differences =
      compare_tensors(one.tensors(), other.tensors(), options);
  if (arguments.json) {
    Json json = Json::object();
    for (const TensorDifference& d : differences) {
      json[d.name] = {{"problem", d.problem},
                      {"types", d.types},
                      {"elements", d.elements},
                      {"max_absolute", d.max_absolute},
                      {"max_relative", d.max_relative}};
    }
    fmt::print("{}\n", json_text(json, 1));
    check_stdout();  // 1 is not an error here
    return differences.empty() ? 0 : 1;
  }
  TableRows rows;
  for (const TensorDifference& d : differences) {
    rows.push_back({d.name, difference_text(d)});
  }
  fmt::print("{}", format_table(rows));
  fmt::print("{}\n", differences.empty()
                         ? std::string("no tensor differs")
                         : fmt::format("{} {}", count_text(differences.size(), "tensor"),
                                       differences.size() == 1 ? "differs" : "differ"));
  check_stdout();  // 1 is not an error here
  return differences.empty() ? 0 : 1;
}

int run_checkpoint_convert(const ConvertArguments& arguments) {
  InputCopies copies;
  std::string path = arguments.from;
  copies.take_unless_checkpoint(path);
  const OpenedTensors from = open_tensors(path);
  const CheckpointFormat& format = checkpoint_format(arguments.format);
  WrittenCounts written;
  // With these files readers of the formats begin.
  const std::vector<std::string> last = {"checkpoint.json", ".metadata",
                                         "model.safetensors.index.json", "model.safetensors"};
  write_place(arguments.to, last, [&](const std::filesystem::path& folder) {
    written =
        format.write(*from.source, folder.string(), {.max_file_bytes = arguments.max_file_bytes});
  });
  fmt::print("{} and {} written to {}\n", count_text(written.tensors, "tensor"),
             count_text(written.scalars, "scalar"), arguments.to);
  if (const auto& base = from.source->base()) {
    fmt::print("not written, as the checkpoint does not have them: {} of its base {}\n",
               count_text(base->tensors.size(), "tensor"), base->path);
  }
  if (!from.source->left_out().empty()) {
    fmt::print("left out, as they are neither tensors, numbers nor texts: {}\n",
               fmt::join(from.source->left_out(), ", "));
  }
  return 0;
}

}  // namespace tessera::app
