module;
#include <fmt/format.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <tessera/json_reading.hpp>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.checkpoint;
import tessera.train;

namespace tessera::runs {
namespace {

using Json = nlohmann::json;

// What somebody needs to train the model again, and no place where this machine writes.
constexpr std::string_view sections[] = {"model",    "data",    "train", "dpo",  "optimizer",
                                         "parallel", "experts", "mesh",  "graph"};

/// As a cell of a table: one line, and no character that ends the cell.
std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    out += c == '|' ? "\\|" : c == '\n' || c == '\r' ? " " : std::string(1, c);
  }
  return out;
}

/// A value in a cell: as code, with a fence that the value does not have.
std::string code(const std::string& text) {
  std::string fence = "`";
  while (text.find(fence) != std::string::npos) {
    fence += '`';
  }
  const std::string space = fence.size() > 1 ? " " : "";
  return fence + space + cell(text) + space + fence;
}

/// A file's name says what it is; the folders before it say where this machine keeps it.
Json without_folders(const Json& value) {
  if (value.is_string() && value.get_ref<const std::string&>().starts_with('/')) {
    return std::filesystem::path(value.get<std::string>()).filename().string();
  }
  Json out = value;
  if (out.is_structured()) {
    for (Json& one : out) {
      one = without_folders(one);
    }
  }
  return out;
}

/// The config's sections that say what was trained, as indented JSON.
std::string config_text(const Json& config) {
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  for (const std::string_view section : sections) {
    if (const auto found = config.find(section); found != config.end()) {
      out[std::string(section)] = without_folders(*found);
    }
  }
  return json_text(out, 2);
}

/// A fence for a block of code, longer than any in the text.
std::string block_fence(const std::string& text) {
  std::string fence = "```";
  while (text.find(fence) != std::string::npos) {
    fence += '`';
  }
  return fence;
}

std::string text_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

/// A word of a command; what it sets is in the config below.
std::string without_folders_of_values(const std::string& word) {
  const std::size_t equals = word.find('=');
  return equals != std::string::npos && word.find('/', equals) != std::string::npos
             ? word.substr(0, equals) + "=..."
             : without_folders(word).get<std::string>();
}

/// "1.5 hours", of the ledgers.
std::string time_text(const RunRecord& record) {
  double seconds = 0;
  for (const Session& one : record.sessions) {
    seconds += one.ledger.total();
  }
  return seconds < 120     ? fmt::format("{:.0f} seconds", seconds)
         : seconds < 7'200 ? fmt::format("{:.1f} minutes", seconds / 60)
                           : fmt::format("{:.1f} hours", seconds / 3'600);
}

/// Who trained which steps with what, and the curve's main numbers.
std::string history_text(const ReadRecord& read, const std::string& weights) {
  std::string text =
      fmt::format("\n## How it was trained\n\nHash of its weights: {}\n", code(weights));
  if (!read.problem.empty()) {
    return text + fmt::format("\nThe checkpoint's record of its run: {}.\n", cell(read.problem));
  }
  const RunRecord& record = read.record;
  text += fmt::format(
      "\n{} in {}{}. 'tessera verify' repeats them from record.json.\n\n"
      "| steps | begun | command | program | plugins | machine | mesh |\n"
      "| --- | --- | --- | --- | --- | --- | --- |\n",
      count_text(record.step(), "step"), time_text(record),
      record.left_out == 0
          ? ""
          : fmt::format(", with {} that are not listed", count_text(record.left_out, "start")));
  for (const Session& one : record.sessions) {
    std::string plugins;
    for (const RecordedPlugin& plugin : one.plugins) {
      plugins += fmt::format("{}{} {} {}", plugins.empty() ? "" : ", ", plugin.name, plugin.version,
                             plugin.hash);
    }
    std::string command;
    for (const std::string& word : one.command) {
      command += (command.empty() ? "" : " ") + without_folders_of_values(word);
    }
    text += fmt::format("| {}-{} | {} | {} | {} {} | {} | {}, {}, {} x {} | {} |\n", one.from + 1,
                        one.to, cell(one.begun),
                        command.empty() ? "a program of its own" : code(command), cell(one.version),
                        code(one.program), plugins.empty() ? "-" : code(plugins),
                        cell(one.processor), cell(one.system), count_text(one.machines, "machine"),
                        count_text(one.cores, "core"), cell(one.mesh));
  }
  const CurvePoint* best = nullptr;
  for (const CurvePoint& point : record.curve) {
    if (point.validation_loss &&
        (best == nullptr || *point.validation_loss < *best->validation_loss)) {
      best = &point;
    }
  }
  if (!record.curve.empty()) {
    text +=
        fmt::format("\nLoss of step {}: {}", record.curve.back().step, record.curve.back().loss);
    text += best == nullptr ? ".\n"
                            : fmt::format("; best validation loss {}, after step {}.\n",
                                          *best->validation_loss, best->step);
  }
  return text;
}

}  // namespace

std::string model_card(const CheckpointReader& checkpoint, const std::string& name,
                       const std::string& what) {
  const TrainingProgress progress = read_training_progress(checkpoint);
  return reading_json(checkpoint.path(), [&] {
    const Json meta = parse_json(checkpoint.meta());
    const Json config = meta.value("config", Json::object());
    const Json fingerprint = meta.value("fingerprint", Json::object());
    std::string card = fmt::format("# {}\n\n", cell(name));
    card += fmt::format("{}, trained by Tessera {}: {}, {}.\n", cell(what),
                        cell(text_of(meta, "written_by")), count_text(progress.step, "step"),
                        count_text(progress.tokens, "token"));
    const std::string from =
        text_of(without_folders(config.value("model", Json::object())), "from");
    card += from.empty() ? "It began with random weights.\n"
                         : fmt::format("It began with the weights of {}.\n", code(from));
    card +=
        "\n## What determines it\n\n"
        "Hashes are of contents: two runs with all of these values train on the same rows, in the "
        "same order, from the same weights.\n\n"
        "| key | value |\n| --- | --- |\n";
    for (const auto& [key, value] : fingerprint.items()) {
      card += fmt::format("| {} | {} |\n", code(key), code(json_text(value)));
    }
    card += history_text(stored_record(checkpoint), stored_hash(checkpoint, "model."));
    const std::string text = config_text(config);
    const std::string fence = block_fence(text);
    card += fmt::format("\n## The config\n\n{}json\n{}\n{}\n", fence, text, fence);
    return card;
  });
}

}  // namespace tessera::runs
