module;
#include <fmt/format.h>
#include <fnmatch.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/shown.hpp>
#include <utility>
#include <variant>
#include <vector>
module tessera.app.commands;

import tessera.base;
import tessera.stores;
import tessera.hub;
import tessera.app.base;
import :stored_paths;

namespace tessera::app {
namespace {

namespace fs = std::filesystem;

/// What an option's text is.
enum class TextUse : std::uint8_t {
  no_path,
  path,  // of this machine only
  path_or_address,
};

struct TextOption {
  std::string_view command;  // empty: of all that have no entry of their own
  std::string_view option;
  TextUse use = TextUse::no_path;
  std::string_view why_here = {};  // of a path of this machine
};

constexpr std::string_view is_written = "what is written for you to look at is written here";
constexpr std::string_view is_config = "paths in a config begin at the config's folder";
constexpr std::string_view is_facts = "what runs write about themselves is on their machine";
constexpr std::string_view is_measured = "what is measured is on this machine";
constexpr std::string_view is_code = "code is run from files of this machine only";

/// Every option that takes a text. One that is not here ends the program (check_paths).
constexpr auto text_options = std::to_array<TextOption>({
    {"", "--plugin", TextUse::path, is_code},
    {"", "CONFIG", TextUse::path, is_config},
    {"", "OVERRIDES"},
    {"", "MODEL", TextUse::path_or_address},
    {"", "--tokenizer", TextUse::path_or_address},
    {"", "--base", TextUse::path_or_address},
    {"", "--adapter", TextUse::path_or_address},
    {"", "--chat-template", TextUse::path_or_address},
    {"", "RUN", TextUse::path_or_address},
    {"", "--layout", TextUse::path, is_config},
    {"", "--html", TextUse::path, is_written},
    {"", "--svg", TextUse::path, is_written},
    {"", "--to", TextUse::path, is_written},
    {"", "--device"},
    {"", "--stop"},
    {"", "--system"},
    {"train", "--meet"},
    {"plan", "--hardware", TextUse::path, "rates of hardware are measured here"},
    {"plan", "--page", TextUse::path, is_written},
    {"plan", "--compare", TextUse::path, is_facts},
    {"plan", "--save", TextUse::path, is_config},
    {"plan", "--precision"},
    {"plan", "--save-hardware", TextUse::path, is_written},
    {"plan", "--trace", TextUse::path, is_written},
    {"generate", "--prompt"},
    {"generate", "--prompts", TextUse::path_or_address},
    {"evaluate", "--text", TextUse::path_or_address},
    {"evaluate", "--jsonl", TextUse::path_or_address},
    {"evaluate", "--questions", TextUse::path_or_address},
    {"evaluate", "--tasks", TextUse::path_or_address},
    {"evaluate", "--task-data", TextUse::path_or_address},
    {"evaluate", "--shots-from", TextUse::path_or_address},
    {"evaluate", "--keep", TextUse::path, "answers are added to it line by line"},
    {"evaluate", "--beside", TextUse::path_or_address},
    {"evaluate", "--format"},
    {"compare", "STORED", TextUse::path_or_address},
    {"serve", "--adapter-folder", TextUse::path,
     "its adapters are read when requests ask for them; name those in stores with --adapter "
     "NAME=ADDRESS"},
    {"serve", "--host"},
    {"serve", "--token-file", TextUse::path, "a secret is read from this machine only"},
    {"data seen", "PLACE"},
    {"replay", "--record", TextUse::path, is_written},
    {"replay", "--record-as"},
    {"bisect", "OTHER", TextUse::path_or_address},
    {"bisect", "--other-program", TextUse::path, is_code},
    {"bisect", "--against"},
    {"bisect", "--keep", TextUse::path, is_written},
    {"verify", "FOLDER", TextUse::path_or_address},
    {"verify", "--steps"},
    {"verify", "--in", TextUse::path, "paths of a run begin at a folder of this machine"},
    {"checkpoint info", "PATH", TextUse::path_or_address},
    {"checkpoint verify", "PATH", TextUse::path_or_address},
    {"checkpoint export", "PATH", TextUse::path_or_address},
    {"checkpoint export", "--to", TextUse::path_or_address},
    {"checkpoint export", "--merge", TextUse::path_or_address},
    {"checkpoint convert", "PATH", TextUse::path_or_address},
    {"checkpoint convert", "--to", TextUse::path_or_address},
    {"checkpoint convert", "--format"},
    {"checkpoint diff", "FIRST", TextUse::path_or_address},
    {"checkpoint diff", "SECOND", TextUse::path_or_address},
    {"bench", "--only"},
    {"bench", "--model", TextUse::path, is_measured},
    {"bench", "--tokenizer", TextUse::path, is_measured},
    {"bench compare", "--python", TextUse::path, is_code},
    {"layout", "PLACEMENTS"},
    {"layout", "--mesh"},
    {"layout", "--shape"},
    {"layout", "--to"},
    {"pipeline draw", "SCHEDULE", TextUse::path, is_facts},
    {"pipeline draw", "--times", TextUse::path, is_facts},
    {"pipeline draw", "--table", TextUse::path, is_written},
    {"ops", "NAME"},
    {"ops", "--arguments"},
    {"trace summary", "FILE", TextUse::path, is_facts},
    {"trace draw", "FILE", TextUse::path, is_facts},
    {"blackbox", "FILE", TextUse::path, is_facts},
    {"runs", "FOLDER", TextUse::path, is_facts},
    {"plot", "RUN", TextUse::path, is_facts},
    {"graph show", "FILE", TextUse::path, is_facts},
    {"graph show", "--module"},
    {"graph diff", "BEFORE", TextUse::path, is_facts},
    {"graph diff", "AFTER", TextUse::path, is_facts},
    {"graph draw", "FILE", TextUse::path, is_facts},
    {"graph stats", "FILE", TextUse::path, is_facts},
    {"graph roofline", "FILE", TextUse::path, is_facts},
    {"graph roofline", "--measure"},
    {"model describe", "FOLDER", TextUse::path_or_address},
    {"embed", "--texts", TextUse::path_or_address},
    {"plugin info", "NAME", TextUse::path, is_code},
    {"plugin check", "FILE", TextUse::path, is_code},
    {"plugin new", "NAME"},
    {"plugin new", "--kind"},
    {"plugin new", "--folder", TextUse::path, is_written},
});

const TextOption* entry_of(std::string_view command, std::string_view option) {
  const TextOption* found = nullptr;
  for (const TextOption& entry : text_options) {
    if (entry.option == option && entry.command == command) {
      return &entry;
    }
    if (entry.option == option && entry.command.empty()) {
      found = &entry;
    }
  }
  return found;
}

/// Whether a value is any text: neither a number nor one of a few words.
bool takes_text(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  constexpr std::array<std::string_view, 7> others = {"INT",  "UINT",    "FLOAT",  "NUMBER",
                                                      "SIZE", "SECONDS", "BOOLEAN"};
  return option.get_items_expected_max() > 0 && type.find(":{") == std::string::npos &&
         std::ranges::find(others, std::string_view(type).substr(0, type.find(':'))) ==
             others.end();
}

void check_option(CLI::Option& option, const std::string& command) {
  const std::string name =
      option.get_positional() ? option.get_name() : "--" + option.get_lnames().at(0);
  const TextOption* entry = entry_of(command, name);
  if (entry == nullptr) {
    fail({.thing = fmt::format("{} {}", command, name),
          .wrong = "nothing says whether it takes addresses of stores",
          .advice = "add it to the table in stored_paths.cpp"});
  }
  if (entry->use == TextUse::path) {
    option.check(CLI::Validator(
        [why = std::string(entry->why_here)](const std::string& text) {
          try {
            // What has no form of an address may have a password: its error does not show it.
            return stores::is_address(text)
                       ? fmt::format(
                             "{0} is an address of a store (expected a path of this "
                             "machine: {1}); write ./{0} for a file of this name",
                             shown(stores::Address(text).text(), 200), why)
                       : std::string();
          } catch (const Error& error) {
            return std::string(error.what());
          }
        },
        ""));
  }
}

void check_command(CLI::App& command, const std::string& words) {
  for (CLI::Option* option : command.get_options()) {
    if (takes_text(*option)) {
      check_option(*option, words);
    }
  }
  for (CLI::App* inner : command.get_subcommands([](CLI::App*) { return true; })) {
    check_command(*inner, words.empty() ? inner->get_name() : words + " " + inner->get_name());
  }
}

/// Sends a file piece by piece.
void send_file(stores::OpenWritableStore& store, const std::string& name, const fs::path& path) {
  const std::uint64_t size = fs::file_size(path);
  std::ifstream file(path, std::ios::binary);
  stores::Upload upload = store.upload(name, size);
  std::vector<char> piece(std::size_t{1} << 22);
  std::uint64_t sent = 0;
  while (file.read(piece.data(), static_cast<std::streamsize>(piece.size())) || file.gcount() > 0) {
    const auto count = static_cast<std::size_t>(file.gcount());
    upload.add(std::as_bytes(std::span(piece.data(), count)));
    sent += count;
  }
  if (sent != size) {
    fail({.thing = path.string(), .wrong = "the temporary file cannot be read"});
  }
  upload.complete();
}

/// The names of the files in a folder, sorted, with the one that says that all are there at the
/// end. Error (input): which one does is not known.
std::vector<std::string> names_to_send(const fs::path& folder, const std::vector<std::string>& last,
                                       const std::string& place) {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) {
      names.push_back(entry.path().lexically_relative(folder).string());
    }
  }
  std::ranges::sort(names);
  for (const std::string& name : last) {
    if (const auto found = std::ranges::find(names, name); found != names.end()) {
      std::rotate(found, found + 1, names.end());
      return names;
    }
  }
  if (names.size() > 1) {
    fail_input({.thing = place,
                .wrong = fmt::format("{} of this format do not say by one of them that all are "
                                     "there",
                                     count_text(names.size(), "file")),
                .advice = "write them to a folder, and copy that"});
  }
  return names;
}

