module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <tessera/content_hash.hpp>
#include <tessera/json.hpp>
#include <vector>
module tessera.app.first_day;

import tessera.base;
import tessera.plugin;
import tessera.app.base;
import :pack;

namespace tessera::app::first_day {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* list_name = "pack.json";
std::string hash_of(const std::string& path) {
  const std::string bytes = read_input(path);
  return content_hash(std::as_bytes(std::span(bytes)));
}

}  // namespace

std::string Pack::path(const std::string& name) const { return folder + "/" + name; }
std::string Pack::program() const { return path("bin/tessera"); }

void seal_pack(const std::string& folder, const PackFacts& facts) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file() && entry.path().filename() != list_name) {
      files[fs::relative(entry.path(), folder).string()] = hash_of(entry.path().string());
    }
  }
  Json list = {{"version", plugin::host_version()},
               {"commit", facts.commit},
               {"architectures", facts.architectures},
               {"compiler", facts.compiler},
               {"glibc", facts.glibc},
               {"small", facts.small},
               {"files", files}};
  const std::string names = json_text(list["files"]);
  list["content"] = content_hash(std::as_bytes(std::span(names)));
  write_output("pack", folder + "/" + list_name, json_text(list, 1) + "\n");
}

Pack open_pack(const std::string& folder) {
  const std::string path = folder + "/" + list_name;
  const auto damaged = [&](const std::string& thing, const std::string& wrong) {
    fail_input({.thing = thing,
                .wrong = wrong,
                .advice = "unpack the archive again; if that does not help, copy it again"});
  };
  ParsedJson list = read_json_object(path);
  for (const char* key :
       {"version", "commit", "architectures", "compiler", "glibc", "files", "content"}) {
    if (!list.problem.empty() || !list.value.contains(key)) {
      damaged(path, list.problem.empty() ? fmt::format("the pack's list has no '{}'", key)
                                         : list.problem);
    }
  }
  for (const auto& [name, hash] : list.value["files"].items()) {
    const std::string file = folder + "/" + name;
    if (!fs::is_regular_file(file)) {
      damaged(file, "this file of the pack is missing");
    }
    if (hash_of(file) != hash.get<std::string>()) {
      damaged(file, "this file of the pack is damaged");
    }
  }
  list.value.erase("files");
  return {.folder = folder,
          .facts = json_text(list.value),
          .architectures = list.value["architectures"].get<std::vector<std::string>>()};
}

}  // namespace tessera::app::first_day