[[noreturn]] void refuse_full(const std::string& place, const std::string& name) {
  fail_input({.thing = place,
              .wrong = fmt::format("it has {} already", shown(name, 200)),
              .expected = "an address below which there is nothing",
              .advice = "choose another address, or remove what is there"});
}

/// Sends the files of a folder. `there`: objects below the address, which are those of a process
/// that was ended.
void send_folder(stores::OpenWritableStore& store, const fs::path& folder,
                 const std::vector<std::string>& names,
                 const std::vector<stores::ListedObject>& there) {
  for (const stores::ListedObject& object : there) {
    if (std::ranges::find(names, object.name) == names.end()) {
      refuse_full(store.address().text(), object.name);
    }
  }
  for (const std::string& name : names) {
    if (name == names.back()) {
      std::map<std::string, std::uint64_t> sizes;
      for (const stores::ListedObject& object : store.list()) {
        sizes[object.name] = object.facts.size;
      }
      for (const std::string& sent : names) {
        const bool is_same = sizes.contains(sent) && sizes[sent] == fs::file_size(folder / sent);
        if (sent != name && !is_same) {
          fail({.thing = (store.address() / sent).text(),
                .wrong = "what was sent has gone or changed",
                .advice = "does another process write there? Try again"});
        }
      }
    }
    send_file(store, name, folder / name);
  }
}

/// Removes what may have been sent, as far as that is possible, in one try each.
void remove_sent(const stores::Address& address, const std::vector<std::string>& names) {
  try {
    stores::OpenWritableStore store(address, {.retries = {.tries = 1}});
    for (auto name = names.rbegin(); name != names.rend(); ++name) {
      store.remove(*name);
    }
  } catch (const Error& error) {
    log(LogLevel::warning, fmt::format("{}: files of an export that is not complete are left ({})",
                                       address.text(), error.what()));
  }
}

void write_stored(const stores::Address& address, const std::vector<std::string>& last,
                  const std::function<void(const fs::path& folder)>& write) {
  stores::OpenWritableStore store(address);
  const auto there = store.list();
  for (const stores::ListedObject& object : there) {
    if (std::ranges::find(last, object.name) != last.end()) {
      refuse_full(address.text(), object.name);
    }
  }
  const ScratchFolder scratch("export");
  const fs::path folder = fs::path(scratch.path()) / "files";
  write_folder(folder.string(), write);
  const std::vector<std::string> names = names_to_send(folder, last, address.text());
  try {
    send_folder(store, folder, names, there);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::input) {
      remove_sent(address, names);
    }
    throw;
  }
}

/// Beside a file of a task are those that it includes, and its documents.
void leave_out_other_than_tasks(std::vector<stores::ListedObject>& objects) {
  constexpr std::array<std::string_view, 8> endings = {".yaml", ".yml", ".jsonl",   ".json",
                                                       ".gz",   ".zst", ".parquet", ".arrow"};
  std::erase_if(objects, [&](const stores::ListedObject& object) {
    return std::ranges::none_of(
        endings, [&](std::string_view ending) { return object.name.ends_with(ending); });
  });
}

}  // namespace

void check_paths(CLI::App& program) { check_command(program, ""); }

void InputCopies::take(std::string& path, bool is_model) {
  if (!stores::is_address(path)) {
    return;
  }
  stores::CopyRules rules;
  if (is_model) {
    rules.choose = hub::leave_out_other_formats;
  }
  const std::string& copy = copies_.emplace_back(path, rules).path();
  names_[copy] = path;
  path = copy;
}

void InputCopies::take(std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (std::string& path : paths) {
    const std::string address = path;
    take(path);
    std::error_code ignored;
    if (path == address || !fs::is_directory(path, ignored)) {
      files.push_back(path);
      continue;
    }
    const std::size_t first = files.size();
    for (const auto& entry : fs::recursive_directory_iterator(path)) {
      if (entry.is_regular_file()) {
        files.push_back(entry.path().string());
        names_[files.back()] =
            fmt::format("{} ({})", address, entry.path().lexically_relative(path).string());
      }
    }
    std::ranges::sort(files.begin() + static_cast<std::ptrdiff_t>(first), files.end());
  }
  paths = std::move(files);
}

void InputCopies::take_tasks(std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (std::string& path : paths) {
    const std::size_t slash = path.rfind('/');
    if (!stores::is_address(path) || slash == std::string::npos ||
        !stores::OpenStore(stores::Address(path)).has_lists()) {
      take(path);
      files.push_back(path);
      continue;
    }
    const std::string folder = path.substr(0, slash);
    const stores::CopyRules rules{.choose = leave_out_other_than_tasks};
    const fs::path copy = copies_.emplace_back(folder, rules).path();
    const std::size_t first = files.size();
    const std::string leaf = path.substr(slash + 1);
    for (const auto& entry : fs::directory_iterator(copy)) {
      const std::string name = entry.path().filename().string();
      if (name == leaf || ::fnmatch(leaf.c_str(), name.c_str(), FNM_PERIOD) == 0) {
        files.push_back(entry.path().string());
        names_[files.back()] = folder + "/" + name;
      }
    }
    std::ranges::sort(files.begin() + static_cast<std::ptrdiff_t>(first), files.end());
    if (files.size() == first) {
      fail_input({.thing = stores::Address(path).text(),
                  .wrong = "there is nothing of this name",
                  .expected = "a file of a task, with its documents beside it"});
    }
  }
  paths = std::move(files);
}

void InputCopies::take_unless_checkpoint(std::string& path) {
  if (!stores::is_address(path)) {
    return;
  }
  stores::OpenStore store{stores::Address(path)};
  try {
    store.facts("checkpoint.json");
  } catch (const stores::StoreError& error) {
    if (error.failure() != stores::StoreFailure::not_there) {
      throw;
    }
    take(path, true);
  }
}

std::string InputCopies::named(const std::string& path) const {
  const auto found = names_.find(path);
  return found == names_.end() ? path : found->second;
}

void write_place(const std::string& place, const std::vector<std::string>& last,
                 const std::function<void(const fs::path& folder)>& write) {
  const stores::Location location = stores::parse_location(place);
  if (const auto* const address = std::get_if<stores::Address>(&location)) {
    write_stored(*address, last, write);
  } else {
    write_folder(place, write);
  }
}

}  // namespace tessera::app
